//! The frames of SPDY/3.1 from and to bytes. `mux` handles streams, replies and limits per stream.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::headers::{HeaderCompressor, HeaderDecompressor, Headers};
use crate::error::StreamError;

/// The size limit of a received control frame, in bytes. Stream headers of Kubernetes need a few hundred bytes.
pub const CONTROL_FRAME_BYTES_MAX: usize = 64 * 1024;
/// The version that every control frame carries.
const VERSION: u16 = 3;
const FLAG_FIN: u8 = 0x01;
const FLAG_UNIDIRECTIONAL: u8 = 0x02;
const HEADER_BYTES: usize = 8;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// The reasons of the RST_STREAM frames that this side sends.
pub mod reset {
    /// The peer broke the protocol on this stream.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// The stream was rejected before any processing.
    pub const REFUSED_STREAM: u32 = 3;
    /// The sender no longer needs the stream.
    pub const CANCEL: u32 = 5;
}

/// One frame, or a part of a data frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A new stream.
    SynStream {
        /// The stream's identifier, chosen by the sender.
        id: u32,
        /// The associated stream, or zero.
        associated: u32,
        /// The priority: 0 is the highest, 7 the lowest.
        priority: u8,
        /// Whether the sender will send nothing more.
        fin: bool,
        /// Whether the receiver may send nothing.
        unidirectional: bool,
        /// The stream's headers.
        headers: Headers,
    },
    /// The reply to a new stream.
    SynReply {
        /// The stream that the reply is for.
        id: u32,
        /// Whether the sender will send nothing more.
        fin: bool,
        /// The headers. Kubernetes sends none.
        headers: Headers,
    },
    /// Ends a stream abruptly.
    RstStream {
        /// The stream to end.
        id: u32,
        /// The reason, which is never zero.
        status: u32,
    },
    /// Settings. They are decoded for completeness; spdystream ignores them.
    Settings(Vec<(u32, u32)>),
    /// A ping, or its answer.
    Ping(u32),
    /// The sender accepts no more streams and reads no further.
    GoAway {
        /// The last stream that the sender accepted.
        last_good: u32,
        /// The reason. 0 is a normal end.
        status: u32,
    },
    /// Further headers of a stream.
    Headers {
        /// The stream of the headers.
        id: u32,
        /// Whether the sender will send nothing more.
        fin: bool,
        /// The headers to add.
        headers: Headers,
    },
    /// Room in a flow control window. spdystream neither sends nor obeys it.
    WindowUpdate {
        /// The stream, or zero for the connection.
        id: u32,
        /// The number of bytes of added room.
        delta: u32,
    },
    /// Data of a stream. A long frame is decoded in several parts, and only the last part carries `fin`.
    Data {
        /// The stream that the bytes belong to.
        id: u32,
        /// Whether the sender will send nothing more.
        fin: bool,
        /// The data, which may be empty.
        data: Bytes,
    },
}

/// Decodes frames from a byte buffer.
pub struct FrameDecoder {
    inflate: HeaderDecompressor,
    /// The data frame whose payload is being read: stream, remaining bytes, fin.
    partial: Option<(u32, usize, bool)>,
}

impl FrameDecoder {
    /// Makes a decoder for the start of a connection.
    pub fn new() -> Self {
        Self { inflate: HeaderDecompressor::new(), partial: None }
    }

