//! The parts of a certificate that the verification of a chain uses.
use std::collections::HashSet;

use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::{FromDer as _, Sequence};
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::fault::ChainFault;
use super::names::{Constraints, Name};
use crate::ecdsa::{self, Hash};
use crate::foreign::{ForeignKey, KeyKind};
use crate::provider;

/// Extensions that are checked or do not matter here. Another critical extension makes a certificate invalid (RFC 5280,
/// 4.2).
const KNOWN: [&str; 10] = [
    "2.5.29.14",
    "2.5.29.15",
    "2.5.29.17",
    "2.5.29.19",
    "2.5.29.30",
    "2.5.29.31",
    "2.5.29.32",
    "2.5.29.35",
    "2.5.29.37",
    "1.3.6.1.5.5.7.1.1",
];
const ALTERNATIVE_NAMES: &str = "2.5.29.17";

/// The purpose for which a chain is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Use as a client certificate (`clientAuth`).
    Client,
    /// Use as a server certificate (`serverAuth`).
    Server,
}

/// A parsed certificate.
#[derive(Debug)]
pub(super) struct Certificate {
    pub(super) der: CertificateDer<'static>,
    /// Distinguished names as they are encoded.
    pub(super) subject: Vec<u8>,
    pub(super) issuer: Vec<u8>,
    /// The name in error messages.
    pub(super) shown: String,
    pub(super) key_id: Option<Vec<u8>>,
    pub(super) issuer_key_id: Option<Vec<u8>>,
    /// Seconds of Unix time, both inclusive.
    pub(super) validity: (i64, i64),
    has_unknown_critical: bool,
    /// Whether it is a CA, and how many intermediates may be below it.
    basic: Option<(bool, Option<u32>)>,
    is_v3: bool,
    /// Whether it may sign certificates, if it restricts the use of its key.
    may_sign: Option<bool>,
    /// The purposes, if it restricts them.
    purposes: Option<Purposes>,
    pub(super) names: Vec<Name>,
    /// The encoded extension with alternative names.
    alternative_names: Option<Vec<u8>>,
    pub(super) constraints: Option<Constraints>,
    signed: Vec<u8>,
    signature: Vec<u8>,
    /// Identifiers as they are encoded, without their header.
    signature_algorithm: Vec<u8>,
    key_algorithm: Vec<u8>,
    key: ForeignKey,
}

#[derive(Debug)]
struct Purposes {
    any: bool,
    client: bool,
    server: bool,
}

