//! Counts rejected server certificates that older clients accepted, so that an operator can find the certificates to
//! replace (upstream `apiserver/pkg/util/x509metrics`).
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kelson_pki::{CertInfo, PeerCertificates, is_signed_over_sha1};
use rustls::{CertificateError, Error, OtherError};

/// Counters for one kind of server since the process started.
#[derive(Debug, Default)]
pub struct CertificateFaults {
    missing_san: AtomicU64,
    insecure_sha1: AtomicU64,
}

static WEBHOOKS: CertificateFaults = CertificateFaults::new();
static AGGREGATED: CertificateFaults = CertificateFaults::new();

impl CertificateFaults {
    pub(crate) const fn new() -> Self {
        Self { missing_san: AtomicU64::new(0), insecure_sha1: AtomicU64::new(0) }
    }
    /// Returns the counters for webhooks of all kinds.
    pub fn of_webhooks() -> &'static Self {
        &WEBHOOKS
    }
    /// Returns the counters for aggregated API servers.
    pub fn of_aggregated() -> &'static Self {
        &AGGREGATED
    }
    /// Returns the number of rejected certificates that have the host name in the subject only, without a subject
    /// alternative name.
    pub fn missing_san(&self) -> u64 {
        self.missing_san.load(Ordering::Relaxed)
    }
    /// Returns the number of rejected certificates with a SHA-1 signature in their chain.
    pub fn insecure_sha1(&self) -> u64 {
        self.insecure_sha1.load(Ordering::Relaxed)
    }

    /// Counts a rejected certificate. For the counted faults, it returns the error in Go's words.
    pub(crate) fn refused(&self, why: Error, shown: &PeerCertificates<'_>) -> Error {
        if std::iter::once(shown.leaf).chain(shown.rest).any(is_signed_over_sha1) {
            self.insecure_sha1.fetch_add(1, Ordering::Relaxed);
        }
        let of_name = matches!(
            why,
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            )
        );
        let name = shown.name.map(|name| name.to_str()).unwrap_or_default();
        let info = CertInfo::from_der(shown.leaf);
        let legacy = info.is_ok_and(|info| info.sans.is_empty() && is_called(&info.common_name, &name));
        if !(of_name && legacy) {
            return why;
        }
        self.missing_san.fetch_add(1, Ordering::Relaxed);
        CertificateError::Other(OtherError(Arc::new(LegacyName))).into()
    }
}

/// Returns whether the name in the subject matches the host. The first label may be a wildcard.
fn is_called(subject: &str, host: &str) -> bool {
    if subject.is_empty() {
        return false;
    }
    let rest = |name: &str| name.split_once('.').map(|(_, rest)| rest.to_ascii_lowercase());
    subject.eq_ignore_ascii_case(host) || (subject.starts_with("*.") && rest(subject) == rest(host))
}

#[derive(Debug)]
struct LegacyName;

impl std::error::Error for LegacyName {}

impl fmt::Display for LegacyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("certificate relies on legacy Common Name field, use SANs instead")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_host_as_browsers_had_it() {
        for (subject, host, wanted) in [
            ("hook.example", "hook.example", true),
            ("Hook.Example", "hook.example", true),
            ("*.example", "hook.example", true),
            ("*.example", "a.hook.example", false),
            ("other.example", "hook.example", false),
            ("", "hook.example", false),
            ("*", "hook", false),
        ] {
            assert_eq!(is_called(subject, host), wanted, "{subject} {host}");
        }
    }
}
