//! Private keys (created as ECDSA P-256, read in all forms that rustls can sign with) and public keys. Private keys are
//! never printed, and are wiped from memory when they are dropped.
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::SignatureScheme;
use rustls::sign::SigningKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use sha2::{Digest, Sha256};
use x509_parser::der_parser::asn1_rs::{Integer, OctetString, Sequence};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;
use zeroize::Zeroizing;

use crate::algorithms::signing_key;
use crate::der::{self, oid};
use crate::{PkiError, file, pem};

/// A private key.
#[derive(Clone)]
pub struct Key {
    signing: Arc<dyn SigningKey>,
    scheme: SignatureScheme,
    public: PublicKey,
    label: &'static str,
    der: Arc<Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

const SCHEMES: [SignatureScheme; 4] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ED25519,
];

impl Key {
    /// A new ECDSA P-256 key.
    pub fn generate() -> Result<Self, PkiError> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| PkiError::Crypto("key generation failed"))?;
        Self::from_der("PRIVATE KEY", pkcs8.as_ref().to_vec())
    }

    /// Reads a PEM private key (PKCS#8, SEC1 or PKCS#1).
    pub fn from_pem(text: &str) -> Result<Self, PkiError> {
        let (label, der) = pem::blocks(text)?
            .into_iter()
            .find(|(l, _)| l.ends_with("PRIVATE KEY"))
            .ok_or_else(|| PkiError::malformed("private key", "no PRIVATE KEY block"))?;
        let label = match label {
            "PRIVATE KEY" => "PRIVATE KEY",
            "EC PRIVATE KEY" => "EC PRIVATE KEY",
            "RSA PRIVATE KEY" => "RSA PRIVATE KEY",
            other => return Err(PkiError::malformed("private key", format!("{other} is not supported"))),
        };
        Self::from_der(label, der)
    }

    fn from_der(label: &'static str, der: Vec<u8>) -> Result<Self, PkiError> {
        let wrapped = match label {
            "EC PRIVATE KEY" => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der.clone())),
            "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der.clone())),
            _ => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.clone())),
        };
        let signing = signing_key(&wrapped).map_err(|why| PkiError::malformed("private key", why))?;
        let scheme = SCHEMES
            .into_iter()
            .find(|s| signing.choose_scheme(&[*s]).is_some())
            .ok_or(PkiError::Crypto("the key has no supported signature scheme"))?;
        let spki = signing.public_key().ok_or(PkiError::Crypto("the key has no public part"))?;
        let public = PublicKey::from_spki(spki.as_ref())?;
        Ok(Self { signing, scheme, public, label, der: Arc::new(Zeroizing::new(der)) })
    }

    /// Reads the key at `path`, or creates one and writes it there.
    pub fn load_or_generate(path: &Path) -> Result<Self, PkiError> {
        if let Some(text) = file::read(path)? {
            return Self::from_pem(&text).map_err(|e| PkiError::malformed(path.display().to_string(), e));
        }
        let key = Self::generate()?;
        file::write_secret(path, key.to_pem().as_bytes(), true)?;
        Ok(key)
    }

    /// Returns the PEM form. It is secret, and only for files and kubeconfigs.
    pub fn to_pem(&self) -> String {
        pem::pem_block(self.label, &self.der)
    }

    /// Returns the PEM form whose label contains the key type (`EC PRIVATE KEY`, `RSA PRIVATE KEY`), which upstream
    /// writes into kubeconfigs: some clients treat every other label as RSA. Secret. Other key types have no such form.
    pub fn to_typed_pem(&self) -> String {
        let typed = if self.label == "PRIVATE KEY" { self.typed() } else { None };
        typed.map_or_else(|| self.to_pem(), |(label, der)| pem::pem_block(label, &der))
    }

    /// Returns the content of PKCS#8 (RFC 5208): an RSAPrivateKey, or an ECPrivateKey (RFC 5915), which must name its
    /// curve then.
    fn typed(&self) -> Option<(&'static str, Zeroizing<Vec<u8>>)> {
        let (_, whole) = Sequence::from_der(&self.der).ok()?;
        let (rest, _version) = Integer::from_der(&whole.content).ok()?;
        let (rest, _algorithm) = Sequence::from_der(rest).ok()?;
        let (_, inner) = OctetString::from_der(rest).ok()?;
        if self.public.is_rsa() {
            return Some(("RSA PRIVATE KEY", Zeroizing::new(inner.as_ref().to_vec())));
        }
        let curve = match self.scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => oid::P256,
            SignatureScheme::ECDSA_NISTP384_SHA384 => oid::P384,
            _ => return None,
        };
        let (_, key) = Sequence::from_der(inner.as_ref()).ok()?;
        let (rest, _version) = Integer::from_der(&key.content).ok()?;
        let (_, secret) = OctetString::from_der(rest).ok()?;
        let parts = [
            der::unsigned(&[1]),
            der::octets(secret.as_ref()),
            der::explicit(0, &der::object_id(curve)),
            der::explicit(1, &der::bits(self.public.raw())),
        ];
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        Some(("EC PRIVATE KEY", Zeroizing::new(der::sequence(&parts))))
    }

    /// Returns the public key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The key in the form that rustls signs with.
    pub fn signing(&self) -> Arc<dyn SigningKey> {
        self.signing.clone()
    }

    /// The scheme [`Key::sign`] uses.
    pub fn scheme(&self) -> SignatureScheme {
        self.scheme
    }

    /// Signs a message; ECDSA signatures are DER.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        let signer = self.signing.choose_scheme(&[self.scheme]).ok_or(PkiError::Crypto("no signer"))?;
        signer.sign(message).map_err(|_| PkiError::Crypto("signing failed"))
    }

    /// The `AlgorithmIdentifier` of [`Key::sign`].
    pub(crate) fn algorithm(&self) -> Vec<u8> {
        match self.scheme {
            SignatureScheme::RSA_PKCS1_SHA256 => der::sequence(&[&der::object_id(oid::RSA_SHA256), &[5, 0]]),
            SignatureScheme::ECDSA_NISTP384_SHA384 => der::sequence(&[&der::object_id(oid::ECDSA_SHA384)]),
            SignatureScheme::ED25519 => der::sequence(&[&der::object_id(oid::ED25519)]),
            _ => der::sequence(&[&der::object_id(oid::ECDSA_SHA256)]),
        }
    }
}

