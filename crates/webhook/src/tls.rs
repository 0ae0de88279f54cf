//! TLS to a webhook: which authorities its certificate may come from, what it is shown, and Go's words for what fails, which
//! operators search for.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use kelson_pki::kubeconfig::Source;
use kelson_pki::{CertInfo, bundle_roots, provider, system_roots};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::backend::reason;
use crate::credentials::User;
use crate::faults::CertificateFaults;

/// Protocols that are offered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// Many connections: each may reach another endpoint of a service.
    Http1,
    /// One connection for all calls, where the server speaks HTTP/2.
    Http2,
}

/// The client's side. An empty bundle means the system's authorities. Reads files: for a lane.
pub(crate) fn client_config(bundle: &[u8], user: Option<&User>, protocols: Protocols) -> Result<ClientConfig, String> {
    let roots = if bundle.is_empty() { system_roots() } else { bundle_roots(bundle) };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?;
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier::new(roots, CertificateFaults::of_webhooks())?));
    let load = |source: &Source| source.load().map_err(|e| e.to_string());
    let shown = match user {
        Some(user) => load(&user.cert)?.zip(load(&user.key)?),
        None => None,
    };
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
            let chain = chain.map_err(|e| format!("client certificate: {e}"))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| format!("client key: {e}"))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| format!("client certificate: {e}"))?
        }
    };
    config.alpn_protocols = match protocols {
        Protocols::Http1 => vec![b"http/1.1".to_vec()],
        Protocols::Http2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    Ok(config)
}

/// What checks a server's certificate by a bundle alone, as calls of webhooks do: for others who connect by such bundles, and count
/// what they refuse by `faults`.
///
/// # Errors
/// When the crypto provider has no usable protocol version.
pub fn verifier(bundle: &[u8], faults: &'static CertificateFaults) -> Result<Arc<dyn ServerCertVerifier>, String> {
    Ok(Arc::new(Verifier::new(bundle_roots(bundle), faults)?))
}

/// Verifies as usual, and takes a certificate that is itself in the bundle: self-signed serving certificates, which Go
/// accepts even where they say that they are an authority's, are the commonest bundle there is.
#[derive(Debug)]
struct Verifier {
    /// `None` where there is no authority at all: then nothing is trusted.
    chains: Option<Arc<WebPkiServerVerifier>>,
    roots: Vec<CertificateDer<'static>>,
    faults: &'static CertificateFaults,
}

impl Verifier {
    fn new(roots: Vec<CertificateDer<'static>>, faults: &'static CertificateFaults) -> Result<Self, String> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        if store.is_empty() {
            return Ok(Self { chains: None, roots, faults });
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider()).build();
        Ok(Self { chains: Some(chains.map_err(|e| e.to_string())?), roots, faults })
    }

    fn pinned(&self, shown: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
        if !self.roots.iter().any(|root| root.as_ref() == shown.as_ref()) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = Timestamp::from_second(seconds).map_err(|_| CertificateError::BadEncoding)?;
        let info = CertInfo::from_der(shown).map_err(|_| CertificateError::BadEncoding)?;
        if !info.is_valid_at(now) {
            return Err(CertificateError::Expired.into());
        }
        verify_server_name(&ParsedCertificate::try_from(shown)?, name)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = match &self.chains {
            Some(chains) => chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        verified.or_else(|why| match self.pinned(end_entity, server_name, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(_) => Err(self.faults.refused(why, end_entity, intermediates, server_name)),
        })
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Why a handshake failed, in Go's words.
pub fn handshake_fault(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(fault) => words(fault),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => reason(error),
    }
}

/// A failed handshake in Go's words, as far as they are known to the people who read them.
fn words(error: &Error) -> String {
    let Error::InvalidCertificate(why) = error else { return format!("tls: {error}") };
    let why = match why {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        CertificateError::BadSignature => {
            "certificate signed by unknown authority (possibly because of \"x509: verification failure\" while trying to \
             verify candidate authority certificate)"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate has expired or is not yet valid".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate has expired or is not yet valid".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|p| name_of(p)).collect();
            let expected = expected.to_str();
            if names.is_empty() {
                format!("certificate is not valid for any names, but wanted to match {expected}")
            } else {
                format!("certificate is valid for {}, not {expected}", names.join(", "))
            }
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "certificate specifies an incompatible key usage".to_owned()
        }
        CertificateError::Other(other) => other.0.to_string(),
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

/// `DnsName("x")` and `IpAddress(y)` to what is in them.
fn name_of(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kelson_pki::{Authority, LeafSpec, Purpose, San, certificates_from_pem};

    use super::*;

    #[test]
    fn a_certificate_that_names_its_server_by_the_subject_alone_is_refused_and_counted() {
        static FAULTS: CertificateFaults = CertificateFaults::new();
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let ca = Authority::create("ca", now).unwrap();
        let verifier = Verifier::new(certificates_from_pem(ca.cert_pem()).unwrap(), &FAULTS).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
        let judge = |common_name: &str, sans: &[San], host: &str| {
            let lifetime = Duration::from_secs(3600);
            let spec = LeafSpec { common_name, organizations: &[], sans, purpose: Purpose::Server, lifetime };
            let leaf = certificates_from_pem(&ca.issue(&spec, now).unwrap().cert_pem).unwrap();
            let name = ServerName::try_from(host.to_owned()).unwrap();
            let judged = verifier.verify_server_cert(&leaf[0], &[], &name, &[], at);
            judged.map(drop).map_err(|e| words(&e))
        };
        let hook = [San::Dns("hook.example".into())];
        assert_eq!(judge("hook.example", &hook, "hook.example"), Ok(()));
        assert_eq!(FAULTS.missing_san(), 0);
        let refused = judge("hook.example", &[], "hook.example").unwrap_err();
        let wanted = "x509: certificate relies on legacy Common Name field, use SANs instead";
        assert!(refused.ends_with(wanted), "{refused}");
        assert_eq!(FAULTS.missing_san(), 1);
        for (subject, sans, host) in [("other.example", &[][..], "hook.example"), ("other", &hook[..], "other.example")]
        {
            let refused = judge(subject, sans, host).unwrap_err();
            assert!(!refused.contains("legacy"), "{refused}");
        }
        assert_eq!((FAULTS.missing_san(), FAULTS.insecure_sha1()), (1, 0), "another name is another fault");
    }
}
