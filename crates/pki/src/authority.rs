//! Certificate authorities and the certificates they issue.
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::der::{self, oid};
use crate::lifetime::{BACKDATE, CA_LIFETIME};
use crate::{Key, PkiError, PublicKey, file, pem};

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum San {
    /// A DNS name.
    Dns(String),
    /// An IP address, compared as one.
    Ip(IpAddr),
    /// A URI, such as a SPIFFE identity.
    Uri(String),
    /// A mail address.
    Email(String),
}

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A TLS server.
    Server,
    /// A TLS client.
    Client,
    /// Both uses, as for the certificate of an aggregating API server.
    Both,
}

/// A leaf certificate to be issued.
#[derive(Clone, Debug)]
pub struct LeafSpec<'a> {
    /// `CN`: the user name of a client.
    pub common_name: &'a str,
    /// `O`: the groups of a client.
    pub organizations: &'a [String],
    /// The names under which clients reach a server.
    pub sans: &'a [San],
    /// The purpose, which becomes its extended key usage.
    pub purpose: Purpose,
    /// The lifetime from now. It ends with the CA's at the latest.
    pub lifetime: Duration,
}

/// A certificate with its key, ready for TLS.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate as PEM.
    pub cert_pem: String,
    /// Its private key.
    pub key: Key,
}

/// The properties of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertInfo {
    /// The subject's `CN`, a user's or node's name.
    pub common_name: String,
    /// `O` values in order.
    pub organizations: Vec<String>,
    /// The `CN` of the issuer.
    pub issuer: String,
    /// Subject alternative names.
    pub sans: Vec<San>,
    /// Begin of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// Whether it is a CA's.
    pub is_ca: bool,
}

/// A TBSCertificate's variable parts, shared by self-signed, leaf and CSR-based issuing.
pub(crate) struct Template<'a> {
    pub subject: &'a [u8],
    pub public: &'a PublicKey,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub key_usage: u16,
    pub extended_usages: &'a [Vec<u8>],
    pub sans: &'a [San],
    pub is_ca: bool,
}

/// Bits of `KeyUsage`.
pub(crate) const DIGITAL_SIGNATURE: u16 = 1;
pub(crate) const KEY_ENCIPHERMENT: u16 = 1 << 2;
const KEY_CERT_SIGN: u16 = 1 << 5;
const CRL_SIGN: u16 = 1 << 6;

/// A certificate authority: certificate and private key. It issues the certificates of a cluster and signs requests.
/// During a rotation, its cross certificate ([`Authority::cross_pem`]) lets parties that trust only the predecessor
/// accept certificates that it issues. The key is never printed.
#[derive(Clone, Debug)]
pub struct Authority {
    cert: CertificateDer<'static>,
    cert_pem: String,
    key: Key,
    subject: Vec<u8>,
    info: CertInfo,
    cross: String,
}

impl Authority {
    /// A new self-signed CA.
    pub fn create(common_name: &str, now: Timestamp) -> Result<Self, PkiError> {
        Self::self_signed(&der::name(common_name, &[]), now)
    }

    fn self_signed(subject: &[u8], now: Timestamp) -> Result<Self, PkiError> {
        let key = Key::generate()?;
        let der = build(&of_authority(subject, key.public(), now), subject, &key)?;
        Self::from_parts(&pem::pem_block("CERTIFICATE", &der), key)
    }

    /// Creates the successor of this CA, with the same name and a new key. While both are trusted, a party that trusts
    /// only this CA also accepts certificates of the successor, by a cross certificate: this CA signs the successor's
    /// key, and the certificate is presented with those of the successor ([`Authority::cross_pem`], RFC 4158).
    /// An expired CA does not sign its successor, since that certificate would not be trusted.
    ///
    /// # Errors
    /// The key cannot be created.
    pub fn successor(&self, now: Timestamp) -> Result<Self, PkiError> {
        let next = Self::self_signed(&self.subject, now)?;
        match self.sign_template(&of_authority(&self.subject, next.key.public(), now)) {
            Ok(cross) => Ok(next.with_cross(pem::pem_block("CERTIFICATE", &cross))),
            Err(PkiError::SignerExpired(_)) => Ok(next),
            Err(other) => Err(other),
        }
    }

    /// Sets the cross-certificate of the previous CA for this one's key; empty when there is none.
    pub(crate) fn with_cross(self, cross: String) -> Self {
        Self { cross, ..self }
    }

