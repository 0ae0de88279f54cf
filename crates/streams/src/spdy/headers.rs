//! Header blocks: one zlib stream per direction for the whole life of a connection. `frame` implements the framing.

use std::fmt;

use bytes::BufMut;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::dictionary;
use crate::error::StreamError;

/// The size limit of an inflated header block, in bytes.
pub const HEADER_BLOCK_BYTES_MAX: usize = 64 * 1024;
/// The limit of names in a header block.
pub const HEADER_COUNT_MAX: u32 = 256;
/// The number of bytes that are inflated or deflated in one step.
const STEP_BYTES: usize = 4 * 1024;

/// The headers of a stream: names in lower case, in the order of the wire. A name with several values has several
/// entries.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Makes an empty block. Data streams without metadata are opened with it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one value. The name is converted to lower case, as the wire requires.
    pub fn add(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_ascii_lowercase(), value.into()));
    }

    /// Returns the headers with one value added.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.add(name, value);
        self
    }

    /// Returns the first value of a name in any case. Empty values count as absent, as in upstream.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, value))).finish()
    }
}

/// Compresses the header blocks of one direction.
pub struct HeaderCompressor(Compress);

impl HeaderCompressor {
    /// Starts a zlib stream with the dictionary.
    pub fn new() -> Result<Self, StreamError> {
        // Peers inflate with the default window. Blocks are tiny, so a fast level compresses equally well.
        let mut compress = Compress::new(Compression::fast(), true);
        compress.set_dictionary(dictionary()).map_err(|error| StreamError::Protocol(error.to_string()))?;
        Ok(Self(compress))
    }

    /// Appends the compressed block to `out`, flushed to a byte boundary so that the peer can inflate all of it.
    pub fn encode(&mut self, headers: &Headers, out: &mut Vec<u8>) -> Result<(), StreamError> {
        let mut plain = Vec::with_capacity(128);
        let mut names: Vec<(&str, String)> = Vec::new();
        for (name, value) in &headers.0 {
            match names.iter_mut().find(|(known, _)| known == name) {
                Some((_, joined)) => {
                    joined.push('\0');
                    joined.push_str(value);
                }
                None => names.push((name, value.clone())),
            }
        }
        plain.put_u32(names.len() as u32);
        for (name, value) in names {
            plain.put_u32(name.len() as u32);
            plain.extend_from_slice(name.as_bytes());
            plain.put_u32(value.len() as u32);
            plain.extend_from_slice(value.as_bytes());
        }
        let mut input = plain.as_slice();
        loop {
            out.reserve(STEP_BYTES);
            let before = self.0.total_in();
            let status = self
                .0
                .compress_vec(input, out, FlushCompress::Sync)
                .map_err(|error| StreamError::Protocol(error.to_string()))?;
            input = &input[(self.0.total_in() - before) as usize..];
            // The flush is complete once zlib leaves room in the output.
            if input.is_empty() && (out.len() < out.capacity() || status == Status::BufError) {
                return Ok(());
            }
        }
    }
}

/// Decompresses the header blocks of one direction. Every block of the connection must pass through it, including those
/// of rejected streams.
pub struct HeaderDecompressor(Decompress);

impl HeaderDecompressor {
    /// Starts a zlib stream. The dictionary is set when the first block requires it.
    pub fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// Inflates and parses one block.
    pub fn decode(&mut self, block: &[u8]) -> Result<Headers, StreamError> {
        let plain = self.inflate(block)?;
        parse(&plain)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, StreamError> {
        let mut plain = Vec::new();
        loop {
            if plain.len() > HEADER_BLOCK_BYTES_MAX {
                return Err(StreamError::Limit("inflated SPDY header block"));
            }
            plain.reserve(STEP_BYTES);
            let (read, written) = (self.0.total_in(), self.0.total_out());
            let outcome = self.0.decompress_vec(block, &mut plain, FlushDecompress::Sync);
            block = &block[((self.0.total_in() - read) as usize).min(block.len())..];
            match outcome {
                Ok(Status::StreamEnd) => return Err(StreamError::Protocol("header compression ended".into())),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(dictionary()).map_err(|error| StreamError::Protocol(error.to_string()))?;
                    continue;
                }
                Err(error) => return Err(StreamError::Protocol(format!("header block: {error}"))),
            }
            let moved = self.0.total_in() > read || self.0.total_out() > written;
            if plain.len() < plain.capacity() && (block.is_empty() || !moved) {
                if !block.is_empty() {
                    return Err(StreamError::Protocol("compressed payload size was incorrect".into()));
                }
                return Ok(plain);
            }
        }
    }
}

impl Default for HeaderDecompressor {
    fn default() -> Self {
        Self::new()
    }
}

fn parse(mut plain: &[u8]) -> Result<Headers, StreamError> {
    let short = || StreamError::Protocol("header block is truncated".into());
    let count = take_u32(&mut plain).ok_or_else(short)?;
    if count > HEADER_COUNT_MAX {
        return Err(StreamError::Limit("SPDY header count"));
    }
    let mut headers = Headers::new();
    for _ in 0..count {
        let name = take_text(&mut plain).ok_or_else(short)?;
        let value = take_text(&mut plain).ok_or_else(short)?;
        for part in value.split('\0') {
            headers.add(&name, part);
        }
    }
    Ok(headers)
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    let (head, rest) = input.split_first_chunk::<4>()?;
    *input = rest;
    Some(u32::from_be_bytes(*head))
}

fn take_text(input: &mut &[u8]) -> Option<String> {
    let length = take_u32(input)? as usize;
    let (text, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_share_one_compression_state() {
        let mut compressor = HeaderCompressor::new().expect("compressor");
        let mut decompressor = HeaderDecompressor::new();
        for round in 0..50 {
            let headers = Headers::new()
                .with("streamType", "data")
                .with("port", "8080")
                .with("requestID", round.to_string())
                .with("many", "a")
                .with("many", "b");
            let mut block = Vec::new();
            compressor.encode(&headers, &mut block).expect("encode");
            assert_eq!(decompressor.decode(&block).expect("decode"), headers);
        }
    }

    #[test]
    fn empty_blocks_and_long_values_pass() {
        let mut compressor = HeaderCompressor::new().expect("compressor");
        let mut decompressor = HeaderDecompressor::new();
        let mut state = 1u64;
        let long: String = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(b'!' + (state >> 58) as u8)
            })
            .collect();
        for headers in [Headers::new(), Headers::new().with("x", long), Headers::new()] {
            let mut block = Vec::new();
            compressor.encode(&headers, &mut block).expect("encode");
            assert_eq!(decompressor.decode(&block).expect("decode"), headers);
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let mut compressor = HeaderCompressor::new().expect("compressor");
        let mut block = Vec::new();
        compressor.encode(&Headers::new().with("x", "a".repeat(4 << 20)), &mut block).expect("encode");
        assert!(block.len() < 64 * 1024);
        let error = HeaderDecompressor::new().decode(&block).expect_err("too large");
        assert!(matches!(error, StreamError::Limit(_)));
    }
}
