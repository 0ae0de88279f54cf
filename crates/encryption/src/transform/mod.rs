//! Ways of encrypting, one file each. A transformation gets the plaintext, and the path of its record as what some
//! authenticate with it, so that a value copied to another name does not decrypt there.

mod aes_cbc;
mod aes_gcm;
mod secretbox;

pub(crate) use aes_cbc::AesCbc;
pub(crate) use aes_gcm::{AesGcm, ExtendedNonce, SEED_BYTES};
pub(crate) use secretbox::SecretBox;

/// The reason why a value could not be transformed. It is shown to clients and in logs, so it contains no value and no
/// key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// The key service does not answer, or answers with an error; it may answer later.
    #[error("{0}")]
    Unavailable(String),
    /// The key or the value cannot be used, now or later.
    #[error("{0}")]
    Invalid(String),
}

impl From<&str> for TransformError {
    fn from(text: &str) -> Self {
        Self::Invalid(text.to_owned())
    }
}

/// The result of decrypting a stored value.
pub(crate) struct Opened {
    pub plain: Vec<u8>,
    /// The ID of the key service's key; empty for other providers.
    pub key_id: String,
}

/// One key of one provider.
pub(crate) trait Transform: Send + Sync {
    /// Encrypts a value. Returns the bytes after the prefix, and the ID of the key service's key.
    ///
    /// # Errors
    /// Fails if the key is not available.
    fn seal(&self, plain: &[u8], path: &[u8]) -> Result<(Vec<u8>, String), TransformError>;

    /// Decrypts a value. This may wait for a key service.
    ///
    /// # Errors
    /// Fails if the bytes were not encrypted with this key for this path.
    fn open(&self, stored: &[u8], path: &[u8]) -> Result<Opened, TransformError>;

    /// The key service's key that `seal` would use now: empty where there is none, `None` while it is not known.
    fn key_id(&self) -> Option<String> {
        Some(String::new())
    }
}

pub(crate) const TOO_SHORT: &str = "the stored data was shorter than the required size";
const RANDOM: &str = "unable to read sufficient random bytes";

/// Returns random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], TransformError> {
    use ring::rand::SecureRandom as _;
    let mut bytes = [0; N];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| TransformError::from(RANDOM))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &[u8] = b"/registry/secrets/default/s";

    fn all() -> Vec<(&'static str, Box<dyn Transform>)> {
        let key = |n: usize| (0..n).map(|b| b as u8).collect::<Vec<u8>>();
        vec![
            ("aescbc-16", Box::new(AesCbc::new(&key(16)).unwrap())),
            ("aescbc-24", Box::new(AesCbc::new(&key(24)).unwrap())),
            ("aescbc-32", Box::new(AesCbc::new(&key(32)).unwrap())),
            ("aesgcm-16", Box::new(AesGcm::new(&key(16)).unwrap())),
            ("aesgcm-24", Box::new(AesGcm::new(&key(24)).unwrap())),
            ("aesgcm-32", Box::new(AesGcm::new(&key(32)).unwrap())),
            ("secretbox", Box::new(SecretBox::new(&key(32)).unwrap())),
            ("extended", Box::new(ExtendedNonce::new(&key(32)).unwrap())),
        ]
    }

    /// Made with other libraries: what the reference wrote is read.
    #[test]
    fn values_as_the_reference_stores_them() {
        use base64::Engine as _;
        for (name, stored) in [
            ("aescbc-16", "ZGVmZ2hpamtsbW5vcHFyc4Ta5k9vNkIdCCjIo9IMTyfoX0G6v1QQjWEetaptS0iN"),
            ("aescbc-24", "ZGVmZ2hpamtsbW5vcHFyc1Lvwm52f02IUjafZeutxoyWdxLyg1ulqkIdPZRDKWyb"),
            ("aescbc-32", "ZGVmZ2hpamtsbW5vcHFyc0QoOoqApFy6KZZrYKXFvatKS5ijV8GZnAORzLzhN4Zy"),
            ("aesgcm-16", "ZGVmZ2hpamtsbW5vYUAlzLVmmsC5bTJz9K9fzk010HnPQbAXnbPZWnRwd65n"),
            ("aesgcm-24", "ZGVmZ2hpamtsbW5vkkrQFTzLLALxgodiiJfvnKBuhq8BhUYfO9CVJLBkXWG6"),
            ("aesgcm-32", "ZGVmZ2hpamtsbW5vMzm1DxeNdKQcMTqLqAAe3z9QCzf53q/gFTRVUEHpFwM0"),
            ("secretbox", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXBOoFHUUxH5ixuPpCb8pB0CXdUyaproAqmW/qXRrqPrUv"),
        ] {
            let (_, with) = all().into_iter().find(|(n, _)| *n == name).unwrap();
            let stored = base64::engine::general_purpose::STANDARD.decode(stored).unwrap();
            assert_eq!(with.open(&stored, PATH).unwrap().plain, br#"{"kind":"Secret"}"#, "{name}");
        }
    }

    #[test]
    fn what_is_sealed_opens_again_and_never_looks_the_same() {
        for (name, with) in all() {
            for len in [0, 1, 15, 16, 17, 31, 32, 33, 1000] {
                let plain = vec![0x5a; len];
                let (one, _) = with.seal(&plain, PATH).unwrap();
                let (two, _) = with.seal(&plain, PATH).unwrap();
                assert_ne!(one, two, "{name}: a nonce was used twice");
                assert!(len < 16 || !one.windows(16).any(|w| w == &plain[..16]), "{name}: in the clear");
                assert_eq!(with.open(&one, PATH).unwrap().plain, plain, "{name}, {len} bytes");
            }
        }
    }

    #[test]
    fn damaged_values_are_errors_and_never_panic() {
        for (name, with) in all() {
            let (stored, _) = with.seal(b"a value that is a little longer than two blocks", PATH).unwrap();
            for cut in 0..stored.len() {
                // CBC has no authentication: a cut at a block boundary may even read as padded.
                let opened = with.open(&stored[..cut], PATH);
                assert!(name.starts_with("aescbc") || opened.is_err(), "{name}: cut at {cut}");
            }
            for byte in 0..stored.len() {
                let mut flipped = stored.clone();
                flipped[byte] ^= 0x40;
                let opened = with.open(&flipped, PATH);
                assert!(name.starts_with("aescbc") || opened.is_err(), "{name}: byte {byte} flipped");
            }
        }
    }

    #[test]
    fn authenticated_ways_bind_a_value_to_its_name() {
        for (name, with) in all() {
            let (stored, _) = with.seal(b"x", PATH).unwrap();
            let elsewhere = with.open(&stored, b"/registry/secrets/other/s").is_ok();
            assert_eq!(elsewhere, name.starts_with("aescbc") || name == "secretbox", "{name}");
        }
    }

    #[test]
    fn keys_of_other_lengths_are_refused() {
        for len in [0, 15, 17, 33, 64] {
            assert!(AesCbc::new(&vec![0; len]).is_err() && AesGcm::new(&vec![0; len]).is_err(), "{len}");
            assert!(SecretBox::new(&vec![0; len]).is_err(), "{len}");
        }
        assert!(ExtendedNonce::new(&[0; 31]).is_err());
    }
}
