//! The content of a file in the age format: chunks of 64 KiB, each encrypted and authenticated with its position and with
//! whether it is the last one, so that chunks can be neither moved nor cut off (STREAM, as the age specification describes it).

use std::io::{self, Read, Write};

use ring::aead::{Aad, LessSafeKey, Nonce};
use zeroize::Zeroizing;

use crate::error::BundleError;
use crate::header::{self, PayloadKey};

/// The length of the content of a chunk in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The length of the tag of a chunk in bytes.
const TAG_BYTES: usize = 16;

/// The nonce of a chunk: its position in 11 bytes, and one for the last chunk.
fn nonce(position: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&position.to_be_bytes());
    bytes[11] = u8::from(is_last);
    Nonce::assume_unique_for_key(bytes)
}

/// Encrypts what is written to it.
pub(crate) struct Encrypting<W> {
    to: W,
    cipher: LessSafeKey,
    position: u64,
    chunk: Zeroizing<Vec<u8>>,
}

impl<W: Write> Encrypting<W> {
    pub fn new(to: W, key: &PayloadKey) -> Result<Self, BundleError> {
        let chunk = Zeroizing::new(Vec::with_capacity(CHUNK_BYTES + TAG_BYTES));
        Ok(Self { to, cipher: header::cipher(&**key)?, position: 0, chunk })
    }

    fn put(&mut self, is_last: bool) -> io::Result<()> {
        let sealed =
            self.cipher.seal_in_place_append_tag(nonce(self.position, is_last), Aad::empty(), &mut *self.chunk);
        sealed.map_err(|_| BundleError::Crypto("encrypt a chunk"))?;
        self.to.write_all(&self.chunk)?;
        self.chunk.clear();
        self.position += 1;
        Ok(())
    }

    /// Writes the last chunk and returns the target.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(true)?;
        self.to.flush()?;
        Ok(self.to)
    }
}

impl<W: Write> Write for Encrypting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is kept until more follows, since the last one is marked.
        if self.chunk.len() == CHUNK_BYTES && !bytes.is_empty() {
            self.put(false)?;
        }
        let n = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decrypts what is read from it. Its end is the authenticated end of the content.
pub(crate) struct Decrypting<R> {
    from: R,
    cipher: LessSafeKey,
    position: u64,
    is_ended: bool,
    /// The first byte of the next chunk, by which a chunk is known not to be the last.
    next: Option<u8>,
    content: Zeroizing<Vec<u8>>,
    at: usize,
}

impl<R: Read> Decrypting<R> {
    pub fn new(from: R, key: &PayloadKey) -> Result<Self, BundleError> {
        let content = Zeroizing::new(Vec::with_capacity(CHUNK_BYTES + TAG_BYTES));
        let cipher = header::cipher(&**key)?;
        Ok(Self { from, cipher, position: 0, is_ended: false, next: None, content, at: 0 })
    }

    fn chunk(&mut self) -> io::Result<()> {
        self.at = 0;
        self.content.clear();
        self.content.extend(self.next.take());
        let room = (CHUNK_BYTES + TAG_BYTES - self.content.len()) as u64;
        (&mut self.from).take(room).read_to_end(&mut self.content)?;
        let mut more = Vec::with_capacity(1);
        (&mut self.from).take(1).read_to_end(&mut more)?;
        self.next = more.first().copied();
        let is_last = self.next.is_none();
        let opened = self.cipher.open_in_place(nonce(self.position, is_last), Aad::empty(), &mut self.content);
        let length = match opened {
            Ok(content) => content.len(),
            Err(_) if is_last => {
                return Err(BundleError::Damaged("it is truncated, or its end has changed".to_owned()).into());
            }
            Err(_) => return Err(BundleError::Damaged(format!("chunk {} has changed", self.position)).into()),
        };
        if length == 0 && self.position > 0 {
            return Err(BundleError::Damaged("its last chunk is empty".to_owned()).into());
        }
        self.content.truncate(length);
        self.position += 1;
        self.is_ended = is_last;
        Ok(())
    }
}

impl<R: Read> Read for Decrypting<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.at == self.content.len() && !self.is_ended {
            self.chunk()?;
        }
        let n = to.len().min(self.content.len() - self.at);
        to[..n].copy_from_slice(&self.content[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::key::Passphrase;

    /// Written by the program age 1.1.1 with the passphrase `correct horse`.
    const OF_AGE: &str = "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNjcnlwdCBrRDA1eWMyb3UrdEE3UmZYVW1hWk1nIDE4CjlEaVNjUXN6RmJUemZZMndBWjJvVjJHeH\
        NDc3hFV3V1L2tJdDNWZ05icXcKLS0tIFE5RXM1Z2FxSjM3N1QyMVdCRlN3Vk5NbytUQzNNK3J4bEU1UmZPdkJBNVkK6nCweetwjzcFoYbPtrUmznfgsNiFnI9XhM3j1gDZu\
        gBw2yUufGK7yTW/021U6QE=";

    #[test]
    fn a_file_of_the_age_tool_is_read() {
        let file = STANDARD.decode(OF_AGE).unwrap();
        let passphrase = Passphrase::chosen("correct horse").unwrap();
        let mut from = &file[..];
        let key = header::read(&mut from, &passphrase).unwrap();
        let mut text = String::new();
        Decrypting::new(from, &key).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello from age\n");
    }
}
