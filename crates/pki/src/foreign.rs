//! Keys, requests and certificates of other programs, including types that Kelson never creates, as far as the API
//! checks them: the type of the key, the signature of its holder, and whether a string consists of certificates.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::PkiError;
use crate::ecdsa::{self, Hash};

/// Ed25519 (RFC 8410).
const ED25519: &str = "1.3.101.112";
/// Curves by their identifiers (RFC 5480).
const CURVES: [(&str, &str); 4] =
    [("1.2.840.10045.3.1.7", "P-256"), ("1.3.132.0.34", "P-384"), ("1.3.132.0.35", "P-521"), ("1.3.132.0.33", "P-224")];

/// The type of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// An Ed25519 key.
    Ed25519,
    /// ECDSA on this curve, as NIST calls it, or by its identifier.
    Ecdsa(String),
    /// RSA with a modulus of this number of bits.
    Rsa(usize),
    /// Another algorithm; the caller decides whether that is acceptable.
    Other,
}

/// A public key from a document of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKey {
    spki: Vec<u8>,
    raw: Vec<u8>,
    kind: KeyKind,
}

/// The result of checking a request's signature by its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// The key has signed it.
    Well,
    /// The key has not signed it.
    Badly,
    /// The algorithm is not supported here.
    Unknown,
}

impl ForeignKey {
    /// Decodes a DER SubjectPublicKeyInfo.
    ///
    /// # Errors
    /// It is invalid.
    pub fn from_spki(der: &[u8]) -> Result<Self, PkiError> {
        match SubjectPublicKeyInfo::from_der(der) {
            Ok(([], parsed)) => Ok(Self::of(&parsed)),
            Ok(_) => Err(PkiError::malformed("public key", "trailing bytes")),
            Err(e) => Err(PkiError::malformed("public key", e)),
        }
    }

    /// Returns the key of a DER certificate.
    ///
    /// # Errors
    /// It is not a certificate.
    pub fn of_certificate(der: &[u8]) -> Result<Self, PkiError> {
        match X509Certificate::from_der(der) {
            Ok(([], parsed)) => Ok(Self::of(parsed.public_key())),
            Ok(_) => Err(PkiError::malformed("certificate", "trailing bytes")),
            Err(e) => Err(PkiError::malformed("certificate", e)),
        }
    }

    /// Returns the key of a DER PKCS#10 request, and whether the request is signed by it.
    ///
    /// # Errors
    /// It is not a request.
    pub fn of_request(der: &[u8]) -> Result<(Self, Signed), PkiError> {
        let request = match X509CertificationRequest::from_der(der) {
            Ok(([], request)) => request,
            Ok(_) => return Err(PkiError::malformed("certificate request", "trailing bytes")),
            Err(e) => return Err(PkiError::malformed("certificate request", e)),
        };
        let key = Self::of(&request.certification_request_info.subject_pki);
        let signed = key.signature_of(&request);
        Ok((key, signed))
    }

    /// Checks the signature of a request by this key.
    pub(crate) fn signature_of(&self, request: &X509CertificationRequest<'_>) -> Signed {
        let hash = Hash::of_algorithm(&request.signature_algorithm.algorithm.to_id_string());
        match (request.verify_signature(), &self.kind, hash) {
            (Ok(()), ..) => Signed::Well,
            (Err(X509Error::SignatureUnsupportedAlgorithm), KeyKind::Ecdsa(curve), Some(hash)) => {
                let (signed, by) = (request.certification_request_info.raw, &request.signature_value.data);
                if ecdsa::has_signed(curve, &self.raw, hash, signed, by) { Signed::Well } else { Signed::Badly }
            }
            (Err(X509Error::SignatureUnsupportedAlgorithm), ..) => Signed::Unknown,
            (Err(_), ..) => Signed::Badly,
        }
    }

