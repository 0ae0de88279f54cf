//! `aescbc`: AES in CBC mode with PKCS#7 padding, the initialization vector in front. Without authentication: kept because
//! the reference has it, and for reading what it wrote.

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut as _, BlockEncryptMut as _, KeyIvInit as _};
use aes::{Aes128, Aes192, Aes256};
use zeroize::Zeroizing;

use super::{Opened, TOO_SHORT, Transform, TransformError, random};

const BLOCK_BYTES: usize = 16;

pub(crate) struct AesCbc(Zeroizing<Vec<u8>>);

impl AesCbc {
    /// Creates the transformation with a key of 16, 24 or 32 bytes.
    pub fn new(key: &[u8]) -> Result<Self, TransformError> {
        match key.len() {
            16 | 24 | 32 => Ok(Self(Zeroizing::new(key.to_vec()))),
            other => Err(TransformError::Invalid(format!("AES key must have 16, 24 or 32 bytes, got {other}"))),
        }
    }
}

impl Transform for AesCbc {
    fn seal(&self, plain: &[u8], _: &[u8]) -> Result<(Vec<u8>, String), TransformError> {
        let iv: [u8; BLOCK_BYTES] = random()?;
        let odd = |_| TransformError::from("invalid key");
        let sealed = match self.0.len() {
            16 => cbc::Encryptor::<Aes128>::new_from_slices(&self.0, &iv)
                .map_err(odd)?
                .encrypt_padded_vec_mut::<Pkcs7>(plain),
            24 => cbc::Encryptor::<Aes192>::new_from_slices(&self.0, &iv)
                .map_err(odd)?
                .encrypt_padded_vec_mut::<Pkcs7>(plain),
            _ => cbc::Encryptor::<Aes256>::new_from_slices(&self.0, &iv)
                .map_err(odd)?
                .encrypt_padded_vec_mut::<Pkcs7>(plain),
        };
        Ok(([&iv[..], &sealed].concat(), String::new()))
    }

    fn open(&self, stored: &[u8], _: &[u8]) -> Result<Opened, TransformError> {
        let (iv, data) = stored.split_at_checked(BLOCK_BYTES).ok_or(TOO_SHORT)?;
        if data.len() % BLOCK_BYTES != 0 {
            return Err("the stored data is not a multiple of the block size".into());
        }
        let odd = |_| TransformError::from("invalid key");
        let plain = match self.0.len() {
            16 => cbc::Decryptor::<Aes128>::new_from_slices(&self.0, iv)
                .map_err(odd)?
                .decrypt_padded_vec_mut::<Pkcs7>(data),
            24 => cbc::Decryptor::<Aes192>::new_from_slices(&self.0, iv)
                .map_err(odd)?
                .decrypt_padded_vec_mut::<Pkcs7>(data),
            _ => cbc::Decryptor::<Aes256>::new_from_slices(&self.0, iv)
                .map_err(odd)?
                .decrypt_padded_vec_mut::<Pkcs7>(data),
        };
        let plain = plain.map_err(|_| TransformError::from("invalid padding on input"))?;
        Ok(Opened { plain, key_id: String::new() })
    }
}
