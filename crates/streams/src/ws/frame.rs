//! RFC 6455 frames from and to bytes, in pieces, so that no message is ever buffered as a whole. `wire` and `tunnel`
//! interpret the messages.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Role;
use crate::error::StreamError;

/// The size limit of a control frame's payload, in bytes (RFC 6455 section 5.5).
const CONTROL_BYTES_MAX: usize = 125;
/// A normal end of the connection.
pub const CLOSE_NORMAL: u16 = 1000;
/// The peer broke the protocol.
pub const CLOSE_PROTOCOL_ERROR: u16 = 1002;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// A further frame of the same message.
    Continuation,
    /// A text message.
    Text,
    /// A binary message.
    Binary,
    /// The end of the connection.
    Close,
    /// A request for a pong.
    Ping,
    /// The answer to a ping.
    Pong,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0,
            Opcode::Text => 1,
            Opcode::Binary => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        }
    }
}

/// A decoded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A piece of a message.
    Message {
        /// Whether the message is text.
        text: bool,
        /// Whether this is the first piece of the message.
        first: bool,
        /// Whether this is the last piece of the message.
        last: bool,
        /// The bytes, unmasked.
        data: Bytes,
    },
    /// A ping, which must be answered with these bytes.
    Ping(Bytes),
    /// The answer to a ping.
    Pong(Bytes),
    /// The peer closes the connection, with its status code if it sent one.
    Close(Option<u16>),
}

struct Current {
    left: u64,
    mask: Option<[u8; 4]>,
    /// The number of payload bytes that the mask has been applied to, modulo four.
    turn: usize,
    fin: bool,
}

/// Decodes frames from a byte buffer.
pub struct Decoder {
    role: Role,
    current: Option<Current>,
    /// The current message: whether it is text, and whether a piece of it was already returned.
    message: Option<(bool, bool)>,
}

impl Decoder {
    /// Creates a decoder for this side's role. A server requires masked frames, and a client rejects them.
    pub fn new(role: Role) -> Self {
        Self { role, current: None, message: None }
    }

