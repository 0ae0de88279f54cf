//! The header of the age format with one scrypt recipient: the key of the file, encrypted with the passphrase, and a code that
//! authenticates the header.

use std::io::{Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{hkdf, hmac};
use zeroize::Zeroizing;

use crate::error::BundleError;
use crate::key::{KEY_BYTES, Passphrase, SALT_BYTES};

/// The first line of every file in the age format, version 1.
pub(crate) const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// The longest line that is read; those of a scrypt recipient are shorter than 64 bytes.
const LINE_BYTES_MAX: usize = 128;
/// The length of the key of a file in bytes.
const FILE_KEY_BYTES: usize = 16;
/// The length of the encrypted key of a file in bytes.
const WRAPPED_BYTES: usize = FILE_KEY_BYTES + 16;
/// The length of the nonce after the header in bytes.
const NONCE_BYTES: usize = 16;

/// The key of one file's content.
pub(crate) type PayloadKey = Zeroizing<[u8; KEY_BYTES]>;

/// Writes a header for a random key and returns the key of the content.
pub(crate) fn write(to: &mut impl Write, passphrase: &Passphrase) -> Result<PayloadKey, BundleError> {
    let mut salt = [0; SALT_BYTES];
    let mut file_key = Zeroizing::new([0; FILE_KEY_BYTES]);
    let mut nonce = [0; NONCE_BYTES];
    fill(&mut salt)?;
    fill(&mut *file_key)?;
    fill(&mut nonce)?;
    let log_n = passphrase.log_n();
    let mut wrapped = file_key.to_vec();
    let wrapping = cipher(&*passphrase.derive(&salt, log_n)?)?;
    wrapping
        .seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut wrapped)
        .map_err(|_| BundleError::Crypto("wrap the key"))?;
    let (salt, body) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(wrapped));
    let mut text = MAGIC.to_vec();
    text.extend_from_slice(format!("-> scrypt {salt} {log_n}\n{body}\n---").as_bytes());
    let code = hmac::sign(&header_key(&*file_key)?, &text);
    text.extend_from_slice(format!(" {}\n", STANDARD_NO_PAD.encode(code)).as_bytes());
    text.extend_from_slice(&nonce);
    to.write_all(&text).map_err(BundleError::io("write the header"))?;
    expand(&*file_key, &nonce, b"payload")
}

/// Reads a header and returns the key of the content.
pub(crate) fn read(from: &mut impl Read, passphrase: &Passphrase) -> Result<PayloadKey, BundleError> {
    let mut text = Vec::new();
    let magic = line(from, &mut text)?;
    if magic != MAGIC[..MAGIC.len() - 1] {
        return Err(BundleError::Malformed("it does not begin as a bundle does".to_owned()));
    }
    let recipient = line(from, &mut text)?;
    let recipient = String::from_utf8(recipient).map_err(|_| malformed("the recipient"))?;
    let words: Vec<&str> = recipient.split(' ').collect();
    let ["->", "scrypt", salt, log_n] = words[..] else {
        return Err(BundleError::Malformed("it is not sealed with a passphrase".to_owned()));
    };
    let salt: [u8; SALT_BYTES] = decode(salt.as_bytes(), "the salt")?;
    // The specification allows one form of each number.
    let factor: u8 = log_n.parse().map_err(|_| malformed("the work factor"))?;
    if factor.to_string() != log_n {
        return Err(malformed("the work factor"));
    }
    let mut wrapped: [u8; WRAPPED_BYTES] = decode(&line(from, &mut text)?, "the encrypted key")?;
    let last = line(from, &mut text)?;
    let Some(code) = last.strip_prefix(b"--- ") else { return Err(malformed("the end of the header")) };
    let code: [u8; 32] = decode(code, "the code of the header")?;
    let wrapping = cipher(&*passphrase.derive(&salt, factor)?)?;
    let opened = wrapping.open_in_place(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut wrapped);
    let file_key = Zeroizing::new(opened.map_err(|_| BundleError::WrongPassphrase)?.to_vec());
    let covered = &text[..text.len() - last.len() - 1 + b"---".len()];
    hmac::verify(&header_key(&file_key)?, covered, &code).map_err(|_| BundleError::WrongPassphrase)?;
    let mut nonce = [0; NONCE_BYTES];
    exact(from, &mut nonce)?;
    expand(&file_key, &nonce, b"payload")
}

/// Creates the cipher of a key.
pub(crate) fn cipher(key: &[u8]) -> Result<LessSafeKey, BundleError> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| BundleError::Crypto("key"))?;
    Ok(LessSafeKey::new(key))
}

fn fill(bytes: &mut [u8]) -> Result<(), BundleError> {
    SystemRandom::new().fill(bytes).map_err(|_| BundleError::Crypto("random numbers"))
}

fn expand(secret: &[u8], salt: &[u8], info: &[u8]) -> Result<PayloadKey, BundleError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let expanded = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    let filled = expanded.expand(&[info], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut *key));
    filled.map_err(|_| BundleError::Crypto("derive a key")).map(|()| key)
}

fn header_key(file_key: &[u8]) -> Result<hmac::Key, BundleError> {
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*expand(file_key, b"", b"header")?))
}

fn malformed(what: &str) -> BundleError {
    BundleError::Malformed(format!("{what} is invalid"))
}

/// Decodes base64 of an exact length. Bits after the last byte must be zero.
fn decode<const N: usize>(text: &[u8], what: &str) -> Result<[u8; N], BundleError> {
    let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| malformed(what))?;
    bytes.try_into().map_err(|_| malformed(what))
}

/// Reads a line byte by byte, since the content follows the header directly. Appends it to `text` and returns it without its end.
fn line(from: &mut impl Read, text: &mut Vec<u8>) -> Result<Vec<u8>, BundleError> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        exact(from, &mut byte)?;
        text.push(byte[0]);
        match byte[0] {
            b'\n' => return Ok(line),
            _ if line.len() == LINE_BYTES_MAX => return Err(malformed("a line of the header")),
            other => line.push(other),
        }
    }
}

fn exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), BundleError> {
    from.read_exact(bytes).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => BundleError::Truncated,
        _ => BundleError::io("read the header")(e),
    })
}