    pub(crate) fn of(spki: &SubjectPublicKeyInfo<'_>) -> Self {
        let kind = match spki.parsed() {
            _ if spki.algorithm.algorithm.to_id_string() == ED25519 => KeyKind::Ed25519,
            Ok(Parsed::RSA(rsa)) => KeyKind::Rsa(rsa.key_size()),
            Ok(Parsed::EC(_)) => {
                let curve =
                    spki.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|oid| oid.to_id_string());
                let named =
                    CURVES.iter().find(|(id, _)| curve.as_deref() == Some(*id)).map(|(_, name)| (*name).to_owned());
                KeyKind::Ecdsa(named.or(curve).unwrap_or_default())
            }
            _ => KeyKind::Other,
        };
        Self { spki: spki.raw.to_vec(), raw: spki.subject_public_key.data.to_vec(), kind }
    }

    /// The key's bits: an uncompressed point, or a PKCS#1 RSAPublicKey.
    pub(crate) fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns the type of the key.
    pub fn kind(&self) -> &KeyKind {
        &self.kind
    }

    /// Reports whether both are the same key.
    pub fn is(&self, other: &Self) -> bool {
        self.spki == other.spki
    }

    /// Verifies a signature of `message` as in the proof of possession of a PodCertificateRequest: Ed25519 of the
    /// message, ECDSA and RSA (PSS) over SHA-256. Returns false for other algorithms.
    pub fn has_signed(&self, message: &[u8], proof: &[u8]) -> bool {
        let algorithm: &dyn VerificationAlgorithm = match &self.kind {
            KeyKind::Ed25519 => &signature::ED25519,
            KeyKind::Ecdsa(curve) if curve == "P-256" => &signature::ECDSA_P256_SHA256_ASN1,
            KeyKind::Ecdsa(curve) if curve == "P-384" => &signature::ECDSA_P384_SHA256_ASN1,
            KeyKind::Rsa(_) => &signature::RSA_PSS_2048_8192_SHA256,
            KeyKind::Ecdsa(curve) => return ecdsa::has_signed(curve, &self.raw, Hash::Sha256, message, proof),
            KeyKind::Other => return false,
        };
        UnparsedPublicKey::new(algorithm, &self.raw).verify(message, proof).is_ok()
    }
}

/// A PEM block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemBlock<'a> {
    /// The label, for instance `CERTIFICATE`.
    pub label: &'a str,
    /// Whether there are header lines (names and values) before the content.
    pub has_headers: bool,
    /// The decoded content of the block.
    pub der: Vec<u8>,
}