    /// Returns the next frame of `input`, or `None` if more bytes are needed. After an error the connection cannot be
    /// used further, because the state of the compression is lost.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, StreamError> {
        if let Some(frame) = self.rest_of_data(input) {
            return Ok(Some(frame));
        }
        if self.partial.is_some() || input.len() < HEADER_BYTES {
            return Ok(None);
        }
        let word = u32::from_be_bytes([input[0], input[1], input[2], input[3]]);
        let flags = input[4];
        let length = u32::from_be_bytes([0, input[5], input[6], input[7]]) as usize;
        if word & 0x8000_0000 == 0 {
            if word == 0 {
                return Err(StreamError::Protocol("stream id zero is disallowed".into()));
            }
            input.advance(HEADER_BYTES);
            let fin = flags & FLAG_FIN != 0;
            if length == 0 {
                return Ok(Some(Frame::Data { id: word, fin, data: Bytes::new() }));
            }
            self.partial = Some((word, length, fin));
            return Ok(self.rest_of_data(input));
        }
        if length > CONTROL_FRAME_BYTES_MAX {
            return Err(StreamError::Limit("SPDY control frame"));
        }
        if input.len() < HEADER_BYTES + length {
            input.reserve(HEADER_BYTES + length - input.len());
            return Ok(None);
        }
        let version = (word >> 16 & 0x7fff) as u16;
        if version != VERSION {
            return Err(StreamError::Protocol(format!("SPDY version {version} is not supported")));
        }
        input.advance(HEADER_BYTES);
        let body = input.split_to(length);
        self.control(word as u16, flags, &body).map(Some)
    }

    fn rest_of_data(&mut self, input: &mut BytesMut) -> Option<Frame> {
        let (id, left, fin) = self.partial?;
        if input.is_empty() {
            return None;
        }
        let data = input.split_to(left.min(input.len())).freeze();
        let left = left - data.len();
        self.partial = (left > 0).then_some((id, left, fin));
        Some(Frame::Data { id, fin: fin && left == 0, data })
    }

    fn control(&mut self, kind: u16, flags: u8, mut body: &[u8]) -> Result<Frame, StreamError> {
        let fin = flags & FLAG_FIN != 0;
        let invalid = || StreamError::Protocol("invalid control frame".into());
        match kind {
            SYN_STREAM => {
                if body.len() < 10 {
                    return Err(invalid());
                }
                let id = stream_id(&mut body)?;
                let associated = body.get_u32() & 0x7fff_ffff;
                let priority = body.get_u8() >> 5;
                body.advance(1);
                let headers = self.inflate.decode(body)?;
                let unidirectional = flags & FLAG_UNIDIRECTIONAL != 0;
                Ok(Frame::SynStream { id, associated, priority, fin, unidirectional, headers })
            }
            SYN_REPLY | HEADERS => {
                let id = stream_id(&mut body)?;
                let headers = self.inflate.decode(body)?;
                if kind == SYN_REPLY {
                    return Ok(Frame::SynReply { id, fin, headers });
                }
                Ok(Frame::Headers { id, fin, headers })
            }
            RST_STREAM | WINDOW_UPDATE | GOAWAY => {
                if body.len() != 8 {
                    return Err(invalid());
                }
                let id = body.get_u32() & 0x7fff_ffff;
                let value = body.get_u32();
                match kind {
                    GOAWAY => Ok(Frame::GoAway { last_good: id, status: value }),
                    WINDOW_UPDATE => Ok(Frame::WindowUpdate { id, delta: value & 0x7fff_ffff }),
                    _ if id == 0 || value == 0 => Err(invalid()),
                    _ => Ok(Frame::RstStream { id, status: value }),
                }
            }
            SETTINGS => {
                let count = if body.len() < 4 { return Err(invalid()) } else { body.get_u32() as usize };
                if count > body.len() / 8 {
                    return Err(invalid());
                }
                Ok(Frame::Settings((0..count).map(|_| (body.get_u32() & 0x00ff_ffff, body.get_u32())).collect()))
            }
            PING if body.len() == 4 => match body.get_u32() {
                0 => Err(invalid()),
                id => Ok(Frame::Ping(id)),
            },
            _ => Err(invalid()),
        }
    }
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::new()
    }
}

fn stream_id(body: &mut &[u8]) -> Result<u32, StreamError> {
    if body.len() < 4 {
        return Err(StreamError::Protocol("invalid control frame".into()));
    }
    match body.get_u32() & 0x7fff_ffff {
        0 => Err(StreamError::Protocol("stream id zero is disallowed".into())),
        id => Ok(id),
    }
}

/// Appends a control frame. `Data` frames are written by [`put_data_header`] without copying their payload.
pub fn encode(frame: &Frame, deflate: &mut HeaderCompressor, out: &mut BytesMut) -> Result<(), StreamError> {
    let mut body = Vec::new();
    let fin_flag = |fin: bool| if fin { FLAG_FIN } else { 0 };
    let (kind, flags) = match frame {
        Frame::SynStream { id, associated, priority, fin, unidirectional, headers } => {
            body.put_u32(*id);
            body.put_u32(*associated);
            body.put_u8(priority << 5);
            body.put_u8(0);
            deflate.encode(headers, &mut body)?;
            (SYN_STREAM, fin_flag(*fin) | if *unidirectional { FLAG_UNIDIRECTIONAL } else { 0 })
        }
        Frame::SynReply { id, fin, headers } => {
            body.put_u32(*id);
            deflate.encode(headers, &mut body)?;
            (SYN_REPLY, fin_flag(*fin))
        }
        Frame::Headers { id, fin, headers } => {
            body.put_u32(*id);
            deflate.encode(headers, &mut body)?;
            (HEADERS, fin_flag(*fin))
        }
        Frame::RstStream { id, status } => {
            body.put_u32(*id);
            body.put_u32(*status);
            (RST_STREAM, 0)
        }
        Frame::Settings(entries) => {
            body.put_u32(entries.len() as u32);
            for (id, value) in entries {
                body.put_u32(*id);
                body.put_u32(*value);
            }
            (SETTINGS, 0)
        }
        Frame::Ping(id) => {
            body.put_u32(*id);
            (PING, 0)
        }
        Frame::GoAway { last_good, status } => {
            body.put_u32(*last_good);
            body.put_u32(*status);
            (GOAWAY, 0)
        }
        Frame::WindowUpdate { id, delta } => {
            body.put_u32(*id);
            body.put_u32(*delta);
            (WINDOW_UPDATE, 0)
        }
        Frame::Data { id, fin, data } => {
            put_data_header(*id, *fin, data.len(), out);
            out.extend_from_slice(data);
            return Ok(());
        }
    };
    out.put_u32(0x8000_0000 | u32::from(VERSION) << 16 | u32::from(kind));
    out.put_u32(u32::from(flags) << 24 | body.len() as u32);
    out.extend_from_slice(&body);
    Ok(())
}

/// Appends the header of a data frame. Its payload of `length` bytes (below 2^24) follows.
pub fn put_data_header(id: u32, fin: bool, length: usize, out: &mut BytesMut) {
    out.put_u32(id);
    out.put_u32(u32::from(if fin { FLAG_FIN } else { 0 }) << 24 | length as u32);
}
