//! Certificates (certificates.k8s.io): requests of users and of pods, and trust bundles.
mod pod_requests;
mod pod_status;
mod signing_requests;
mod trust_bundles;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_meta::is_dns1123_subdomain;
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::tree::text;

pub use pod_requests::PodCertificateRequests;
pub use signing_requests::CertificateSigningRequests;
pub use trust_bundles::ClusterTrustBundles;

const GROUP: &str = "certificates.k8s.io";
/// Replaces a value in messages that is too long or secret.
const OMITTED: &str = "<value omitted>";
/// The minimum lifetime of a pod certificate: an hour.
const SECONDS_MIN: i64 = 3600;

/// Returns the bytes of a base64 field; empty if it is invalid.
fn bytes(v: &Value) -> Vec<u8> {
    STANDARD.decode(text(v)).unwrap_or_default()
}

/// Validates a signer name: `domain/path` with a domain of at least two labels.
pub(crate) fn signer_name(s: &str, p: &Path<'_>, e: &mut Errors) {
    const SEGMENTS: &str = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
    if s.is_empty() {
        return e.required(p, "");
    }
    let Some((domain, path)) = s.split_once('/').filter(|(_, path)| !path.contains('/')) else {
        return e.invalid(p, s, SEGMENTS);
    };
    if let Err(why) = is_dns1123_subdomain(domain) {
        for w in why {
            e.invalid(p, s, format!("validating label {domain:?}: {w}"));
        }
    } else if !domain.contains('.') {
        e.invalid(p, s, "should be a domain with at least two segments separated by dots");
    }
    for label in path.split('.') {
        for w in is_dns1123_subdomain(label).err().into_iter().flatten() {
            e.invalid(p, s, format!("validating label {label:?}: {w}"));
        }
    }
}
