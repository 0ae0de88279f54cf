//! The public keys of an issuer (JWKS, RFC 7517), and signature verification (RFC 7515).
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;

/// The supported signature algorithms. `none` and HMAC never are; the library does not support ES512.
pub const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];
/// The maximum number of keys of one issuer; further ones are ignored.
const KEYS_MAX: usize = 100;

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Jwk {
    kty: String,
    kid: String,
    #[serde(rename = "use")]
    usage: String,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

/// A public key.
enum Public {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point, and the number of bytes of a coordinate.
    Ec(Vec<u8>, usize),
}

/// A key of an issuer.
pub(super) struct IssuerKey {
    kid: String,
    public: Public,
}

/// Reads a key set; keys of other types or uses are skipped.
///
/// # Errors
/// The document is not a key set, or has no usable key.
pub(super) fn parse(text: &[u8]) -> Result<Vec<IssuerKey>, String> {
    let set: Set = kelson_meta::from_json(text).map_err(|e| format!("fetching the key set failed: {e}"))?;
    let keys: Vec<IssuerKey> = set.keys.into_iter().take(KEYS_MAX).filter_map(key).collect();
    if keys.is_empty() { Err("the key set has no key that can be used".into()) } else { Ok(keys) }
}

fn key(jwk: Jwk) -> Option<IssuerKey> {
    let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok().filter(|b| !b.is_empty());
    if !matches!(jwk.usage.as_str(), "" | "sig") {
        return None;
    }
    let public = match (jwk.kty.as_str(), jwk.crv.as_str()) {
        ("RSA", _) => Public::Rsa { n: bytes(&jwk.n)?, e: bytes(&jwk.e)? },
        ("EC", "P-256" | "P-384") => {
            let size = if jwk.crv == "P-256" { 32 } else { 48 };
            let mut point = vec![4];
            for coordinate in [bytes(&jwk.x)?, bytes(&jwk.y)?] {
                if coordinate.len() != size {
                    return None;
                }
                point.extend(coordinate);
            }
            Public::Ec(point, size)
        }
        _ => return None,
    };
    Some(IssuerKey { kid: jwk.kid, public })
}

impl IssuerKey {
    /// Reports whether a token with this key ID may be signed with the key; an empty ID matches any key.
    pub(super) fn is_named(&self, kid: &str) -> bool {
        kid.is_empty() || self.kid.is_empty() || self.kid == kid
    }

    /// Reports whether this key made the signature; the algorithm must match the key type.
    pub(super) fn verifies(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        match &self.public {
            Public::Rsa { n, e } => {
                let parameters: &RsaParameters = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok()
            }
            Public::Ec(point, size) => {
                let algorithm: &dyn VerificationAlgorithm = match (algorithm, size) {
                    ("ES256", 32) => &signature::ECDSA_P256_SHA256_FIXED,
                    ("ES384", 48) => &signature::ECDSA_P384_SHA384_FIXED,
                    _ => return false,
                };
                UnparsedPublicKey::new(algorithm, point).verify(signed, signature).is_ok()
            }
        }
    }
}
