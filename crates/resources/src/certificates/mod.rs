//! Certificates (certificates.k8s.io): requests of users and of pods, and trust bundles.
mod pod_requests;
mod signing_requests;
mod trust_bundles;

use kelson_meta::is_dns1123_subdomain;

use crate::path::{Errors, Path};

pub use pod_requests::PodCertificateRequests;
pub use signing_requests::CertificateSigningRequests;
pub use trust_bundles::ClusterTrustBundles;

const GROUP: &str = "certificates.k8s.io";

/// `domain/path` with a domain of at least two labels.
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