impl Certificate {
    /// Parses a certificate.
    ///
    /// # Errors
    /// [`ChainFault::Malformed`].
    pub(super) fn parse(der: &CertificateDer<'_>) -> Result<Self, ChainFault> {
        let malformed = |why: &dyn std::fmt::Display| ChainFault::Malformed(why.to_string());
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|e| malformed(&e))?;
        if !rest.is_empty() {
            return Err(malformed(&"trailing data"));
        }
        if parsed.tbs_certificate.signature != parsed.signature_algorithm {
            return Err(malformed(&"inner and outer signature algorithm identifiers don't match"));
        }
        if parsed.signature_value.unused_bits != 0 || parsed.public_key().subject_public_key.unused_bits != 0 {
            return Err(malformed(&"key or signature is not a whole number of bytes"));
        }
        let spki = parsed.public_key();
        let content = |der: &[u8]| Sequence::from_der(der).map(|(rest, s)| (s.content.into_owned(), rest.len()));
        // A certificate consists of the signed part, the algorithm and the signature. A key consists of an algorithm
        // and bits.
        let signed = parsed.tbs_certificate.as_ref().to_vec();
        let (whole, _) = content(der).map_err(|e| malformed(&e))?;
        let after = whole.get(signed.len()..).ok_or_else(|| malformed(&"no signature"))?;
        let (signature_algorithm, _) = content(after).map_err(|e| malformed(&e))?;
        let (key_algorithm, _) = content(spki.raw).and_then(|(key, _)| content(&key)).map_err(|e| malformed(&e))?;
        let mut found = Self {
            der: der.clone().into_owned(),
            subject: parsed.subject().as_raw().to_vec(),
            issuer: parsed.issuer().as_raw().to_vec(),
            shown: shown(&parsed),
            key_id: None,
            issuer_key_id: None,
            validity: (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp()),
            has_unknown_critical: false,
            basic: None,
            is_v3: parsed.version().0 == 2,
            may_sign: None,
            purposes: None,
            names: Vec::new(),
            alternative_names: None,
            constraints: None,
            signed,
            signature: parsed.signature_value.data.to_vec(),
            signature_algorithm,
            key_algorithm,
            key: ForeignKey::of(spki),
        };
        found.read_extensions(&parsed)?;
        Ok(found)
    }

    fn read_extensions(&mut self, parsed: &X509Certificate<'_>) -> Result<(), ChainFault> {
        let mut seen = HashSet::new();
        for extension in parsed.extensions() {
            let id = extension.oid.to_id_string();
            if !seen.insert(id.clone()) {
                return Err(ChainFault::Malformed("certificate contains duplicate extensions".into()));
            }
            let mut is_understood = KNOWN.contains(&id.as_str());
            match extension.parsed_extension() {
                ParsedExtension::ParseError { error } if is_understood => {
                    return Err(ChainFault::Malformed(format!("extension {id}: {error}")));
                }
                ParsedExtension::SubjectKeyIdentifier(key) => self.key_id = Some(key.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(key) => {
                    self.issuer_key_id = key.key_identifier.as_ref().map(|key| key.0.to_vec());
                }
                ParsedExtension::BasicConstraints(basic) => self.basic = Some((basic.ca, basic.path_len_constraint)),
                // A key usage without any bit is no restriction.
                ParsedExtension::KeyUsage(usage) if usage.flags != 0 => self.may_sign = Some(usage.key_cert_sign()),
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    let purposes = Purposes { any: usage.any, client: usage.client_auth, server: usage.server_auth };
                    self.purposes = Some(purposes);
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    self.names = names.general_names.iter().filter_map(name).collect();
                    // A name of an unknown kind may be the relevant one.
                    is_understood = !self.names.is_empty();
                    if names.general_names.iter().any(|name| matches!(name, GeneralName::Invalid(..))) {
                        return Err(ChainFault::Malformed("invalid subject alternative name".into()));
                    }
                }
                ParsedExtension::NameConstraints(constraints) => {
                    let (constraints, all) = Constraints::of(constraints)?;
                    self.constraints = Some(constraints);
                    is_understood = all;
                }
                _ => {}
            }
            if id == ALTERNATIVE_NAMES {
                self.alternative_names = Some(extension.value.to_vec());
            }
            self.has_unknown_critical |= extension.critical && !is_understood;
        }
        Ok(())
    }

    /// Reports whether both have the same subject and key. A chain contains each such certificate only once.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.subject == other.subject && self.key.is(&other.key) && self.alternative_names == other.alternative_names
    }

    /// Checks a certificate of a chain as Go does; `below` are the certificates below it, the leaf first.
    pub(super) fn check(&self, is_intermediate: bool, below: &[&Self], now: i64) -> Result<(), ChainFault> {
        if self.has_unknown_critical {
            return Err(ChainFault::UnhandledExtension);
        }
        let time = |seconds: i64| jiff::Timestamp::from_second(seconds).unwrap_or_default();
        let (begin, end) = self.validity;
        if now < begin {
            return Err(ChainFault::NotYetValid { now: time(now), begin: time(begin) });
        }
        if now > end {
            return Err(ChainFault::Expired { now: time(now), end: time(end) });
        }
        if let Some(constraints) = self.constraints.as_ref().filter(|_| !below.is_empty()) {
            constraints.check(below.iter().flat_map(|certificate| &certificate.names))?;
        }
        if is_intermediate && !self.basic.is_some_and(|(is_authority, _)| is_authority) {
            return Err(ChainFault::NotAuthority);
        }
        match self.basic {
            Some((_, Some(most))) if below.len() > most as usize + 1 => Err(ChainFault::TooManyIntermediates),
            _ => Ok(()),
        }
    }

    /// Reports whether the certificate has this purpose, or no restriction.
    pub(super) fn is_for(&self, usage: Usage) -> bool {
        self.purposes.as_ref().is_none_or(|purposes| {
            purposes.any
                || match usage {
                    Usage::Client => purposes.client,
                    Usage::Server => purposes.server,
                }
        })
    }

    /// Checks that `issuer` signed this certificate and may sign.
    pub(super) fn check_signature(&self, issuer: &Self) -> Result<(), ChainFault> {
        let is_authority = match issuer.basic {
            Some((is_authority, _)) => is_authority,
            // Basic constraints exist only in version 3.
            None => !issuer.is_v3,
        };
        if !is_authority || issuer.may_sign == Some(false) {
            return Err(ChainFault::CannotSign);
        }
        // RSA keys with fewer than 2048 bits are rejected, which is stricter than Go.
        let known = provider().signature_verification_algorithms.all;
        let fitting = known.iter().find(|algorithm| {
            algorithm.signature_alg_id().as_ref() == self.signature_algorithm
                && algorithm.public_key_alg_id().as_ref() == issuer.key_algorithm
        });
        let verified = match fitting {
            Some(algorithm) => algorithm.verify_signature(issuer.key.raw(), &self.signed, &self.signature).is_ok(),
            None => self.has_unusual_signature(issuer).ok_or_else(|| self.unknown_algorithm())?,
        };
        if verified {
            return Ok(());
        }
        Err(ChainFault::Signature(match issuer.key.kind() {
            KeyKind::Rsa(bits) if *bits < 2048 => "x509: RSA keys of fewer than 2048 bits are not accepted",
            KeyKind::Rsa(_) => "crypto/rsa: verification error",
            KeyKind::Ed25519 => "x509: Ed25519 verification failure",
            KeyKind::Ecdsa(_) | KeyKind::Other => "x509: ECDSA verification failure",
        }))
    }

    /// Verifies ECDSA signatures with unusual combinations of curve and digest. Returns `None` for other algorithms.
    fn has_unusual_signature(&self, issuer: &Self) -> Option<bool> {
        let KeyKind::Ecdsa(curve) = issuer.key.kind() else { return None };
        let hash = Hash::of_algorithm(&self.signature_id()?).filter(|hash| *hash != Hash::Sha224)?;
        Some(ecdsa::has_signed(curve, issuer.key.raw(), hash, &self.signed, &self.signature))
    }

    fn signature_id(&self) -> Option<String> {
        const OBJECT_IDENTIFIER: u8 = 6;
        // The parser does not check the tag.
        if self.signature_algorithm.first() != Some(&OBJECT_IDENTIFIER) {
            return None;
        }
        let oid = x509_parser::der_parser::asn1_rs::Oid::from_der(&self.signature_algorithm);
        oid.ok().map(|(_, oid)| oid.to_id_string())
    }

    fn unknown_algorithm(&self) -> ChainFault {
        ChainFault::Signature(match self.signature_id().as_deref() {
            Some("1.2.840.113549.1.1.4") => "x509: cannot verify signature: insecure algorithm MD5-RSA",
            Some("1.2.840.113549.1.1.5") => "x509: cannot verify signature: insecure algorithm SHA1-RSA",
            Some("1.2.840.10045.4.1") => "x509: cannot verify signature: insecure algorithm ECDSA-SHA1",
            _ => "x509: cannot verify signature: algorithm unimplemented",
        })
    }
}

fn shown(parsed: &X509Certificate<'_>) -> String {
    let subject = parsed.subject();
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().ok().map(str::to_owned);
    let common = subject.iter_common_name().filter_map(text).find(|name| !name.is_empty());
    let organization = || subject.iter_organization().filter_map(text).find(|name| !name.is_empty());
    common.or_else(organization).unwrap_or_else(|| format!("serial:{}", parsed.serial))
}

fn name(of: &GeneralName<'_>) -> Option<Name> {
    Some(match of {
        GeneralName::DNSName(name) => Name::Dns((*name).to_owned()),
        GeneralName::RFC822Name(name) => Name::Email((*name).to_owned()),
        GeneralName::URI(uri) => Name::Uri((*uri).to_owned()),
        GeneralName::IPAddress(address) => Name::Address(address.to_vec()),
        _ => return None,
    })
}