    /// The certificate of this CA's key by its predecessor, in PEM. Empty if the predecessor is no longer trusted.
    /// Server certificates of this CA are presented with it.
    pub fn cross_pem(&self) -> &str {
        &self.cross
    }

    /// Returns the private key. Secret, only for the CA's own file.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether this CA's key signed the first certificate of `pem`.
    pub fn has_issued(&self, pem: &str) -> bool {
        is_issued_by(pem, &self.cert_pem)
    }

    /// Creates a CA from a PEM certificate and its key; they must match.
    pub fn from_parts(cert_pem: &str, key: Key) -> Result<Self, PkiError> {
        let cert = pem::certificates_from_pem(cert_pem)?.remove(0);
        let (_, parsed) = X509Certificate::from_der(&cert).map_err(|e| PkiError::malformed("certificate", e))?;
        if parsed.public_key().raw != key.public().spki() {
            return Err(PkiError::malformed("certificate", "does not match the key"));
        }
        let (subject, info) = (parsed.subject().as_raw().to_vec(), info_of(&parsed)?);
        Ok(Self { cert_pem: cert_pem.to_owned(), cert, key, subject, info, cross: String::new() })
    }

    /// Reads `NAME.crt` and `NAME.key` in `dir`, or creates them. An incomplete pair is an error and is never replaced,
    /// since all certificates of the old CA would become invalid.
    pub fn load_or_create(dir: &Path, name: &str, common_name: &str, now: Timestamp) -> Result<Self, PkiError> {
        let (crt, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        match (file::read(&crt)?, file::read(&key)?) {
            (Some(c), Some(k)) => {
                Self::from_parts(&c, Key::from_pem(&k)?).map_err(|e| PkiError::malformed(crt.display().to_string(), e))
            }
            (None, Some(k)) => {
                // The key is written first. A crash between the two leaves a key that has not signed anything yet.
                let _ = Key::from_pem(&k)?;
                Self::write_new(&crt, &key, common_name, now)
            }
            (None, None) => Self::write_new(&crt, &key, common_name, now),
            (Some(_), None) => {
                Err(PkiError::malformed(key.display().to_string(), "missing, though its certificate exists"))
            }
        }
    }

    fn write_new(crt: &Path, key: &Path, common_name: &str, now: Timestamp) -> Result<Self, PkiError> {
        let ca = Self::create(common_name, now)?;
        file::write_secret(key, ca.key.to_pem().as_bytes(), true)?;
        file::write_secret(crt, ca.cert_pem.as_bytes(), true)?;
        Ok(ca)
    }

    /// The CA's certificate as PEM.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }
    /// The CA's certificate.
    pub fn cert(&self) -> &CertificateDer<'static> {
        &self.cert
    }
    /// Facts of its certificate.
    pub fn info(&self) -> &CertInfo {
        &self.info
    }

    /// Issues a certificate with a new key.
    pub fn issue(&self, spec: &LeafSpec<'_>, now: Timestamp) -> Result<Issued, PkiError> {
        self.issue_for(spec, Key::generate()?, now)
    }

    /// Issues a certificate for an existing key.
    pub fn issue_for(&self, spec: &LeafSpec<'_>, key: Key, now: Timestamp) -> Result<Issued, PkiError> {
        let usages: Vec<Vec<u8>> = match spec.purpose {
            Purpose::Server => vec![eku(1)],
            Purpose::Client => vec![eku(2)],
            Purpose::Both => vec![eku(1), eku(2)],
        };
        let subject = der::name(spec.common_name, spec.organizations);
        let der = self.sign_template(&Template {
            subject: &subject,
            public: key.public(),
            not_before: now - BACKDATE,
            not_after: now + spec.lifetime,
            key_usage: DIGITAL_SIGNATURE | if key.public().is_rsa() { KEY_ENCIPHERMENT } else { 0 },
            extended_usages: &usages,
            sans: spec.sans,
            is_ca: false,
        })?;
        Ok(Issued { cert_pem: pem::pem_block("CERTIFICATE", &der) + &self.cross, key })
    }

    /// Signs a certificate. Its validity ends with the CA's at the latest.
    pub(crate) fn sign_template(&self, template: &Template<'_>) -> Result<Vec<u8>, PkiError> {
        let end = self.info.not_after;
        if template.not_before >= end {
            return Err(PkiError::SignerExpired(end.to_string()));
        }
        let cut = Template { not_after: template.not_after.min(end), ..*template };
        build(&cut, &self.subject, &self.key)
    }
}

