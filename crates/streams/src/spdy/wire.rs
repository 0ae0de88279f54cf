//! SPDY/3.1 for the multiplexer: converts frames to events and back. `frame` implements the framing.

use bytes::{BufMut, Bytes, BytesMut};

use super::frame::{self, Frame, FrameDecoder};
use super::headers::{HeaderCompressor, Headers};
use crate::error::StreamError;
use crate::mux::{Decode, Encode, Inbound, Outbound};

/// Payloads up to this size are copied after their header, so that several frames take one write.
const GATHER_BYTES: usize = 4 * 1024;

/// The reading half.
pub(crate) struct SpdyDecode {
    frames: FrameDecoder,
    client: bool,
}

impl SpdyDecode {
    pub(crate) fn new(client: bool) -> Self {
        Self { frames: FrameDecoder::new(), client }
    }
}

impl Decode for SpdyDecode {
    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Inbound>, StreamError> {
        let Some(frame) = self.frames.decode(input)? else { return Ok(None) };
        Ok(Some(match frame {
            Frame::SynStream { id, fin, headers, .. } => Inbound::Open { id, headers, fin },
            Frame::SynReply { id, fin, .. } => Inbound::Reply { id, fin },
            Frame::RstStream { id, .. } => Inbound::Reset { id },
            Frame::Headers { id, fin, .. } => Inbound::Data { id, data: Bytes::new(), fin },
            Frame::Data { id, fin, data } => Inbound::Data { id, data, fin },
            // Clients use odd ping identifiers and servers even ones. A ping with the peer's parity must be sent back.
            Frame::Ping(id) if (id % 2 == 1) == self.client => Inbound::Pong,
            Frame::Ping(id) => Inbound::Ping(Bytes::copy_from_slice(&id.to_be_bytes())),
            Frame::GoAway { .. } => Inbound::GoAway,
            Frame::Settings(_) | Frame::WindowUpdate { .. } => Inbound::Nothing,
        }))
    }
}

/// The writing half.
pub(crate) struct SpdyEncode {
    deflate: HeaderCompressor,
    next_ping: u32,
}

impl SpdyEncode {
    pub(crate) fn new(client: bool) -> Result<Self, StreamError> {
        Ok(Self { deflate: HeaderCompressor::new()?, next_ping: if client { 1 } else { 2 } })
    }
}

impl Encode for SpdyEncode {
    fn control(&mut self, frame: Outbound, out: &mut BytesMut) -> Result<(), StreamError> {
        let frame = match frame {
            Outbound::Open { id, headers } => {
                Frame::SynStream { id, associated: 0, priority: 0, fin: false, unidirectional: false, headers }
            }
            Outbound::Reply { id } => Frame::SynReply { id, fin: false, headers: Headers::new() },
            Outbound::Reset { id, status } => Frame::RstStream { id, status },
            Outbound::Ping => {
                let id = self.next_ping;
                self.next_ping = if id > 0x7fff_fff0 { 2 - id % 2 } else { id + 2 };
                Frame::Ping(id)
            }
            Outbound::Pong(data) => {
                out.put_slice(&[0x80, 3, 0, 6, 0, 0, 0, 4]);
                out.put_slice(&data);
                return Ok(());
            }
            Outbound::GoAway { last_good, error } => Frame::GoAway { last_good, status: u32::from(error) },
        };
        frame::encode(&frame, &mut self.deflate, out)
    }

    fn data(&mut self, id: u32, data: Bytes, out: &mut BytesMut) -> Option<Bytes> {
        if data.is_empty() {
            return None;
        }
        frame::put_data_header(id, false, data.len(), out);
        if data.len() > GATHER_BYTES {
            return Some(data);
        }
        out.put_slice(&data);
        None
    }

    fn fin(&mut self, id: u32, out: &mut BytesMut) {
        frame::put_data_header(id, true, 0, out);
    }
}