/// A public key as SubjectPublicKeyInfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublicKey {
    spki: Arc<[u8]>,
    raw: Arc<[u8]>,
    is_rsa: bool,
}

impl PublicKey {
    /// Decodes a DER SubjectPublicKeyInfo.
    pub fn from_spki(spki: &[u8]) -> Result<Self, PkiError> {
        let (rest, parsed) = SubjectPublicKeyInfo::from_der(spki).map_err(|e| PkiError::malformed("public key", e))?;
        if !rest.is_empty() {
            return Err(PkiError::malformed("public key", "trailing bytes"));
        }
        let is_rsa = parsed.algorithm.algorithm == x509_parser::oid_registry::OID_PKCS1_RSAENCRYPTION;
        Ok(Self { raw: parsed.subject_public_key.data.as_ref().into(), is_rsa, spki: spki.into() })
    }
    /// Returns the public keys in PEM blocks: public keys, and the public parts of certificates and private keys.
    pub fn all_from_pem(text: &str) -> Result<Vec<Self>, PkiError> {
        let mut keys = Vec::new();
        for (label, der) in pem::blocks(text)? {
            match label {
                "PUBLIC KEY" => keys.push(Self::from_spki(&der)?),
                "CERTIFICATE" => {
                    let (_, cert) = x509_parser::certificate::X509Certificate::from_der(&der)
                        .map_err(|e| PkiError::malformed("certificate", e))?;
                    keys.push(Self::from_spki(cert.public_key().raw)?);
                }
                l if l.ends_with("PRIVATE KEY") => keys.push(Key::from_pem(&pem::pem_block(l, &der))?.public),
                _ => {}
            }
        }
        if keys.is_empty() { Err(PkiError::malformed("public key", "no key found")) } else { Ok(keys) }
    }
    /// Returns the DER SubjectPublicKeyInfo.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }
    /// Returns the key's bits: an uncompressed point, or a PKCS#1 RSAPublicKey.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }
    /// Reports whether the key is RSA. Otherwise it is an elliptic curve key.
    pub fn is_rsa(&self) -> bool {
        self.is_rsa
    }
    /// Upstream's `kid` of service account keys: URL-safe base64 of the SHA-256 of the SPKI.
    pub fn key_id(&self) -> String {
        use base64::Engine;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(&self.spki))
    }
    /// RFC 5280's SHA-1 identifier is only a hint; the first 20 bytes of SHA-256 (RFC 7093, method 1) serve as well.
    pub(crate) fn identifier(&self) -> Vec<u8> {
        Sha256::digest(&self.raw)[..20].to_vec()
    }
    /// The public key as PEM.
    pub fn to_pem(&self) -> String {
        pem::pem_block("PUBLIC KEY", &self.spki)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_silence() {
        let key = Key::generate().unwrap();
        let again = Key::from_pem(&key.to_pem()).unwrap();
        assert_eq!(key.public(), again.public());
        assert!(!key.public().is_rsa());
        assert_eq!(key.public().key_id().len(), 43);
        assert_eq!(PublicKey::all_from_pem(&key.to_pem()).unwrap(), vec![key.public().clone()]);
        assert_eq!(PublicKey::all_from_pem(&key.public().to_pem()).unwrap(), vec![key.public().clone()]);
        let typed = key.to_typed_pem();
        assert!(typed.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "some clients take untyped keys for RSA");
        let read = Key::from_pem(&typed).unwrap();
        assert_eq!((read.public(), read.to_typed_pem()), (key.public(), typed));
        let rsa = Key::from_pem(include_str!("../rows/rsa.pem")).unwrap();
        let typed = rsa.to_typed_pem();
        assert!(typed.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"));
        assert_eq!(Key::from_pem(&typed).unwrap().public(), rsa.public());
        let shown = format!("{key:?}");
        assert_eq!(shown, "Key { scheme: ECDSA_NISTP256_SHA256, .. }");
        assert!(Key::from_pem("x").is_err());
        assert!(Key::from_pem(&pem::pem_block("PRIVATE KEY", b"junk")).is_err());
    }
}
