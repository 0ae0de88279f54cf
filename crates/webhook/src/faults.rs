//! Server certificates that were refused for something which was good enough once: they are counted, so that an operator sees what
//! must be made anew (upstream `apiserver/pkg/util/x509metrics`).
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kelson_pki::{CertInfo, Shown, is_signed_over_sha1};
use rustls::{CertificateError, Error, OtherError};

/// Counts of one kind of servers, since the process began.
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
    /// Of webhooks of all kinds.
    pub fn of_webhooks() -> &'static Self {
        &WEBHOOKS
    }
    /// Of aggregated API servers.
    pub fn of_aggregated() -> &'static Self {
        &AGGREGATED
    }
    /// Servers whose certificate names them by its subject alone.
    pub fn missing_san(&self) -> u64 {
        self.missing_san.load(Ordering::Relaxed)
    }
    /// Servers with a signature over SHA-1 in their chain.
    pub fn insecure_sha1(&self) -> u64 {
        self.insecure_sha1.load(Ordering::Relaxed)
    }

    /// Counts a certificate that was refused, and gives the reason as Go words it where it is one of these.
    pub(crate) fn refused(&self, why: Error, shown: &Shown<'_>) -> Error {
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

/// Whether a subject's name is the host's, in which a first label may be a star.
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
