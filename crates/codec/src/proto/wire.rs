//! The protobuf wire format: a bounded reader, and a buffer that is filled from its end, so that a message's length is known when it is
//! written.
use crate::DecodeError;

/// The nesting depth of groups that are skipped.
const GROUP_DEPTH_MAX: usize = 64;

/// The encoding of a field's bytes ("wire types" in the protobuf encoding). Groups are only skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    Bytes,
    GroupStart,
    GroupEnd,
    Fixed32,
}

impl Wire {
    fn number(self) -> u64 {
        match self {
            Wire::Varint => 0,
            Wire::Fixed64 => 1,
            Wire::Bytes => 2,
            Wire::GroupStart => 3,
            Wire::GroupEnd => 4,
            Wire::Fixed32 => 5,
        }
    }
}

/// Reads one message.
pub(super) struct Reader<'a> {
    data: &'a [u8],
    pos: usize,
}

fn eof() -> DecodeError {
    DecodeError::Proto("unexpected EOF".into())
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0 }
    }

    pub(super) fn at_end(&self) -> bool {
        self.pos >= self.data.len()
    }

    /// The next field's number and wire type, or `None` at the end.
    pub(super) fn tag(&mut self) -> Result<Option<(u32, Wire)>, DecodeError> {
        if self.at_end() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            3 => Wire::GroupStart,
            4 => Wire::GroupEnd,
            5 => Wire::Fixed32,
            other => return Err(DecodeError::Proto(format!("proto: illegal wireType {other}"))),
        };
        match u32::try_from(tag >> 3) {
            Ok(number) if number > 0 => Ok(Some((number, wire))),
            _ => Err(DecodeError::Proto(format!("proto: illegal tag {} (wire type {})", tag >> 3, tag & 7))),
        }
    }

    pub(super) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.data.get(self.pos).ok_or_else(eof)?;
            self.pos += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Proto("proto: integer overflow".into()))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.varint()?)
            .map_err(|_| DecodeError::Proto("proto: negative length found during unmarshaling".into()))?;
        let end = self.pos.checked_add(length).filter(|end| *end <= self.data.len()).ok_or_else(eof)?;
        let bytes = &self.data[self.pos..end];
        self.pos = end;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| DecodeError::Proto("proto: string field contains invalid UTF-8".into()))
    }

    pub(super) fn fixed64(&mut self) -> Result<u64, DecodeError> {
        let bytes = self.data.get(self.pos..).and_then(|d| d.first_chunk::<8>()).ok_or_else(eof)?;
        self.pos += 8;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Skips the value of a field.
    pub(super) fn skip(&mut self, wire: Wire) -> Result<(), DecodeError> {
        self.skip_nested(wire, 0)
    }

    fn skip_nested(&mut self, wire: Wire, depth: usize) -> Result<(), DecodeError> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.fixed64().map(drop),
            Wire::Bytes => self.bytes().map(drop),
            Wire::Fixed32 => {
                self.data.get(self.pos..).and_then(|d| d.first_chunk::<4>()).ok_or_else(eof)?;
                self.pos += 4;
                Ok(())
            }
            Wire::GroupStart if depth < GROUP_DEPTH_MAX => loop {
                match self.tag()?.ok_or_else(eof)?.1 {
                    Wire::GroupEnd => return Ok(()),
                    wire => self.skip_nested(wire, depth + 1)?,
                }
            },
            Wire::GroupStart => Err(DecodeError::TooDeep),
            Wire::GroupEnd => Err(DecodeError::Proto("proto: unexpected end of group".into())),
        }
    }
}

/// A buffer that is written from its end towards its start.
pub(super) struct RevBuf {
    data: Vec<u8>,
    start: usize,
}

impl RevBuf {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(64);
        Self { data: vec![0; capacity], start: capacity }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.data[self.start..]
    }

    pub(super) fn into_vec(mut self) -> Vec<u8> {
        self.data.drain(..self.start);
        self.data
    }

    /// Drops what was written, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.start = self.data.len();
    }

    /// The number of bytes written so far.
    pub(super) fn mark(&self) -> usize {
        self.data.len() - self.start
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        if self.start < bytes.len() {
            self.grow(bytes.len());
        }
        self.start -= bytes.len();
        self.data[self.start..self.start + bytes.len()].copy_from_slice(bytes);
    }

    fn grow(&mut self, need: usize) {
        let written = self.mark();
        let capacity = (self.data.len() * 2).max(written + need);
        let mut data = vec![0; capacity];
        data[capacity - written..].copy_from_slice(self.as_slice());
        self.data = data;
        self.start = capacity - written;
    }

    pub(super) fn varint(&mut self, mut value: u64) {
        let mut bytes = [0u8; 10];
        let mut len = 0;
        loop {
            bytes[len] = value as u8 & 0x7f | if value >= 0x80 { 0x80 } else { 0 };
            len += 1;
            value >>= 7;
            if value == 0 {
                break;
            }
        }
        self.raw(&bytes[..len]);
    }

    pub(super) fn tag(&mut self, number: u32, wire: Wire) {
        self.varint(u64::from(number) << 3 | wire.number());
    }

    /// Writes the length and the tag before everything that was written since the mark.
    pub(super) fn close(&mut self, number: u32, mark: usize) {
        self.varint((self.mark() - mark) as u64);
        self.tag(number, Wire::Bytes);
    }

    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.raw(bytes);
        self.varint(bytes.len() as u64);
        self.tag(number, Wire::Bytes);
    }

    pub(super) fn text(&mut self, number: u32, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    pub(super) fn int(&mut self, number: u32, value: i64) {
        self.varint(value as u64);
        self.tag(number, Wire::Varint);
    }

    pub(super) fn double(&mut self, number: u32, value: f64) {
        self.raw(&value.to_le_bytes());
        self.tag(number, Wire::Fixed64);
    }
}
