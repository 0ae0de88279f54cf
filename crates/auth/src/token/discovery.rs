//! OpenID Connect discovery: the issuer of tokens, and the public keys to verify them with (KEP-1393).
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kelson_pki::PublicKey;
use serde_json::{Value, json};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Returns `/.well-known/openid-configuration`; `jwks_uri` is the public address of `/openid/v1/jwks`.
pub fn openid_configuration(issuer: &str, jwks_uri: &str, keys: &[PublicKey]) -> Value {
    let mut algorithms: Vec<&str> = keys.iter().map(algorithm).collect();
    algorithms.sort_unstable();
    algorithms.dedup();
    json!({
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    })
}

fn algorithm(key: &PublicKey) -> &'static str {
    if key.is_rsa() { "RS256" } else { "ES256" }
}

/// Returns `/openid/v1/jwks` (`application/jwk-set+json`).
pub fn jwks(keys: &[PublicKey]) -> Value {
    json!({"keys": keys.iter().filter_map(jwk).collect::<Vec<_>>()})
}

fn jwk(key: &PublicKey) -> Option<Value> {
    let encode = |b: &[u8]| URL_SAFE_NO_PAD.encode(b);
    let common = json!({"use": "sig", "kid": key.key_id(), "alg": algorithm(key)});
    let (_, spki) = SubjectPublicKeyInfo::from_der(key.spki()).ok()?;
    let special = match spki.parsed().ok()? {
        Parsed::EC(point) => {
            let halves = point.data().strip_prefix(&[4])?;
            let (x, y) = halves.split_at(halves.len() / 2);
            json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y)})
        }
        Parsed::RSA(rsa) => {
            let trim = |b: &'_ [u8]| encode(&b[b.iter().take_while(|x| **x == 0).count()..]);
            json!({"kty": "RSA", "n": trim(rsa.modulus), "e": trim(rsa.exponent)})
        }
        _ => return None,
    };
    let mut out = common;
    for (k, v) in special.as_object()? {
        out[k] = v.clone();
    }
    Some(out)
}