/// Reports whether the first certificate of `leaf_pem` was signed by the key of the first one of `issuer_pem`. This
/// distinguishes two CAs with the same name.
pub fn is_issued_by(leaf_pem: &str, issuer_pem: &str) -> bool {
    let (Ok(leaf), Ok(issuer)) = (pem::certificates_from_pem(leaf_pem), pem::certificates_from_pem(issuer_pem)) else {
        return false;
    };
    let (Ok((_, leaf)), Ok((_, issuer))) = (X509Certificate::from_der(&leaf[0]), X509Certificate::from_der(&issuer[0]))
    else {
        return false;
    };
    leaf.verify_signature(Some(issuer.public_key())).is_ok()
}

/// Returns the properties of a CA's own certificate.
fn of_authority<'a>(subject: &'a [u8], public: &'a PublicKey, now: Timestamp) -> Template<'a> {
    Template {
        subject,
        public,
        not_before: now - BACKDATE,
        not_after: now + CA_LIFETIME,
        key_usage: DIGITAL_SIGNATURE | KEY_ENCIPHERMENT | KEY_CERT_SIGN | CRL_SIGN,
        extended_usages: &[],
        sans: &[],
        is_ca: true,
    }
}

/// `id-kp-N` (1 server, 2 client, 3 code signing …).
pub(crate) fn eku(n: u8) -> Vec<u8> {
    der::object_id(&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, n])
}

pub(crate) fn general_names(sans: &[San]) -> Vec<u8> {
    let names: Vec<u8> = sans
        .iter()
        .flat_map(|san| match san {
            San::Email(m) => der::implicit(1, m.as_bytes()),
            San::Dns(d) => der::implicit(2, d.as_bytes()),
            San::Uri(u) => der::implicit(6, u.as_bytes()),
            San::Ip(IpAddr::V4(a)) => der::implicit(7, &a.octets()),
            San::Ip(IpAddr::V6(a)) => der::implicit(7, &a.octets()),
        })
        .collect();
    der::tlv(der::SEQUENCE, &names)
}

fn build(t: &Template<'_>, issuer: &[u8], signer: &Key) -> Result<Vec<u8>, PkiError> {
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 0x40;
    let mut extensions = Vec::new();
    if t.key_usage != 0 {
        extensions.extend(der::extension(oid::KEY_USAGE, true, &der::named_bits(t.key_usage)));
    }
    if !t.extended_usages.is_empty() {
        let list = der::tlv(der::SEQUENCE, &t.extended_usages.concat());
        extensions.extend(der::extension(oid::EXT_KEY_USAGE, false, &list));
    }
    extensions.extend(der::extension(oid::BASIC_CONSTRAINTS, true, &der::basic_constraints(t.is_ca)));
    if t.is_ca {
        extensions.extend(der::extension(oid::SUBJECT_KEY_ID, false, &der::octets(&t.public.identifier())));
    }
    if t.public != signer.public() {
        let id = der::sequence(&[&der::implicit(0, &signer.public().identifier())]);
        extensions.extend(der::extension(oid::AUTHORITY_KEY_ID, false, &id));
    }
    if !t.sans.is_empty() {
        // Critical when there is no subject to go by (RFC 5280, 4.2.1.6).
        let critical = t.subject == der::sequence(&[]);
        extensions.extend(der::extension(oid::SUBJECT_ALT_NAME, critical, &general_names(t.sans)));
    }
    let algorithm = signer.algorithm();
    let tbs = der::sequence(&[
        &der::explicit(0, &der::unsigned(&[2])),
        &der::unsigned(&serial),
        &algorithm,
        issuer,
        &der::sequence(&[&der::time(t.not_before), &der::time(t.not_after)]),
        t.subject,
        t.public.spki(),
        &der::explicit(3, &der::tlv(der::SEQUENCE, &extensions)),
    ]);
    let signature = signer.sign(&tbs)?;
    Ok(der::sequence(&[&tbs, &algorithm, &der::bits(&signature)]))
}

impl CertInfo {
    /// Reads the first certificate of PEM text.
    pub fn from_pem(text: &str) -> Result<Self, PkiError> {
        Self::from_der(&pem::certificates_from_pem(text)?[0])
    }
    /// Reads a DER certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, PkiError> {
        let (_, cert) = X509Certificate::from_der(der).map_err(|e| PkiError::malformed("certificate", e))?;
        info_of(&cert)
    }
    /// Whether `now` is within its validity.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

