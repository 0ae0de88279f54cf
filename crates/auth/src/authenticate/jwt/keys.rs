//! The public keys of an issuer (JWKS, RFC 7517), and signatures made with them (RFC 7515).
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;

/// Algorithms that a signature may be of. `none` and HMAC never are; ES512 is not known to the library that verifies.
pub const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];
/// Keys of one issuer; a list that is longer is cut.
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

/// What a key is.
enum Public {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point, and how many bytes a coordinate has.
    Ec(Vec<u8>, usize),
}

/// One key of an issuer.
pub(super) struct IssuerKey {
    kid: String,
    public: Public,
}

/// Reads a key set; keys of other kinds or uses are passed over.
///
/// # Errors
/// When it is no key set, or has no key that can be used.
pub(super) fn parse(text: &[u8]) -> Result<Vec<IssuerKey>, String> {
    let set: Set = serde_json::from_slice(text).map_err(|e| format!("fetching the key set failed: {e}"))?;
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
    /// Whether a token that names this key may be signed with it; one that names none may be with any.
    pub(super) fn is_named(&self, kid: &str) -> bool {
        kid.is_empty() || self.kid.is_empty() || self.kid == kid
    }

    /// Whether this key made the signature; the algorithm must fit its kind.
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
