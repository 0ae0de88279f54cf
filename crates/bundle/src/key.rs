//! Passphrases, and the keys derived from them.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use scrypt::Params;
use zeroize::Zeroizing;

use crate::error::BundleError;

/// The length of keys in bytes.
pub(crate) const KEY_BYTES: usize = 32;
/// The length of a scrypt salt in bytes.
pub(crate) const SALT_BYTES: usize = 16;
/// The work factor for passphrases that people choose, log2: 64 MiB of memory, which the smallest supported machine has.
const CHOSEN_LOG_N: u8 = 16;
/// The work factor for random secrets, which cannot be guessed at any speed, log2: 1 MiB.
const RANDOM_LOG_N: u8 = 10;
/// The largest work factor of a file that is opened, log2: 256 MiB. It is the default of the `age` tool.
const LOG_N_MAX: u8 = 18;
/// The longest passphrase in bytes.
const PASSPHRASE_BYTES_MAX: usize = 4096;
/// Upstream: the age specification, section "scrypt recipient stanza".
const LABEL: &[u8] = b"age-encryption.org/v1/scrypt";

/// The secret with which bundles are sealed. It is erased from memory when dropped and is never printed.
#[derive(Clone)]
pub struct Passphrase {
    text: Zeroizing<Vec<u8>>,
    log_n: u8,
}

impl Passphrase {
    /// Creates it from a passphrase that a person chose.
    ///
    /// # Errors
    /// [`BundleError::Passphrase`]: it is empty or longer than 4096 bytes.
    pub fn chosen(text: &str) -> Result<Self, BundleError> {
        Self::new(text.as_bytes(), CHOSEN_LOG_N)
    }

    /// Creates it from a random secret of at least 80 bits, such as a token, for which stretching has little use.
    ///
    /// # Errors
    /// [`BundleError::Passphrase`]: it is empty or longer than 4096 bytes.
    pub fn random(text: &str) -> Result<Self, BundleError> {
        Self::new(text.as_bytes(), RANDOM_LOG_N)
    }

    /// Reads a passphrase that a person chose from the first line of a file.
    ///
    /// # Errors
    /// The file cannot be read, or [`BundleError::Passphrase`].
    pub fn read(file: &Path) -> Result<Self, BundleError> {
        let mut text = Zeroizing::new(Vec::with_capacity(PASSPHRASE_BYTES_MAX + 2));
        let read = File::open(file).and_then(|f| f.take(PASSPHRASE_BYTES_MAX as u64 + 2).read_to_end(&mut text));
        read.map_err(BundleError::io(file.display().to_string()))?;
        let line = text.split(|b| *b == b'\n').next().unwrap_or_default();
        Self::new(line.strip_suffix(b"\r").unwrap_or(line), CHOSEN_LOG_N)
    }

    fn new(text: &[u8], log_n: u8) -> Result<Self, BundleError> {
        if text.is_empty() || text.len() > PASSPHRASE_BYTES_MAX {
            return Err(BundleError::Passphrase { found: text.len(), max: PASSPHRASE_BYTES_MAX });
        }
        Ok(Self { text: Zeroizing::new(text.to_vec()), log_n })
    }

    /// Returns the work factor for new files, log2.
    pub(crate) fn log_n(&self) -> u8 {
        self.log_n
    }

    /// Derives the key that wraps the key of a file. Uses 1 KiB of memory times two to the power of `log_n`.
    ///
    /// # Errors
    /// [`BundleError::Limit`] for a work factor above the limit.
    pub(crate) fn derive(&self, salt: &[u8; SALT_BYTES], log_n: u8) -> Result<Zeroizing<[u8; KEY_BYTES]>, BundleError> {
        if log_n == 0 || log_n > LOG_N_MAX {
            let (found, limit) = (u64::from(log_n), u64::from(LOG_N_MAX));
            return Err(BundleError::Limit { what: "the work factor of the passphrase".to_owned(), found, limit });
        }
        let params = Params::new(log_n, 8, 1, KEY_BYTES).map_err(|_| BundleError::Crypto("scrypt parameters"))?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let salt = [LABEL, salt].concat();
        scrypt::scrypt(&self.text, &salt, &params, &mut *key).map_err(|_| BundleError::Crypto("scrypt"))?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_is_the_first_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passphrase");
        for text in ["correct horse", "correct horse\n", "correct horse\r\nmore\n"] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(*Passphrase::read(&file).unwrap().text, b"correct horse");
        }
        std::fs::write(&file, "\n").unwrap();
        assert!(matches!(Passphrase::read(&file), Err(BundleError::Passphrase { found: 0, .. })));
        std::fs::write(&file, "x".repeat(5000)).unwrap();
        assert!(matches!(Passphrase::read(&file), Err(BundleError::Passphrase { .. })));
        assert!(matches!(Passphrase::read(&dir.path().join("none")), Err(BundleError::Io { .. })));
    }

    #[test]
    fn a_work_factor_above_the_limit_is_rejected_before_any_work() {
        let one = Passphrase::chosen("x").unwrap();
        for log_n in [0, 19, 63, 255] {
            assert!(matches!(one.derive(&[0; SALT_BYTES], log_n), Err(BundleError::Limit { .. })), "{log_n}");
        }
    }
}
