//! Trust at the first contact: the detached signature by which a joining node verifies the cluster of its token (JWS,
//! RFC 7515 appendix F, HS256), and the pin of a CA's public key. Upstream: `cluster-bootstrap/token/jws` and
//! `kubeadm/app/util/pubkeypin`.
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use crate::PkiError;

/// The prefix of the signatures' keys in the ConfigMap `cluster-info`; the token's ID follows.
pub const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";
/// The only supported kind of pin.
const PIN_PREFIX: &str = "sha256:";

/// The detached JWS of `content` under a bootstrap token.
pub fn sign_detached(content: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"HS256\",\"kid\":\"{id}\"}}"));
    let tag = hmac::sign(&key(secret), signing_input(&header, content).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Verifies that `jws` is a detached signature of `content` under this token. The time does not depend on the position
/// of a wrong byte in the tag.
pub fn verify_detached(jws: &str, content: &str, id: &str, secret: &str) -> bool {
    let Some((header, tag)) = jws.split_once("..") else { return false };
    let (Ok(claims), Ok(tag)) = (URL_SAFE_NO_PAD.decode(header), URL_SAFE_NO_PAD.decode(tag)) else { return false };
    let Ok(claims) = serde_json::from_slice::<serde_json::Value>(&claims) else { return false };
    claims["alg"] == "HS256"
        && claims["kid"] == id
        && hmac::verify(&key(secret), signing_input(header, content).as_bytes(), &tag).is_ok()
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

fn signing_input(header: &str, content: &str) -> String {
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(content))
}

/// Returns `sha256:` and the hexadecimal digest of a certificate's SubjectPublicKeyInfo, like `openssl x509 -pubkey`
/// piped through `openssl dgst -sha256`.
pub fn public_key_pin(certificate: &CertificateDer<'_>) -> Result<String, PkiError> {
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|e| PkiError::malformed("certificate", e))?;
    let mut pin = PIN_PREFIX.to_owned();
    for byte in Sha256::digest(parsed.public_key().raw) {
        // Writing to a String cannot fail.
        let _ = write!(pin, "{byte:02x}");
    }
    Ok(pin)
}

/// Parses a user's pin into the form of [`public_key_pin`]. Returns `None` if it is invalid.
pub fn parse_pin(text: &str) -> Option<String> {
    let hex = text.trim().strip_prefix(PIN_PREFIX)?;
    let digits = hex.len() == 2 * Sha256::output_size() && hex.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| format!("{PIN_PREFIX}{}", hex.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, certificates_from_pem};

    #[test]
    fn signature_as_rfc_7515_has_it() {
        let jws = sign_detached("hello", "abcdef", "0123456789abcdef");
        let (header, rest) = jws.split_once("..").unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(header).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
        let tag = URL_SAFE_NO_PAD.decode(rest).unwrap();
        assert!(hmac::verify(&key("0123456789abcdef"), format!("{header}.aGVsbG8").as_bytes(), &tag).is_ok());
    }

    #[test]
    fn only_the_whole_truth_verifies() {
        let jws = sign_detached("hello", "abcdef", "0123456789abcdef");
        let other = sign_detached("hello", "abcdef", "0123456789abcdeX");
        let none = format!("{}..", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#));
        let rows = [
            (jws.as_str(), "hello", "abcdef", true),
            (&jws, "hellO", "abcdef", false),
            (&jws, "hello", "abcdeg", false),
            (&other, "hello", "abcdef", false),
            (&none, "hello", "abcdef", false),
            ("", "hello", "abcdef", false),
            ("a..b", "hello", "abcdef", false),
        ];
        for (jws, content, id, want) in rows {
            assert_eq!(verify_detached(jws, content, id, "0123456789abcdef"), want, "{jws} {content} {id}");
        }
    }

    #[test]
    fn pins() {
        let ca = Authority::create("ca", jiff::Timestamp::now()).unwrap();
        let pin = public_key_pin(&certificates_from_pem(ca.cert_pem()).unwrap()[0]).unwrap();
        assert_eq!(pin.len(), 7 + 64);
        assert_eq!(parse_pin(&format!(" {}", pin.to_uppercase().replace("SHA256", "sha256"))), Some(pin));
        for bad in ["", "sha256:", "sha256:12", "md5:00", &"0".repeat(64)] {
            assert_eq!(parse_pin(bad), None, "{bad}");
        }
    }
}