    /// Returns the next event of `input`, or `None` if more bytes are needed.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Event>, StreamError> {
        loop {
            if self.current.is_some() {
                return Ok(self.piece(input));
            }
            let Some((opcode, fin, mask, length, header)) = self.header(input)? else { return Ok(None) };
            if matches!(opcode, Opcode::Close | Opcode::Ping | Opcode::Pong) {
                if !fin || length > CONTROL_BYTES_MAX as u64 {
                    return Err(protocol("control frame too long or fragmented"));
                }
                if input.len() < header + length as usize {
                    return Ok(None);
                }
                input.advance(header);
                let mut data = input.split_to(length as usize);
                if let Some(mask) = mask {
                    apply_mask(&mut data, mask, 0);
                }
                return Ok(Some(match opcode {
                    Opcode::Ping => Event::Ping(data.freeze()),
                    Opcode::Pong => Event::Pong(data.freeze()),
                    _ => Event::Close(data.first_chunk::<2>().map(|code| u16::from_be_bytes(*code))),
                }));
            }
            match (opcode, self.message) {
                (Opcode::Continuation, None) => return Err(protocol("continuation without a message")),
                (Opcode::Text | Opcode::Binary, Some(_)) => return Err(protocol("message within a message")),
                (Opcode::Continuation, Some(_)) => {}
                (opcode, None) => self.message = Some((opcode == Opcode::Text, false)),
                _ => return Err(protocol("unexpected frame")),
            }
            input.advance(header);
            self.current = Some(Current { left: length, mask, turn: 0, fin });
        }
    }

    fn piece(&mut self, input: &mut BytesMut) -> Option<Event> {
        let current = self.current.as_mut()?;
        if input.is_empty() && current.left > 0 {
            return None;
        }
        let take = usize::try_from(current.left).unwrap_or(usize::MAX).min(input.len());
        let mut data = input.split_to(take);
        if let Some(mask) = current.mask {
            apply_mask(&mut data, mask, current.turn);
            current.turn = (current.turn + take) % 4;
        }
        current.left -= take as u64;
        let last = current.left == 0 && current.fin;
        if current.left == 0 {
            self.current = None;
        }
        let (text, begun) = self.message.unwrap_or_default();
        self.message = (!last).then_some((text, true));
        Some(Event::Message { text, first: !begun, last, data: data.freeze() })
    }

    #[allow(clippy::type_complexity)]
    fn header(&self, input: &BytesMut) -> Result<Option<(Opcode, bool, Option<[u8; 4]>, u64, usize)>, StreamError> {
        let [first, second, ..] = input[..] else { return Ok(None) };
        if first & 0x70 != 0 {
            return Err(protocol("reserved bits are set"));
        }
        let opcode = Opcode::from_bits(first & 0x0f).ok_or_else(|| protocol("unknown opcode"))?;
        let masked = second & 0x80 != 0;
        if masked != (self.role == Role::Server) {
            return Err(protocol("client frames must be masked, server frames must not"));
        }
        let (length, mut at) = match second & 0x7f {
            126 => match input.get(2..4) {
                Some(bytes) => (u64::from(u16::from_be_bytes([bytes[0], bytes[1]])), 4),
                None => return Ok(None),
            },
            127 => match input.get(2..10).and_then(|bytes| bytes.first_chunk::<8>()) {
                Some(bytes) => (u64::from_be_bytes(*bytes), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        if length >> 63 != 0 {
            return Err(protocol("frame length is negative"));
        }
        let mut mask = None;
        if masked {
            let Some(bytes) = input.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()) else { return Ok(None) };
            mask = Some(*bytes);
            at += 4;
        }
        Ok(Some((opcode, first & 0x80 != 0, mask, length, at)))
    }
}

fn protocol(what: &str) -> StreamError {
    StreamError::Protocol(format!("websocket: {what}"))
}

fn apply_mask(data: &mut [u8], mask: [u8; 4], turn: usize) {
    let turned = [mask[turn % 4], mask[(turn + 1) % 4], mask[(turn + 2) % 4], mask[(turn + 3) % 4]];
    let word = u32::from_ne_bytes(turned);
    let (words, rest) = data.as_chunks_mut::<4>();
    for chunk in words {
        *chunk = (u32::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(turned) {
        *byte ^= key;
    }
}

/// Appends one whole frame whose payload is the concatenation of the parts. A client's frame is masked.
pub fn put_frame(role: Role, opcode: Opcode, parts: &[&[u8]], out: &mut BytesMut) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    put_header(role, opcode, length, out);
    let Role::Client = role else {
        parts.iter().for_each(|part| out.extend_from_slice(part));
        return;
    };
    let mask = rand::random::<[u8; 4]>();
    out.extend_from_slice(&mask);
    let start = out.len();
    parts.iter().for_each(|part| out.extend_from_slice(part));
    apply_mask(&mut out[start..], mask, 0);
}

/// Appends the header of a whole server frame whose payload of `length` bytes follows, or of a client frame up to
/// its mask.
pub fn put_header(role: Role, opcode: Opcode, length: usize, out: &mut BytesMut) {
    let masked = if role == Role::Client { 0x80 } else { 0 };
    out.put_u8(0x80 | opcode.bits());
    match length {
        0..=125 => out.put_u8(masked | length as u8),
        126..=0xffff => {
            out.put_u8(masked | 126);
            out.put_u16(length as u16);
        }
        _ => {
            out.put_u8(masked | 127);
            out.put_u64(length as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(role: Role, bytes: &[u8], step: usize) -> Result<Vec<Event>, StreamError> {
        let (mut decoder, mut input, mut events) = (Decoder::new(role), BytesMut::new(), Vec::new());
        for chunk in bytes.chunks(step) {
            input.extend_from_slice(chunk);
            while let Some(event) = decoder.decode(&mut input)? {
                events.push(event);
            }
        }
        Ok(events)
    }

    #[test]
    fn lengths_masks_and_pieces() {
        for length in [0usize, 1, 125, 126, 65_535, 65_536, 70_001] {
            let payload: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
            for step in [3usize, 100, usize::MAX] {
                let mut wire = BytesMut::new();
                put_frame(Role::Client, Opcode::Binary, &[&payload], &mut wire);
                put_frame(Role::Client, Opcode::Ping, &[b"hi"], &mut wire);
                let step = step.min(wire.len());
                let events = read_all(Role::Server, &wire, step).expect("decodes");
                let mut seen = Vec::new();
                for (at, event) in events[..events.len() - 1].iter().enumerate() {
                    let Event::Message { text: false, first, last, data } = event else { panic!("{event:?}") };
                    assert_eq!((*first, *last), (at == 0, at == events.len() - 2));
                    seen.extend_from_slice(data);
                }
                assert_eq!(seen, payload);
                assert_eq!(events.last(), Some(&Event::Ping(Bytes::from_static(b"hi"))));
            }
        }
    }

    #[test]
    fn fragments_make_one_message_and_control_frames_may_stand_between() {
        let wire = [0x02, 1, b'a', 0x89, 0, 0x00, 1, b'b', 0x80, 0, 0x88, 2, 3, 0xe8];
        let events = read_all(Role::Client, &wire, 1).expect("decodes");
        let message = |first, last, data: &'static [u8]| Event::Message {
            text: false,
            first,
            last,
            data: Bytes::from_static(data),
        };
        assert_eq!(
            events,
            [
                message(true, false, b"a"),
                Event::Ping(Bytes::new()),
                message(false, false, b"b"),
                message(false, true, b""),
                Event::Close(Some(CLOSE_NORMAL)),
            ]
        );
    }

    #[test]
    fn broken_frames_are_refused() {
        let broken: [(&str, Role, &[u8]); 6] = [
            ("unmasked to server", Role::Server, &[0x82, 1, b'a']),
            ("masked to client", Role::Client, &[0x82, 0x81, 0, 0, 0, 0, b'a']),
            ("reserved bit", Role::Client, &[0xc2, 0]),
            ("opcode", Role::Client, &[0x83, 0]),
            ("long ping", Role::Client, &[0x89, 126, 0, 126]),
            ("continuation", Role::Client, &[0x80, 0]),
        ];
        for (name, role, wire) in broken {
            assert!(read_all(role, wire, 1).is_err(), "{name}");
        }
    }
}