fn info_of(cert: &X509Certificate<'_>) -> Result<CertInfo, PkiError> {
    let (common_name, organizations) = subject_names(cert.subject());
    let sans = match cert.subject_alternative_name() {
        Ok(Some(ext)) => read_general_names(&ext.value.general_names),
        Ok(None) => Vec::new(),
        Err(e) => return Err(PkiError::malformed("certificate", e)),
    };
    let at = |seconds: i64| Timestamp::from_second(seconds).map_err(|e| PkiError::malformed("certificate", e));
    Ok(CertInfo {
        common_name,
        organizations,
        issuer: subject_names(cert.issuer()).0,
        sans,
        not_before: at(cert.validity().not_before.timestamp())?,
        not_after: at(cert.validity().not_after.timestamp())?,
        is_ca: cert.is_ca(),
    })
}

/// `CN` (the last one, as Go reads it) and all `O` values.
pub(crate) fn subject_names(name: &x509_parser::x509::X509Name<'_>) -> (String, Vec<String>) {
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or_default().to_owned();
    let common_name = name.iter_common_name().last().map(text).unwrap_or_default();
    (common_name, name.iter_organization().map(text).collect())
}

pub(crate) fn read_general_names(names: &[x509_parser::extensions::GeneralName<'_>]) -> Vec<San> {
    use x509_parser::extensions::GeneralName;
    names
        .iter()
        .filter_map(|n| match n {
            GeneralName::DNSName(d) => Some(San::Dns((*d).to_owned())),
            GeneralName::URI(u) => Some(San::Uri((*u).to_owned())),
            GeneralName::RFC822Name(m) => Some(San::Email((*m).to_owned())),
            GeneralName::IPAddress(b) => match b.len() {
                4 => <[u8; 4]>::try_from(*b).ok().map(|a| San::Ip(IpAddr::from(a))),
                16 => <[u8; 16]>::try_from(*b).ok().map(|a| San::Ip(IpAddr::from(a))),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issues_what_was_asked() {
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let ca = Authority::create("kubernetes", now).unwrap();
        assert!(ca.info().is_ca);
        assert_eq!(ca.info().common_name, "kubernetes");
        let orgs = ["system:masters".to_owned(), "a,b & c".to_owned()];
        let sans =
            [San::Dns("localhost".into()), San::Ip("127.0.0.1".parse().unwrap()), San::Ip("::1".parse().unwrap())];
        let spec = LeafSpec {
            common_name: "admin",
            organizations: &orgs,
            sans: &sans,
            purpose: Purpose::Both,
            lifetime: Duration::from_secs(3600),
        };
        let leaf = ca.issue(&spec, now).unwrap();
        let info = CertInfo::from_pem(&leaf.cert_pem).unwrap();
        assert_eq!(info.common_name, "admin");
        let mut got = info.organizations.clone();
        got.sort();
        assert_eq!(got, ["a,b & c", "system:masters"]);
        assert_eq!(info.sans, sans);
        assert_eq!(info.not_before, now - BACKDATE);
        assert_eq!(info.not_after, now + Duration::from_secs(3600));
        assert!(info.is_valid_at(now) && !info.is_valid_at(info.not_after));
        let der = pem::certificates_from_pem(&leaf.cert_pem).unwrap();
        let (_, cert) = X509Certificate::from_der(&der[0]).unwrap();
        let (_, issuer) = X509Certificate::from_der(ca.cert()).unwrap();
        cert.verify_signature(Some(issuer.public_key())).unwrap();
        issuer.verify_signature(None).unwrap();
        // No certificate is issued after the CA's expiry, and the validity of leaves ends with it.
        let late = ca.info().not_after - Duration::from_secs(60);
        let short = CertInfo::from_pem(&ca.issue(&spec, late).unwrap().cert_pem).unwrap();
        assert_eq!(short.not_after, ca.info().not_after);
        assert!(matches!(ca.issue(&spec, ca.info().not_after + BACKDATE), Err(PkiError::SignerExpired(_))));
    }

    #[test]
    fn half_a_pair() {
        let now = Timestamp::UNIX_EPOCH + CA_LIFETIME;
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::load_or_create(dir.path(), "ca", "x", now).unwrap();
        let again = Authority::load_or_create(dir.path(), "ca", "x", now).unwrap();
        assert_eq!(ca.cert(), again.cert());
        std::fs::remove_file(dir.path().join("ca.key")).unwrap();
        assert!(Authority::load_or_create(dir.path(), "ca", "x", now).is_err());
        let other = Key::generate().unwrap();
        assert!(Authority::from_parts(ca.cert_pem(), other).is_err());
    }
}
