//! `secretbox`: XSalsa20 and Poly1305, a random nonce of 24 bytes in front. The record's path is not authenticated.

use crypto_secretbox::XSalsa20Poly1305;
use crypto_secretbox::aead::{Aead as _, KeyInit as _};
use zeroize::Zeroizing;

use super::{Opened, TOO_SHORT, Transform, TransformError, random};

const NONCE_BYTES: usize = 24;
const KEY_BYTES: usize = 32;

pub(crate) struct SecretBox(Zeroizing<Vec<u8>>);

impl SecretBox {
    /// Creates the transformation with a key of 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self, TransformError> {
        match key.len() {
            KEY_BYTES => Ok(Self(Zeroizing::new(key.to_vec()))),
            other => Err(TransformError::Invalid(format!("expected key size 32 for secretbox provider, got {other}"))),
        }
    }

    fn cipher(&self) -> Result<XSalsa20Poly1305, TransformError> {
        XSalsa20Poly1305::new_from_slice(&self.0).map_err(|_| "invalid key".into())
    }
}

impl Transform for SecretBox {
    fn seal(&self, plain: &[u8], _: &[u8]) -> Result<(Vec<u8>, String), TransformError> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let sealed = self.cipher()?.encrypt(&nonce.into(), plain);
        let sealed = sealed.map_err(|_| TransformError::from("the value is too large"))?;
        Ok(([&nonce[..], &sealed].concat(), String::new()))
    }

    fn open(&self, stored: &[u8], _: &[u8]) -> Result<Opened, TransformError> {
        let (nonce, data) = stored.split_first_chunk::<NONCE_BYTES>().ok_or(TOO_SHORT)?;
        let plain = self.cipher()?.decrypt(&(*nonce).into(), data);
        let plain = plain.map_err(|_| TransformError::from("message authentication failed"))?;
        Ok(Opened { plain, key_id: String::new() })
    }
}