/// Returns the PEM blocks of a string as Go does: other text between them is skipped.
pub fn foreign_blocks(text: &str) -> Vec<PemBlock<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        rest = &rest[at + "-----BEGIN ".len()..];
        let Some((label, after)) = rest.split_once("-----") else { break };
        let end = format!("-----END {label}-----");
        let Some(stop) = after.find(&end).filter(|_| !label.contains('\n')) else { continue };
        let (headers, body): (Vec<&str>, Vec<&str>) = after[..stop].lines().partition(|line| line.contains(':'));
        let body: String = body.iter().flat_map(|line| line.trim().chars()).collect();
        let Ok(der) = STANDARD.decode(body) else { continue };
        found.push(PemBlock { label, has_headers: !headers.is_empty(), der });
        rest = &after[stop + end.len()..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Key, create_request, pem_block};

    #[test]
    fn a_request_and_its_forgery() {
        let key = Key::generate().unwrap();
        let text = create_request(&key, "n1", &[], &[]).unwrap();
        let mut der = foreign_blocks(&text).remove(0).der;
        let (shown, signed) = ForeignKey::of_request(&der).unwrap();
        assert_eq!((shown.kind(), signed), (&KeyKind::Ecdsa("P-256".into()), Signed::Well));
        assert!(shown.is(&ForeignKey::from_spki(key.public().spki()).unwrap()));
        let at = der.windows(2).position(|w| w == b"n1").unwrap();
        der[at + 1] = b'2';
        assert_eq!(ForeignKey::of_request(&der).unwrap().1, Signed::Badly);
        assert!(ForeignKey::of_request(&der[1..]).is_err() && ForeignKey::of_request(b"").is_err());
        der.push(0);
        assert!(ForeignKey::of_request(&der).is_err(), "nothing may follow");
    }

    #[test]
    fn a_key_proves_itself() {
        let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
        let shown = ForeignKey::from_spki(key.public().spki()).unwrap();
        assert!(shown.has_signed(b"uid", &key.sign(b"uid").unwrap()));
        for proof in [key.sign(b"other").unwrap(), other.sign(b"uid").unwrap(), Vec::new()] {
            assert!(!shown.has_signed(b"uid", &proof));
        }
        let authority = Authority::create("ca", "2026-05-06T07:08:09Z".parse().unwrap()).unwrap();
        assert!(!shown.is(&ForeignKey::of_certificate(authority.cert()).unwrap()));
        assert!(ForeignKey::of_certificate(&[0x30, 0]).is_err() && ForeignKey::from_spki(&[1, 2, 3]).is_err());
    }

    /// Made by OpenSSL 3.0: `openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:secp521r1 -nodes -sha512 -subj /CN=p`, and the key's
    /// signature of `uid` by `openssl dgst -sha256`.
    const P521_REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----\n\
        MIIBTzCBsQIBADAMMQowCAYDVQQDDAFwMIGbMBAGByqGSM49AgEGBSuBBAAjA4GG\n\
        AAQBcSMHIFm0+x3rnTwL8byhwvLVlb7jnKo42GXOhYWUzsl2aYZcF6Gp46o7DoQp\n\
        TY41MqiFjOHPZrod7hSH60kFj7QA9fF65vtERrUf4eX6C2Zf2IfEY04fqefLjprS\n\
        cYQpbBrY+Lox9W0ilLhjrsIbH2vDkhK6Xy3O9J8n2HIzfbxtoQigADAKBggqhkjO\n\
        PQQDBAOBjAAwgYgCQgHEDwTsv58PQb42GXfFEeKkYBWwHeu0Z8ooYiYNXQK1J6v4\n\
        46eii37w0JZVShK0fmBIcQC0CvL3x1nlw3uTUHCYWgJCAXoIYfOBPS+9+tMi7Squ\n\
        oP8CxP3bUctMiOayaU/mCWQkoHZBWzpcJ4G/mOwK+X10XQfw0l6pFHcbneZ/cAJW\n\
        wVuu\n\
        -----END CERTIFICATE REQUEST-----";
    const P521_PROOF: &str = "MIGHAkFVILLcwe0/iGQPxYTc9Bg9bcgCVeCUMOP8IzepgrZnAfxFbIV8eXfRKey9rS+Rwz5XUSjNq+9GAP74pSO709TcVAJCANA5eyXnVy1S7fl/KjIm5/c2UUolZshKWHherzRYFJIPxH5urYA7N6lAy+NwtJCywIxvUgWauT/e6rDxUybLeaGZ";

    #[test]
    fn keys_of_the_longest_curve() {
        let mut der = foreign_blocks(P521_REQUEST).remove(0).der;
        let (key, signed) = ForeignKey::of_request(&der).unwrap();
        assert_eq!((key.kind(), signed), (&KeyKind::Ecdsa("P-521".into()), Signed::Well));
        let mut proof = STANDARD.decode(P521_PROOF).unwrap();
        assert!(key.has_signed(b"uid", &proof) && !key.has_signed(b"other", &proof));
        *proof.last_mut().unwrap() ^= 1;
        assert!(!key.has_signed(b"uid", &proof));
        *der.last_mut().unwrap() ^= 1;
        assert_eq!(ForeignKey::of_request(&der).unwrap().1, Signed::Badly);
        let parsed = crate::CertificateRequest::parse(P521_REQUEST).unwrap();
        assert_eq!(parsed.common_name, "p");
    }

    #[test]
    fn text_is_taken_apart_as_go_does() {
        let good = pem_block("CERTIFICATE", b"abc");
        let text = format!(
            "noise {good}-----BEGIN X-----\n!!\n-----END X-----\n-----BEGIN Y-----\nA: b\n\nAAAA\n-----END Y-----\n"
        );
        let blocks = foreign_blocks(&text);
        let shown: Vec<(&str, bool)> = blocks.iter().map(|b| (b.label, b.has_headers)).collect();
        assert_eq!(shown, [("CERTIFICATE", false), ("Y", true)]);
        assert_eq!(blocks[0].der, b"abc");
        for text in ["", "-----BEGIN ", "-----BEGIN X-----", "-----BEGIN X-----\nAAAA", "-----BEGIN \n-----END \n-----"]
        {
            assert!(foreign_blocks(text).is_empty(), "{text:?}");
        }
    }
}
