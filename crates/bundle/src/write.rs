//! Writing of bundles.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::archive::{self, BLOCK_BYTES, ENTRIES_MAX, SUMS, TOTAL_BYTES_MAX};
use crate::error::BundleError;
use crate::header;
use crate::key::Passphrase;
use crate::manifest::{MANIFEST, Manifest};
use crate::name;
use crate::stream::Encrypting;

/// The largest part of a file in memory.
const COPY_BUFFER_BYTES: usize = 256 << 10;

enum Target<W> {
    Sealed(Box<Encrypting<W>>),
    Unsealed(W),
}

impl<W: Write> Target<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), BundleError> {
        let written = match self {
            Self::Sealed(to) => to.write_all(bytes),
            Self::Unsealed(to) => to.write_all(bytes),
        };
        written.map_err(BundleError::io("write the bundle"))
    }
}

/// Writes a bundle entry by entry. Without [`Writer::finish`] the result is truncated, which every reader notices.
pub struct Writer<W> {
    to: Target<W>,
    names: BTreeSet<String>,
    sums: String,
    total: u64,
    seconds: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a bundle, sealed with a passphrase if there is one.
    ///
    /// # Errors
    /// The target cannot be written.
    pub fn new(mut to: W, passphrase: Option<&Passphrase>, manifest: &Manifest) -> Result<Self, BundleError> {
        let to = match passphrase {
            Some(passphrase) => {
                let key = header::write(&mut to, passphrase)?;
                Target::Sealed(Box::new(Encrypting::new(to, &key)?))
            }
            None => Target::Unsealed(to),
        };
        let seconds = u64::try_from(manifest.created.as_second()).unwrap_or_default();
        let mut writer = Self { to, names: BTreeSet::new(), sums: String::new(), total: 0, seconds };
        let text = serde_json::to_vec_pretty(manifest).map_err(|e| BundleError::Malformed(e.to_string()))?;
        writer.add_bytes(MANIFEST, &text)?;
        Ok(writer)
    }

    /// Adds an entry from memory.
    ///
    /// # Errors
    /// The name is invalid or was used before; a limit is exceeded; the target cannot be written.
    pub fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), BundleError> {
        self.add(name, bytes.len() as u64, bytes)
    }

    /// Adds the content of a file, which must not change meanwhile.
    ///
    /// # Errors
    /// As of [`Writer::add_bytes`]; the file cannot be read or its size has changed.
    pub fn add_file(&mut self, name: &str, path: &Path) -> Result<(), BundleError> {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (bytes, file) = opened.map_err(BundleError::io(path.display().to_string()))?;
        self.add(name, bytes, file)
    }

    fn add(&mut self, name: &str, bytes: u64, mut from: impl Read) -> Result<(), BundleError> {
        name::path(Path::new(""), name)?;
        if name == SUMS || !self.names.insert(name.to_owned()) {
            return Err(BundleError::Name(name.to_owned()));
        }
        self.total = self.total.saturating_add(bytes);
        let limits = [("entries", self.names.len() as u64, ENTRIES_MAX as u64), ("bytes", self.total, TOTAL_BYTES_MAX)];
        for (what, found, limit) in limits {
            if found > limit {
                return Err(BundleError::Limit { what: format!("the number of {what}"), found, limit });
            }
        }
        let digest = self.put(name, bytes, &mut from)?;
        // Writing to a string does not fail.
        let _ = writeln!(self.sums, "{}  {name}", hex(&digest));
        Ok(())
    }

    fn put(&mut self, name: &str, bytes: u64, from: &mut impl Read) -> Result<[u8; 32], BundleError> {
        self.to.put(archive::header(name, bytes, self.seconds)?.as_bytes())?;
        let mut buffer = vec![0; COPY_BUFFER_BYTES.min(usize::try_from(bytes).unwrap_or(COPY_BUFFER_BYTES))];
        let (mut digest, mut left) = (Sha256::new(), bytes);
        while left > 0 {
            let n = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            from.read_exact(&mut buffer[..n]).map_err(BundleError::io(format!("read {name}")))?;
            digest.update(&buffer[..n]);
            self.to.put(&buffer[..n])?;
            left -= n as u64;
        }
        self.to.put(&[0; BLOCK_BYTES][..archive::padding(bytes)])?;
        Ok(digest.finalize().into())
    }

    /// Writes the digests and the end, and returns the target, which the caller syncs.
    ///
    /// # Errors
    /// The target cannot be written.
    pub fn finish(mut self) -> Result<W, BundleError> {
        let sums = std::mem::take(&mut self.sums);
        self.put(SUMS, sums.len() as u64, &mut sums.as_bytes())?;
        self.to.put(&[0; 2 * BLOCK_BYTES])?;
        match self.to {
            Target::Sealed(to) => to.finish().map_err(BundleError::io("write the bundle")),
            Target::Unsealed(mut to) => to.flush().map(|()| to).map_err(BundleError::io("write the bundle")),
        }
    }
}

/// Returns bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        // Writing to a string does not fail.
        let _ = write!(out, "{b:02x}");
        out
    })
}
