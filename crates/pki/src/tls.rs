//! TLS configuration that follows rotation: a certificate that can be replaced under running listeners, and client
//! certificates that are requested but not required. Authentication verifies client certificates, so that an invalid
//! one results in a 401 with a log line and not in a failed handshake.
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::chain::{ChainFault, Pool, Usage};
use crate::peer::{Anyone, Judge, PeerCertificates, PeerVerifier};
use crate::{CertInfo, Issued, PkiError, Renewal, pem};

/// `sha1WithRSAEncryption` and `ecdsa-with-SHA1` (RFC 3279).
const SHA1: [&str; 2] = ["1.2.840.113549.1.1.5", "1.2.840.10045.4.1"];

/// Whether the signature of a certificate is over a SHA-1 digest, which nothing here accepts. What does not parse is not.
pub fn is_signed_over_sha1(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    // A root signs itself, and its signature is not looked at.
    parsed.issuer().as_raw() != parsed.subject().as_raw()
        && SHA1.contains(&parsed.signature_algorithm.algorithm.to_id_string().as_str())
}

/// A certificate, of a server or a client, that may be replaced at any time; new handshakes show the new one.
pub struct SwappableCertificate {
    current: RwLock<(Arc<CertifiedKey>, Renewal)>,
}

impl fmt::Debug for SwappableCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwappableCertificate").field("renewal", &self.renewal()).finish_non_exhaustive()
    }
}

fn certified(issued: &Issued) -> Result<(Arc<CertifiedKey>, Renewal), PkiError> {
    let chain = pem::certificates_from_pem(&issued.cert_pem)?;
    let info = CertInfo::from_der(&chain[0])?;
    let renewal = Renewal::random(info.not_before, info.not_after);
    Ok((Arc::new(CertifiedKey::new(chain, issued.key.signing())), renewal))
}

impl SwappableCertificate {
    /// Starts with this certificate.
    pub fn new(issued: &Issued) -> Result<Arc<Self>, PkiError> {
        Ok(Arc::new(Self { current: RwLock::new(certified(issued)?) }))
    }
    /// Replaces it; open connections keep what they have.
    pub fn swap(&self, issued: &Issued) -> Result<(), PkiError> {
        let next = certified(issued)?;
        *self.current.write() = next;
        Ok(())
    }
    /// Returns when the current one must be renewed and when it expires.
    pub fn renewal(&self) -> Renewal {
        self.current.read().1
    }
}

impl ResolvesServerCert for SwappableCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().0.clone())
    }
}

impl ResolvesClientCert for SwappableCertificate {
    fn resolve(&self, _issuers: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().0.clone())
    }
    fn has_certs(&self) -> bool {
        true
    }
}

/// Requests a client certificate, requires none, and checks only that the client holds the key of what it shows.
#[derive(Debug)]
pub struct AnyClientCertificate;

impl AnyClientCertificate {
    /// The check for servers; `ca_pems` are named to the client as acceptable issuers, so that it offers the right certificate.
    ///
    /// # Errors
    /// When the bundles cannot be read.
    pub fn verifier(ca_pems: &[&str]) -> Result<Arc<dyn ClientCertVerifier>, PkiError> {
        Ok(PeerVerifier::of_clients(Anyone, pool(ca_pems)?.subjects(), false))
    }
}

fn pool(ca_pems: &[&str]) -> Result<Pool, PkiError> {
    let bundles = ca_pems.iter().map(|text| pem::certificates_from_pem(text)).collect::<Result<Vec<_>, _>>()?;
    Pool::new(bundles.into_iter().flatten()).map_err(|e| PkiError::malformed("CA certificate", e))
}

/// Verifies client certificate chains with a CA bundle. The bundle may be replaced at any time; clones share it.
#[derive(Clone, Debug)]
pub struct ClientChains {
    trusted: Arc<RwLock<Trusted>>,
}

#[derive(Debug)]
struct Trusted {
    pool: Arc<Pool>,
    /// The number of replacements of the bundle.
    generation: u64,
}

