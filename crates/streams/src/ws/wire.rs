//! The channel subprotocols for the multiplexer: the first byte of a message is its channel. `frame` implements RFC
//! 6455. Upstream: `wsstream/conn.go`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Role;
use super::frame::{CLOSE_NORMAL, CLOSE_PROTOCOL_ERROR, Decoder, Event, Opcode, put_frame, put_header};
use crate::error::StreamError;
use crate::mux::{Decode, Encode, Inbound, Outbound};

/// The channel of a message that ends the channel in its second byte (`v5.channel.k8s.io`).
const CLOSE_SIGNAL: u8 = 255;
/// The size limit of a base64 message, which must be buffered as a whole.
const BASE64_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Payloads up to this size are copied after their header, so that several messages take one write.
const GATHER_BYTES: usize = 4 * 1024;

/// The encoding of messages in a subprotocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelFormat {
    /// Whether messages are text with base64 content, and the channel is a digit.
    pub base64: bool,
    /// Whether the client can end a channel by a message.
    pub close_signal: bool,
}

/// The reading half.
pub(crate) struct ChannelDecode {
    frames: Decoder,
    format: ChannelFormat,
    /// The channel of the message being read.
    channel: Option<u8>,
    /// The buffered part of a message: base64, or a close signal without its channel.
    held: Vec<u8>,
}

impl ChannelDecode {
    pub(crate) fn new(role: Role, format: ChannelFormat) -> Self {
        Self { frames: Decoder::new(role), format, channel: None, held: Vec::new() }
    }

    fn message(&mut self, mut data: Bytes, last: bool) -> Result<Inbound, StreamError> {
        let mut channel = self.channel;
        if channel.is_none() && !data.is_empty() {
            channel = Some(data.get_u8());
        }
        self.channel = if last { None } else { channel };
        let Some(channel) = channel else { return Ok(Inbound::Nothing) };
        if !self.format.base64 && !(self.format.close_signal && channel == CLOSE_SIGNAL) {
            return Ok(Inbound::Data { id: channel.into(), data, fin: false });
        }
        if self.held.len() + data.len() > BASE64_MESSAGE_BYTES_MAX {
            return Err(StreamError::Limit("websocket message that must be held whole"));
        }
        self.held.extend_from_slice(&data);
        if !last {
            return Ok(Inbound::Nothing);
        }
        let mut held = std::mem::take(&mut self.held);
        if !self.format.base64 {
            let [target] = held[..] else {
                return Err(StreamError::Protocol("single channel byte should follow stream close signal".into()));
            };
            return Ok(Inbound::Data { id: target.into(), data: Bytes::new(), fin: true });
        }
        held.retain(|byte| !matches!(byte, b'\r' | b'\n'));
        match STANDARD.decode(&held) {
            Ok(plain) => Ok(Inbound::Data { id: channel.wrapping_sub(b'0').into(), data: plain.into(), fin: false }),
            Err(error) => {
                // As in upstream, the message is dropped and the connection continues.
                tracing::debug!(%error, "websocket message is not base64");
                Ok(Inbound::Nothing)
            }
        }
    }
}

impl Decode for ChannelDecode {
    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Inbound>, StreamError> {
        let Some(event) = self.frames.decode(input)? else { return Ok(None) };
        Ok(Some(match event {
            Event::Message { data, last, .. } => self.message(data, last)?,
            Event::Ping(data) => Inbound::Ping(data),
            Event::Pong(_) => Inbound::Pong,
            Event::Close(_) => Inbound::Close,
        }))
    }
}

/// The writing half.
pub(crate) struct ChannelEncode {
    role: Role,
    format: ChannelFormat,
}

impl ChannelEncode {
    pub(crate) fn new(role: Role, format: ChannelFormat) -> Self {
        Self { role, format }
    }
}

impl Encode for ChannelEncode {
    fn control(&mut self, frame: Outbound, out: &mut BytesMut) -> Result<(), StreamError> {
        match frame {
            Outbound::Ping => put_frame(self.role, Opcode::Ping, &[], out),
            Outbound::Pong(data) => put_frame(self.role, Opcode::Pong, &[&data], out),
            Outbound::GoAway { error, .. } => {
                let code = if error { CLOSE_PROTOCOL_ERROR } else { CLOSE_NORMAL };
                put_frame(self.role, Opcode::Close, &[&code.to_be_bytes()], out);
            }
            // Channels are neither opened nor reset.
            Outbound::Open { .. } | Outbound::Reply { .. } | Outbound::Reset { .. } => {}
        }
        Ok(())
    }

    fn data(&mut self, id: u32, data: Bytes, out: &mut BytesMut) -> Option<Bytes> {
        let channel = id as u8;
        if self.format.base64 {
            let text = STANDARD.encode(&data);
            put_frame(self.role, Opcode::Text, &[&[b'0' + channel], text.as_bytes()], out);
            return None;
        }
        if self.role == Role::Client || data.len() <= GATHER_BYTES {
            put_frame(self.role, Opcode::Binary, &[&[channel], &data], out);
            return None;
        }
        put_header(self.role, Opcode::Binary, data.len() + 1, out);
        out.put_u8(channel);
        Some(data)
    }

    fn fin(&mut self, id: u32, out: &mut BytesMut) {
        // Servers never send the signal: client-go treats it as an unknown channel and prints a warning on the
        // terminal.
        if self.format.close_signal && self.role == Role::Client {
            put_frame(self.role, Opcode::Binary, &[&[CLOSE_SIGNAL, id as u8]], out);
        }
    }
}
