//! TLS to a webhook: CAs, client certificates, and handshake errors in Go's words, which operators search for.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use kelson_pki::kubeconfig::Source;
use kelson_pki::{Judge, PeerCertificates, PeerVerifier, Pool, bundle_roots, provider, system_roots};
use rustls::client::danger::ServerCertVerifier;
use rustls::{CertificateError, ClientConfig, Error};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use crate::backend::reason;
use crate::credentials::User;
use crate::faults::CertificateFaults;

/// The protocols offered in ALPN.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// HTTP/1.1: several connections, each of which may reach another endpoint of a service.
    Http1,
    /// HTTP/2: one connection for all calls, if the server supports it.
    Http2,
}

/// Builds the TLS configuration of the client. An empty bundle selects the system's CAs. Reads files, so call it on a
/// blocking lane.
pub(crate) fn client_config(bundle: &[u8], user: Option<&User>, protocols: Protocols) -> Result<ClientConfig, String> {
    let roots = if bundle.is_empty() { system_roots() } else { bundle_roots(bundle) };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?;
    let counted = Counted::new(roots, CertificateFaults::of_webhooks());
    let builder = builder.dangerous().with_custom_certificate_verifier(PeerVerifier::of_servers(counted));
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

/// Returns a verifier that trusts only the CAs in a bundle, as calls to webhooks do. Rejected certificates are counted
/// in `faults`. Like Go, it skips entries of the bundle that cannot be parsed.
pub fn verifier(bundle: &[u8], faults: &'static CertificateFaults) -> Arc<dyn ServerCertVerifier> {
    PeerVerifier::of_servers(Counted::new(bundle_roots(bundle), faults))
}

/// A verifier that counts rejected certificates.
#[derive(Debug)]
struct Counted {
    pool: Pool,
    faults: &'static CertificateFaults,
}

impl Counted {
    fn new(roots: Vec<CertificateDer<'static>>, faults: &'static CertificateFaults) -> Self {
        Self { pool: Pool::of_readable(roots), faults }
    }
}

impl Judge for Counted {
    fn judge(&self, shown: &PeerCertificates<'_>) -> Result<(), Error> {
        self.pool.judge(shown).map_err(|why| self.faults.refused(why, shown))
    }
}

/// Describes a failed handshake in Go's words.
pub fn handshake_fault(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(fault) => words(fault),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => reason(error),
    }
}

/// Describes a TLS error in Go's words. Errors without a common Go message keep their own.
fn words(error: &Error) -> String {
    let Error::InvalidCertificate(why) = error else { return format!("tls: {error}") };
    let why = match why {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => {
            format!(
                "certificate has expired or is not yet valid: current time {} is after {}",
                at(*time),
                at(*not_after)
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!(
                "certificate has expired or is not yet valid: current time {} is before {}",
                at(*time),
                at(*not_before)
            )
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
        CertificateError::Other(other) => other.0.to_string().trim_start_matches("x509: ").to_owned(),
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

fn at(time: UnixTime) -> Timestamp {
    i64::try_from(time.as_secs())
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Extracts the name from `DnsName("x")` or `IpAddress(y)`.
fn name_of(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kelson_doubles::chains::{believes_server, rows_of};
    use kelson_pki::{Authority, LeafSpec, Purpose, San, Usage, certificates_from_pem};
    use rustls_pki_types::ServerName;

    use super::*;

    #[test]
    fn webhooks_are_believed_as_go_believes_them() {
        for row in rows_of(Usage::Server) {
            let bundle = row.bundle_pem();
            let client = client_config(bundle.as_bytes(), None, Protocols::Http2).expect("a client");
            let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
            let aggregated = verifier(bundle.as_bytes(), CertificateFaults::of_aggregated());
            let aggregated = builder.expect("versions").dangerous().with_custom_certificate_verifier(aggregated);
            for client in [client, aggregated.with_no_client_auth()] {
                let believed = believes_server(client, &row);
                assert_eq!(believed.is_ok(), row.is_accepted, "{}: {believed:?}", row.what);
            }
        }
    }

    #[test]
    fn a_certificate_that_names_its_server_by_the_subject_alone_is_refused_and_counted() {
        static FAULTS: CertificateFaults = CertificateFaults::new();
        let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let ca = Authority::create("ca", now).unwrap();
        let verifier = Counted::new(certificates_from_pem(ca.cert_pem()).unwrap(), &FAULTS);
        let judge = |common_name: &str, sans: &[San], host: &str| {
            let lifetime = Duration::from_secs(3600);
            let spec = LeafSpec { common_name, organizations: &[], sans, purpose: Purpose::Server, lifetime };
            let leaf = certificates_from_pem(&ca.issue(&spec, now).unwrap().cert_pem).unwrap();
            let name = ServerName::try_from(host.to_owned()).unwrap();
            let judged = verifier.judge(&PeerCertificates { leaf: &leaf[0], rest: &[], name: Some(&name), now });
            judged.map_err(|e| words(&e))
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
