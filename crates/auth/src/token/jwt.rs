//! JSON Web Tokens in the compact form (RFC 7519, RFC 7515), as far as the cluster's own tokens need them.
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kelson_pki::{Key, PublicKey};
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::KubernetesClaims;

/// The maximum length of a token in bytes.
const TOKEN_MAX_BYTES: usize = 32 * 1024;
/// The size of one half of an ES256 signature in bytes.
const P256_HALF: usize = 32;

/// The claims of both kinds of service account tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claims {
    #[serde(default, deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub aud: Vec<String>,
    #[serde(default, deserialize_with = "numeric", skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    #[serde(default, deserialize_with = "numeric", skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    #[serde(default)]
    pub iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    #[serde(rename = "kubernetes.io", default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesClaims>,
    #[serde(default, deserialize_with = "numeric", skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    #[serde(default)]
    pub sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace", default, skip_serializing_if = "String::is_empty")]
    pub legacy_namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name", default, skip_serializing_if = "String::is_empty")]
    pub legacy_secret: String,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.name",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub legacy_name: String,
    #[serde(
        rename = "kubernetes.io/serviceaccount/service-account.uid",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub legacy_uid: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(d)? {
        Value::String(s) => Ok(vec![s]),
        Value::Array(list) => list
            .into_iter()
            .map(|v| v.as_str().map(str::to_owned).ok_or_else(|| serde::de::Error::custom("aud is not a string")))
            .collect(),
        _ => Err(serde::de::Error::custom("aud is neither a string nor a list")),
    }
}

/// Reads a NumericDate: seconds, possibly with a fraction.
fn numeric<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
    let n = Option::<serde_json::Number>::deserialize(d)?;
    Ok(n.map(|n| n.as_i64().unwrap_or_else(|| n.as_f64().unwrap_or(0.0) as i64)))
}

#[derive(Deserialize)]
struct JoseHeader {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A parsed token; nothing in it may be trusted before [`Parsed::verify`].
pub(crate) struct Parsed<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    alg: String,
    /// The key ID; may be empty.
    pub kid: String,
    /// The claims; trusted only after signature and times were verified.
    pub claims: Claims,
}

fn decode(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

impl<'a> Parsed<'a> {
    /// Parses a token; `None` when it is not a JSON Web Token.
    pub(crate) fn parse(token: &'a str) -> Option<Self> {
        if token.len() > TOKEN_MAX_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        let header: JoseHeader = kelson_meta::from_json(&decode(header)?).ok()?;
        let claims: Claims = kelson_meta::from_json(&decode(payload)?).ok()?;
        Some(Self { signed, signature: decode(signature)?, alg: header.alg, kid: header.kid, claims })
    }

    /// Reports whether `key` made the signature. The algorithm must match the key type: `none` and HMAC never do.
    pub(crate) fn verify(&self, key: &PublicKey) -> bool {
        let algorithm: &dyn VerificationAlgorithm = match (self.alg.as_str(), key.is_rsa()) {
            ("ES256", false) => &signature::ECDSA_P256_SHA256_FIXED,
            ("ES384", false) => &signature::ECDSA_P384_SHA384_FIXED,
            ("RS256", true) => &signature::RSA_PKCS1_2048_8192_SHA256,
            ("RS384", true) => &signature::RSA_PKCS1_2048_8192_SHA384,
            ("RS512", true) => &signature::RSA_PKCS1_2048_8192_SHA512,
            _ => return false,
        };
        UnparsedPublicKey::new(algorithm, key.raw()).verify(self.signed.as_bytes(), &self.signature).is_ok()
    }
}

/// Signs claims into a token.
pub(crate) fn sign(key: &Key, claims: &Claims) -> Option<String> {
    let alg = if key.public().is_rsa() { "RS256" } else { "ES256" };
    let header = serde_json::json!({"alg": alg, "kid": key.public().key_id()});
    // Converted to a tree first, so that the members are sorted.
    let payload = serde_json::to_value(claims).ok()?;
    let signed =
        format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(payload.to_string()));
    let signature = key.sign(signed.as_bytes()).ok()?;
    let signature = if key.public().is_rsa() { signature } else { fixed(&signature)? };
    Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// Converts `SEQUENCE { r, s }` to two halves of fixed size.
pub(crate) fn fixed(der: &[u8]) -> Option<Vec<u8>> {
    let body = der.strip_prefix(&[0x30])?;
    let (_, mut rest) = body.split_first()?;
    let mut out = Vec::with_capacity(2 * P256_HALF);
    for _ in 0..2 {
        let [2, len, more @ ..] = rest else { return None };
        let (number, after) = more.split_at_checked(usize::from(*len))?;
        let number = &number[number.iter().take_while(|b| **b == 0).count()..];
        out.resize(out.len() + P256_HALF.checked_sub(number.len())?, 0);
        out.extend_from_slice(number);
        rest = after;
    }
    Some(out)
}
