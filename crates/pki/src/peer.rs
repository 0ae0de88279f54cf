//! Peer: the one verifier of TLS peers. Every connection, as a client or as a server, checks the signatures of the handshake here; what
//! else the peer's certificate must be is a [`Judge`]'s to say.
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

use crate::chain::{ChainFault, Pool, Usage};
use crate::provider;

/// A peer's certificate, and those that it sends along.
pub struct PeerCertificates<'a> {
    /// The peer's own.
    pub leaf: &'a CertificateDer<'a>,
    /// Certificates that may lead to a trusted one.
    pub rest: &'a [CertificateDer<'a>],
    /// The name of the peer; `None` for clients.
    pub name: Option<&'a ServerName<'a>>,
    /// The time of the check.
    pub now: Timestamp,
}

/// Says whether a peer's certificate is good.
pub trait Judge: fmt::Debug + Send + Sync {
    /// Verifies a peer.
    ///
    /// # Errors
    /// The reason for which the peer is rejected.
    fn judge(&self, shown: &PeerCertificates<'_>) -> Result<(), Error>;
}

/// A TLS verifier that delegates to a `Judge`.
#[derive(Debug)]
pub struct PeerVerifier {
    judge: Arc<dyn Judge>,
    /// Issuers that are named to clients.
    hints: Vec<DistinguishedName>,
    is_required: bool,
}

impl PeerVerifier {
    /// A verifier of servers.
    pub fn of_servers(judge: impl Judge + 'static) -> Arc<dyn ServerCertVerifier> {
        Arc::new(Self { judge: Arc::new(judge), hints: Vec::new(), is_required: true })
    }
    /// A verifier of clients; `is_required` says whether they must show a certificate.
    pub(crate) fn of_clients<'a>(
        judge: impl Judge + 'static,
        issuers: impl Iterator<Item = &'a [u8]>,
        is_required: bool,
    ) -> Arc<dyn ClientCertVerifier> {
        let hints = issuers.map(|name| DistinguishedName::from(name.to_vec())).collect();
        Arc::new(Self { judge: Arc::new(judge), hints, is_required })
    }

    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::from_second(seconds).map_err(|_| Error::FailedToGetCurrentTime)?;
        self.judge.judge(&PeerCertificates { leaf, rest, name, now })
    }
    fn handshake12(&self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Verified {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }
    fn handshake13(&self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Verified {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }
    fn schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

type Verified = Result<HandshakeSignatureValid, Error>;

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(end_entity, intermediates, Some(server_name), now).map(|()| ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(&self, m: &[u8], c: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Verified {
        self.handshake12(m, c, dss)
    }
    fn verify_tls13_signature(&self, m: &[u8], c: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Verified {
        self.handshake13(m, c, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge(end_entity, intermediates, None, now).map(|()| ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(&self, m: &[u8], c: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Verified {
        self.handshake12(m, c, dss)
    }
    fn verify_tls13_signature(&self, m: &[u8], c: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Verified {
        self.handshake13(m, c, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl Pool {
    /// Verifies that a peer's chain leads to a trusted certificate; a server's must contain its name.
    ///
    /// # Errors
    /// The reason for which the peer is rejected.
    pub fn judge(&self, shown: &PeerCertificates<'_>) -> Result<(), Error> {
        let usage = match shown.name {
            // The name is checked first, as in Go, so that its error is reported before that of the CA.
            Some(name) => {
                verify_server_name(&ParsedCertificate::try_from(shown.leaf)?, name).map(|()| Usage::Server)?
            }
            None => Usage::Client,
        };
        Ok(self.verify_shown(shown.leaf, shown.rest, usage, shown.now)?)
    }
}

/// Takes every certificate: the handshake alone is checked.
#[derive(Debug)]
pub(crate) struct Anyone;

impl Judge for Anyone {
    fn judge(&self, _shown: &PeerCertificates<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// Prints as the fault's words also where errors are shown for debugging, as the library does it.
struct Words(ChainFault);

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Words {}

impl From<ChainFault> for Error {
    fn from(fault: ChainFault) -> Self {
        let unix = |time: Timestamp| {
            let seconds = u64::try_from(time.as_second()).unwrap_or_default();
            UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
        };
        // The kinds that the library knows decide the alert that the peer gets.
        Self::InvalidCertificate(match fault {
            ChainFault::Missing => return Self::NoCertificatesPresented,
            ChainFault::Expired { now, end } => {
                CertificateError::ExpiredContext { time: unix(now), not_after: unix(end) }
            }
            ChainFault::NotYetValid { now, begin } => {
                CertificateError::NotValidYetContext { time: unix(now), not_before: unix(begin) }
            }
            ChainFault::UnknownAuthority(None) => CertificateError::UnknownIssuer,
            ChainFault::WrongUsage => CertificateError::InvalidPurpose,
            other => CertificateError::Other(OtherError(Arc::new(Words(other)))),
        })
    }
}
