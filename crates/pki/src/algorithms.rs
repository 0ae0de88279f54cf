//! The algorithms for signing and verification. Keys of other programs may use the curve P-521, which the provider's
//! library does not support. Kelson's own keys may not use it, and a configured P-521 key is rejected.
use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, KeyProvider, WebPkiSupportedAlgorithms};
use rustls::sign::SigningKey;
use rustls::{Error, SignatureScheme};
use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm, alg_id};

use crate::ecdsa::{self, Hash};

/// The one cryptographic provider of the process.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        let usual = rustls::crypto::ring::default_provider();
        let verified = usual.signature_verification_algorithms;
        let mut all = verified.all.to_vec();
        all.extend(P521_ALONE);
        let mut mapping = verified.mapping.to_vec();
        mapping.push((SignatureScheme::ECDSA_NISTP521_SHA512, &P521_ALONE));
        // Made once for the process.
        let signature_verification_algorithms = WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() };
        Arc::new(CryptoProvider { signature_verification_algorithms, key_provider: &OwnKeys, ..usual })
    };
    PROVIDER.get_or_init(make).clone()
}

static P521_ALONE: [&dyn SignatureVerificationAlgorithm; 1] = [&P521];

/// ECDSA on P-521 over SHA-512.
#[derive(Debug)]
struct P521;

impl SignatureVerificationAlgorithm for P521 {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        match ecdsa::has_signed("P-521", key, Hash::Sha512, message, signature) {
            true => Ok(()),
            false => Err(InvalidSignature),
        }
    }
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }
    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA512
    }
}

/// Reads private keys.
#[derive(Debug)]
struct OwnKeys;

impl KeyProvider for OwnKeys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        signing_key(&key).map_err(|why| Error::General(why.to_owned()))
    }
}

/// Returns a signer for a private key.
///
/// # Errors
/// Why the key is not usable.
pub(crate) fn signing_key(key: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, &'static str> {
    /// The identifier of the curve, as it is encoded.
    const P521_ID: [u8; 7] = [0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];
    rustls::crypto::ring::sign::any_supported_type(key).map_err(|_| {
        if key.secret_der().windows(P521_ID.len()).any(|part| part == P521_ID) {
            "keys on the curve P-521 are not supported here; use P-256, P-384, Ed25519 or RSA of at least 2048 bits"
        } else {
            "the key is damaged or of an unsupported type; use P-256, P-384, Ed25519 or RSA of at least 2048 bits"
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::Key;

    /// Made by OpenSSL 3.0: `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:secp521r1`.
    const P521_KEY: &str = include_str!("../rows/p521.pem");

    #[test]
    fn own_keys_on_p521_are_refused_by_name() {
        let refused = Key::from_pem(P521_KEY).unwrap_err().to_string();
        assert!(refused.contains("P-521"), "{refused}");
        let damaged = Key::from_pem(&crate::pem_block("PRIVATE KEY", b"junk")).unwrap_err().to_string();
        assert!(damaged.contains("damaged") && !damaged.contains("P-521"), "{damaged}");
    }
}