impl ClientChains {
    /// Trusting the CAs in `ca_pems`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn new(ca_pems: &[&str]) -> Result<Self, PkiError> {
        let trusted = Trusted { pool: Arc::new(pool(ca_pems)?), generation: 0 };
        Ok(Self { trusted: Arc::new(RwLock::new(trusted)) })
    }
    /// Trusts only these CAs from now on, including on open connections: their certificates are verified at each
    /// request.
    ///
    /// # Errors
    /// They cannot be read; the trusted ones do not change.
    pub fn replace(&self, ca_pems: &[&str]) -> Result<(), PkiError> {
        let pool = Arc::new(pool(ca_pems)?);
        let mut trusted = self.trusted.write();
        *trusted = Trusted { pool, generation: trusted.generation + 1 };
        Ok(())
    }
    /// Another number after each [`ClientChains::replace`]: what was found out under an earlier one may be wrong.
    pub fn generation(&self) -> u64 {
        self.trusted.read().generation
    }
    /// Verifies that `chain` (leaf first) leads to a trusted CA at time `now` and is for clients.
    ///
    /// # Errors
    /// The reason for which the chain is rejected.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), ChainFault> {
        let pool = Arc::clone(&self.trusted.read().pool);
        pool.verify(chain, Usage::Client, now)
    }
    /// Returns the verifier for servers that require client certificates.
    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let pool = Arc::clone(&self.trusted.read().pool);
        PeerVerifier::of_clients(self.clone(), pool.subjects(), true)
    }
}

impl Judge for ClientChains {
    fn judge(&self, shown: &PeerCertificates<'_>) -> Result<(), rustls::Error> {
        let pool = Arc::clone(&self.trusted.read().pool);
        pool.judge(shown)
    }
}

/// Verifies servers' certificates with a CA bundle that may be replaced at any time; clones share it. Open connections
/// stay open.
#[derive(Clone, Debug)]
pub struct ServerChains {
    pool: Arc<RwLock<Arc<Pool>>>,
}

impl ServerChains {
    /// Trusting the CAs in `ca_pem`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn new(ca_pem: &str) -> Result<Self, PkiError> {
        Ok(Self::of(pool(&[ca_pem])?))
    }
    /// Trusting a pool.
    pub fn of(pool: Pool) -> Self {
        Self { pool: Arc::new(RwLock::new(Arc::new(pool))) }
    }
    /// Trusts these CAs and no others for connections from now on.
    ///
    /// # Errors
    /// When they cannot be read; what was trusted stays so.
    pub fn replace(&self, ca_pem: &str) -> Result<(), PkiError> {
        let next = Arc::new(pool(&[ca_pem])?);
        *self.pool.write() = next;
        Ok(())
    }
    /// Whether `chain` (leaf first) is a server's of this name and leads to a trusted CA at time `now`; the error says why not.
    pub fn verify(&self, chain: &[CertificateDer<'_>], name: &str, now: Timestamp) -> Result<(), String> {
        let (leaf, rest) = chain.split_first().ok_or("no certificate")?;
        let name = ServerName::try_from(name).map_err(|e| e.to_string())?;
        self.judge(&PeerCertificates { leaf, rest, name: Some(&name), now }).map_err(|e| e.to_string())
    }
    /// The check for clients.
    pub fn verifier(&self) -> Arc<dyn ServerCertVerifier> {
        PeerVerifier::of_servers(self.clone())
    }
}

