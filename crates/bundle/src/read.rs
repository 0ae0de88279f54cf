//! Reading of bundles.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::path::Path;

use kelson_platform::files;
use sha2::{Digest as _, Sha256};

use crate::archive::{self, BLOCK_BYTES, ENTRIES_MAX, SUMS, SUMS_BYTES_MAX, TOTAL_BYTES_MAX};
use crate::error::BundleError;
use crate::header::{self, MAGIC};
use crate::key::Passphrase;
use crate::manifest::{MANIFEST, MANIFEST_BYTES_MAX, Manifest};
use crate::name;
use crate::stream::Decrypting;
use crate::write::hex;

/// The largest part of a file in memory.
const COPY_BUFFER_BYTES: usize = 256 << 10;

/// An entry that was extracted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, which is the path below the directory.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// The content of a bundle that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extracted {
    /// The manifest in the bundle.
    pub manifest: Manifest,
    /// All entries but the digests, in their order.
    pub entries: Vec<Entry>,
}

/// Reports whether a file is sealed.
///
/// # Errors
/// The file cannot be read.
pub fn is_sealed(file: &Path) -> Result<bool, BundleError> {
    let mut first = Vec::with_capacity(MAGIC.len());
    let read = File::open(file).and_then(|f| f.take(MAGIC.len() as u64).read_to_end(&mut first));
    read.map_err(BundleError::io(file.display().to_string()))?;
    Ok(first == MAGIC)
}

/// Writes the entries of a bundle below an empty directory, each synced and readable by its owner only. Sealed bundles need
/// their passphrase; unsealed ones are read without one. After an error the directory has a part of the content that must not
/// be used.
///
/// # Errors
/// [`BundleError`] with what is wrong with the bundle; the directory cannot be written.
pub fn extract(mut from: impl Read, passphrase: Option<&Passphrase>, dir: &Path) -> Result<Extracted, BundleError> {
    let mut first = Vec::with_capacity(MAGIC.len());
    (&mut from).take(MAGIC.len() as u64).read_to_end(&mut first).map_err(BundleError::io("read the bundle"))?;
    let is_sealed = first == MAGIC;
    let mut from = std::io::Cursor::new(first).chain(from);
    if !is_sealed {
        return unpack(&mut from, dir);
    }
    let key = header::read(&mut from, passphrase.ok_or(BundleError::Sealed)?)?;
    unpack(&mut Decrypting::new(from, &key)?, dir)
}

fn unpack(from: &mut impl Read, dir: &Path) -> Result<Extracted, BundleError> {
    let mut sums: BTreeMap<String, String> = BTreeMap::new();
    let (mut entries, mut manifest, mut total) = (Vec::new(), None, 0_u64);
    loop {
        let Some((name, bytes)) = archive::next(from)? else { return Err(BundleError::Truncated) };
        if name == SUMS {
            let text = small(from, &name, bytes, SUMS_BYTES_MAX)?;
            compare(&text, &sums)?;
            break;
        }
        total = total.saturating_add(bytes);
        let limits = [("entries", entries.len() as u64 + 1, ENTRIES_MAX as u64), ("bytes", total, TOTAL_BYTES_MAX)];
        for (what, found, limit) in limits {
            if found > limit {
                return Err(BundleError::Limit { what: format!("the number of {what}"), found, limit });
            }
        }
        let digest: [u8; 32] = match (manifest.is_some(), name.as_str()) {
            (false, MANIFEST) => {
                let text = small(from, &name, bytes, MANIFEST_BYTES_MAX)?;
                manifest = Some(Manifest::parse(&text)?);
                Sha256::digest(&text).into()
            }
            (false, _) => return Err(BundleError::Malformed(format!("its first entry is not {MANIFEST}"))),
            (true, MANIFEST) => return Err(BundleError::Name(name)),
            (true, _) => file(from, &name, bytes, dir)?,
        };
        if sums.insert(name.clone(), hex(&digest)).is_some() {
            return Err(BundleError::Name(name));
        }
        entries.push(Entry { name, bytes });
    }
    end(from)?;
    let manifest = manifest.ok_or(BundleError::Truncated)?;
    Ok(Extracted { manifest, entries })
}

/// Reads the end of the archive, and that nothing follows it.
fn end(from: &mut impl Read) -> Result<(), BundleError> {
    for _ in 0..2 {
        if archive::next(from)?.is_some() {
            return Err(BundleError::Malformed(format!("an entry follows {SUMS}")));
        }
    }
    match from.read(&mut [0]).map_err(BundleError::io("read the bundle"))? {
        0 => Ok(()),
        _ => Err(BundleError::Malformed("data follows its end".to_owned())),
    }
}

fn small(from: &mut impl Read, name: &str, bytes: u64, limit: u64) -> Result<Vec<u8>, BundleError> {
    if bytes > limit {
        return Err(BundleError::Limit { what: format!("the size of {name} in bytes"), found: bytes, limit });
    }
    let mut text = vec![0; usize::try_from(bytes).unwrap_or_default()];
    archive::exact(from, &mut text)?;
    archive::exact(from, &mut [0; BLOCK_BYTES][..archive::padding(bytes)])?;
    Ok(text)
}

fn file(from: &mut impl Read, name: &str, bytes: u64, dir: &Path) -> Result<[u8; 32], BundleError> {
    let path = name::path(dir, name)?;
    let failed = || BundleError::io(format!("write {}", path.display()));
    let mut parent = dir.to_owned();
    for part in name.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev() {
        parent.push(part);
        files::ensure_private_dir(&parent).map_err(failed())?;
    }
    let mut to = files::private(OpenOptions::new().write(true).create_new(true)).open(&path).map_err(failed())?;
    let mut buffer = vec![0; COPY_BUFFER_BYTES.min(usize::try_from(bytes).unwrap_or(COPY_BUFFER_BYTES))];
    let (mut digest, mut left) = (Sha256::new(), bytes);
    while left > 0 {
        let n = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        archive::exact(from, &mut buffer[..n])?;
        digest.update(&buffer[..n]);
        to.write_all(&buffer[..n]).map_err(failed())?;
        left -= n as u64;
    }
    archive::exact(from, &mut [0; BLOCK_BYTES][..archive::padding(bytes)])?;
    to.sync_all().map_err(failed())?;
    Ok(digest.finalize().into())
}

/// Compares the digests of the entries with those in the bundle.
fn compare(text: &[u8], sums: &BTreeMap<String, String>) -> Result<(), BundleError> {
    let text = std::str::from_utf8(text).map_err(|_| BundleError::Damaged(format!("{SUMS} is not text")))?;
    let kept: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name, sum)).collect();
    if text.lines().count() != sums.len() || kept.len() != sums.len() {
        return Err(BundleError::Damaged(format!("{SUMS} does not name all entries")));
    }
    match sums.iter().find(|(name, sum)| kept.get(name.as_str()) != Some(&sum.as_str())) {
        Some((name, _)) => Err(BundleError::Damaged(format!("checksum mismatch of {name}"))),
        None => Ok(()),
    }
}
