//! `aesgcm`: AES in GCM mode with a random nonce in front; the record's path is authenticated. KMS v2 uses it with a
//! separate key for every write, derived from a seed ([`ExtendedNonce`]), so that the number of writes with one seed is
//! not limited.

use aes::{Aes192, cipher::consts::U12};
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use ring::hkdf;
use zeroize::Zeroizing;

use super::{Opened, TOO_SHORT, Transform, TransformError, random};

const NONCE_BYTES: usize = 12;
/// The length of the derivation input that is used besides the seed; it is stored in front.
const INFO_BYTES: usize = 32;
/// The minimum size of a seed in bytes.
pub(crate) const SEED_BYTES: usize = 32;

type Aes192Gcm = aes_gcm::AesGcm<Aes192, U12>;

/// One key. The cipher's expanded key is wiped when it goes.
pub(crate) enum AesGcm {
    Short(Box<Aes128Gcm>),
    Middle(Box<Aes192Gcm>),
    Long(Box<Aes256Gcm>),
}

impl AesGcm {
    /// Creates the transformation with a key of 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self, TransformError> {
        let odd = |_| TransformError::Invalid(format!("AES key must have 16, 24 or 32 bytes, got {}", key.len()));
        Ok(match key.len() {
            16 => Self::Short(Box::new(Aes128Gcm::new_from_slice(key).map_err(odd)?)),
            24 => Self::Middle(Box::new(Aes192Gcm::new_from_slice(key).map_err(odd)?)),
            _ => Self::Long(Box::new(Aes256Gcm::new_from_slice(key).map_err(odd)?)),
        })
    }

    fn seal_to(&self, plain: &[u8], path: &[u8], out: &mut Vec<u8>) -> Result<(), TransformError> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let payload = Payload { msg: plain, aad: path };
        let sealed = match self {
            Self::Short(cipher) => cipher.encrypt(&nonce.into(), payload),
            Self::Middle(cipher) => cipher.encrypt(&nonce.into(), payload),
            Self::Long(cipher) => cipher.encrypt(&nonce.into(), payload),
        };
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed.map_err(|_| TransformError::from("the value is too large"))?);
        Ok(())
    }

    fn open_from(&self, stored: &[u8], path: &[u8]) -> Result<Vec<u8>, TransformError> {
        let (nonce, data) = stored.split_first_chunk::<NONCE_BYTES>().ok_or(TOO_SHORT)?;
        let (nonce, payload) = ((*nonce).into(), Payload { msg: data, aad: path });
        let plain = match self {
            Self::Short(cipher) => cipher.decrypt(&nonce, payload),
            Self::Middle(cipher) => cipher.decrypt(&nonce, payload),
            Self::Long(cipher) => cipher.decrypt(&nonce, payload),
        };
        plain.map_err(|_| "cipher: message authentication failed".into())
    }
}

impl Transform for AesGcm {
    fn seal(&self, plain: &[u8], path: &[u8]) -> Result<(Vec<u8>, String), TransformError> {
        let mut out = Vec::with_capacity(plain.len() + 32);
        self.seal_to(plain, path, &mut out)?;
        Ok((out, String::new()))
    }

    fn open(&self, stored: &[u8], path: &[u8]) -> Result<Opened, TransformError> {
        Ok(Opened { plain: self.open_from(stored, path)?, key_id: String::new() })
    }
}

/// Derives a key for each write from a seed and random bytes (HKDF-SHA-256, expansion only), which are stored in front.
pub(crate) struct ExtendedNonce(Zeroizing<Vec<u8>>);

impl ExtendedNonce {
    /// Creates the transformation with a seed of at least [`SEED_BYTES`].
    pub fn new(seed: &[u8]) -> Result<Self, TransformError> {
        if seed.len() < SEED_BYTES {
            return Err(TransformError::Invalid(format!("invalid seed length {} used for key generation", seed.len())));
        }
        Ok(Self(Zeroizing::new(seed.to_vec())))
    }

    fn derived(&self, info: &[u8]) -> Result<AesGcm, TransformError> {
        let mut key = Zeroizing::new([0u8; 32]);
        let failed = |_| TransformError::from("the key cannot be derived");
        // The seed is random as it is: it is the pseudo-random key itself, without the extraction step.
        let seed = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &self.0);
        seed.expand(&[info], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key[..])).map_err(failed)?;
        AesGcm::new(&key[..])
    }
}

impl Transform for ExtendedNonce {
    fn seal(&self, plain: &[u8], path: &[u8]) -> Result<(Vec<u8>, String), TransformError> {
        let info: [u8; INFO_BYTES] = random()?;
        let mut out = Vec::with_capacity(plain.len() + 64);
        out.extend_from_slice(&info);
        self.derived(&info)?.seal_to(plain, path, &mut out)?;
        Ok((out, String::new()))
    }

    fn open(&self, stored: &[u8], path: &[u8]) -> Result<Opened, TransformError> {
        let (info, rest) = stored.split_at_checked(INFO_BYTES).ok_or(TOO_SHORT)?;
        Ok(Opened { plain: self.derived(info)?.open_from(rest, path)?, key_id: String::new() })
    }
}