impl Judge for ServerChains {
    fn judge(&self, shown: &PeerCertificates<'_>) -> Result<(), rustls::Error> {
        let pool = Arc::clone(&self.pool.read());
        pool.judge(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, LeafSpec, Purpose};
    use std::time::Duration;

    /// A leaf and its root, both signed by ecdsa-with-SHA1 (made by openssl, good for a hundred years).
    const OVER_SHA1: &str = "-----BEGIN CERTIFICATE-----
MIIBAzCBqwIBBzAJBgcqhkjOPQQBMA0xCzAJBgNVBAMMAmNhMCAXDTI2MTEyMjIx
MDQwOFoYDzIxMjYxMDI5MjEwNDA4WjAPMQ0wCwYDVQQDDARsZWFmMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEm4Qed3wQ/RNoGlFPAxk5rq0abSFz+Fun1YCIbY4q
Xi2w1vt9K1Acj7b1I8ZGJSHZ9+IksO4jzyRXYcdq6TDZtzAJBgcqhkjOPQQBA0gA
MEUCIAUpU0MtpAwpW8X7FnRmtSEeEq+mrWGepxBFdrGnmbhOAiEAwB4SNB8Rz1GY
zxzV7+ItwscDUANMPJYDVo1xExQrUrw=
-----END CERTIFICATE-----
-----BEGIN CERTIFICATE-----
MIIBbjCCARagAwIBAgIUG1FxCJMmquIdL191JgJC3l8fjCIwCQYHKoZIzj0EATAN
MQswCQYDVQQDDAJjYTAgFw0yNjExMjIyMTA0MDhaGA8yMTI2MTAyOTIxMDQwOFow
DTELMAkGA1UEAwwCY2EwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATBx9SsFQ01
NfRATIuJiKYpSRjt+y7IOeLzb0DwA68GYIE4DVC0k1rX2hPJY6YRVOsxzIEsYFQe
X7IeM3upcCAso1MwUTAdBgNVHQ4EFgQU7vX40aXmukkYEBlwGebdMLXa2P4wHwYD
VR0jBBgwFoAU7vX40aXmukkYEBlwGebdMLXa2P4wDwYDVR0TAQH/BAUwAwEB/zAJ
BgcqhkjOPQQBA0cAMEQCIDzVP3c8CH4kfSfLsEhte0FPZ8/wcM+5YaHUwlJoq0Vs
AiBAMkoJzaSvqkG7Q/VsIxkwW6skToZdydectH48dowMIw==
-----END CERTIFICATE-----
";

    #[test]
    fn signatures_over_sha1_are_reported_except_those_of_roots() {
        let shown = pem::certificates_from_pem(OVER_SHA1).unwrap();
        let reported: Vec<bool> = shown.iter().map(is_signed_over_sha1).collect();
        assert_eq!(reported, [true, false]);
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let ours = pem::certificates_from_pem(Authority::create("ca", now).unwrap().cert_pem()).unwrap();
        assert!(!is_signed_over_sha1(&ours[0]) && !is_signed_over_sha1(&CertificateDer::from(vec![1, 2])));
    }

    #[test]
    fn chains() {
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let ca = Authority::create("ca", now).unwrap();
        let other = Authority::create("ca", now).unwrap();
        let spec = |purpose| LeafSpec {
            common_name: "jane",
            organizations: &[],
            sans: &[],
            purpose,
            lifetime: Duration::from_secs(3600),
        };
        let chains = ClientChains::new(&[ca.cert_pem()]).unwrap();
        let der = |i: &Issued| pem::certificates_from_pem(&i.cert_pem).unwrap();
        let good = ca.issue(&spec(Purpose::Client), now).unwrap();
        assert_eq!(chains.verify(&der(&good), now), Ok(()));
        assert!(chains.verify(&der(&good), now + Duration::from_secs(3601)).is_err());
        assert!(chains.verify(&der(&good), now - Duration::from_secs(301)).is_err());
        assert!(chains.verify(&der(&ca.issue(&spec(Purpose::Server), now).unwrap()), now).is_err());
        assert!(chains.verify(&der(&other.issue(&spec(Purpose::Client), now).unwrap()), now).is_err());
        assert!(chains.verify(&[], now).is_err());

        let shared = chains.clone();
        chains.replace(&[other.cert_pem()]).unwrap();
        assert!(shared.verify(&der(&good), now).is_err(), "clones follow");
        assert_eq!(shared.verify(&der(&other.issue(&spec(Purpose::Client), now).unwrap()), now), Ok(()));
        assert!(chains.replace(&["no certificate"]).is_err());
        assert_eq!(chains.generation(), 1, "what is no good replaces nothing");

        let cert = SwappableCertificate::new(&good).unwrap();
        let first = cert.renewal();
        cert.swap(&ca.issue(&spec(Purpose::Server), now + Duration::from_secs(60)).unwrap()).unwrap();
        assert_eq!(cert.renewal().expires, first.expires + Duration::from_secs(60));
        assert!(!format!("{cert:?}").contains("PRIVATE"));
    }
}
