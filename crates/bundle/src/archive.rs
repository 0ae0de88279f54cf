//! The archive in a bundle: regular files in the ustar format, and its limits.

use std::io::{self, Read};

use tar::{EntryType, Header};

use crate::error::BundleError;

/// The largest number of entries.
pub const ENTRIES_MAX: usize = 256;
/// The largest entry in bytes, the most that an ustar header can express: etcd's recommended limit for its database.
pub const ENTRY_BYTES_MAX: u64 = (8 << 30) - 1;
/// The largest content of all entries together in bytes.
pub const TOTAL_BYTES_MAX: u64 = 10 << 30;
/// The length of blocks in bytes.
pub(crate) const BLOCK_BYTES: usize = 512;
/// The name of the last entry.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// The largest last entry in bytes: a digest and a name for each entry.
pub(crate) const SUMS_BYTES_MAX: u64 = 64 << 10;
/// The offset and length of the checksum in a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Returns the header of a file that only its owner can read.
pub(crate) fn header(name: &str, bytes: u64, seconds: u64) -> Result<Header, BundleError> {
    if bytes > ENTRY_BYTES_MAX {
        return Err(BundleError::Limit {
            what: format!("the size of {name} in bytes"),
            found: bytes,
            limit: ENTRY_BYTES_MAX,
        });
    }
    let mut header = Header::new_ustar();
    header.set_path(name).map_err(|_| BundleError::Name(name.to_owned()))?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_mtime(seconds);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    Ok(header)
}

/// Returns the number of bytes that fill the last block of an entry.
pub(crate) fn padding(bytes: u64) -> usize {
    (BLOCK_BYTES - (bytes % BLOCK_BYTES as u64) as usize) % BLOCK_BYTES
}

/// Reads the next header: name and size of an entry, `None` at the end of the archive.
pub(crate) fn next(from: &mut impl Read) -> Result<Option<(String, u64)>, BundleError> {
    let mut block = [0; BLOCK_BYTES];
    exact(from, &mut block)?;
    if block.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let invalid = |what: &str| BundleError::Malformed(format!("{what} of an entry is invalid"));
    let header = Header::from_byte_slice(&block);
    let outside = |(at, byte): (usize, &u8)| if CHECKSUM.contains(&at) { 32 } else { u32::from(*byte) };
    let sum: u32 = block.iter().enumerate().map(outside).sum();
    if header.cksum().map_err(|_| invalid("the checksum"))? != sum {
        return Err(invalid("the checksum"));
    }
    if header.entry_type() != EntryType::Regular || header.as_ustar().is_none() {
        return Err(invalid("the type"));
    }
    let name = String::from_utf8(header.path_bytes().into_owned()).map_err(|_| invalid("the name"))?;
    let bytes = header.size().map_err(|_| invalid("the size"))?;
    if bytes > ENTRY_BYTES_MAX {
        return Err(BundleError::Limit {
            what: format!("the size of {name} in bytes"),
            found: bytes,
            limit: ENTRY_BYTES_MAX,
        });
    }
    Ok(Some((name, bytes)))
}

/// Reads exactly as many bytes; fewer are a truncated bundle.
pub(crate) fn exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), BundleError> {
    from.read_exact(bytes).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => BundleError::Truncated,
        _ => BundleError::io("read the bundle")(e),
    })
}
