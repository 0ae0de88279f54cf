//! Lifecycle: since which minor version a built-in kind is deprecated, when it goes, and what takes its place.
use kelson_meta::version::MINOR;

/// Group, version and kind; deprecated since, gone with (0 where it stays), what to use instead (empty where nothing is said).
type Row = (&'static str, &'static str, &'static str, u16, u16, &'static str);

const ROWS: &[Row] = &[
    ("", "v1", "ComponentStatus", 19, 0, ""),
    ("", "v1", "Endpoints", 33, 0, "discovery.k8s.io/v1 EndpointSlice"),
    ("admissionregistration.k8s.io", "v1alpha1", "MutatingAdmissionPolicy", 35, 38, ""),
    ("admissionregistration.k8s.io", "v1alpha1", "MutatingAdmissionPolicyBinding", 35, 38, ""),
    (
        "admissionregistration.k8s.io",
        "v1beta1",
        "MutatingAdmissionPolicy",
        37,
        40,
        "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy",
    ),
    (
        "admissionregistration.k8s.io",
        "v1beta1",
        "MutatingAdmissionPolicyBinding",
        37,
        40,
        "admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding",
    ),
    ("certificates.k8s.io", "v1alpha1", "ClusterTrustBundle", 34, 37, ""),
    ("certificates.k8s.io", "v1beta1", "ClusterTrustBundle", 37, 40, ""),
    ("certificates.k8s.io", "v1beta1", "PodCertificateRequest", 38, 41, ""),
    ("coordination.k8s.io", "v1alpha2", "LeaseCandidate", 35, 38, ""),
    ("coordination.k8s.io", "v1beta1", "LeaseCandidate", 36, 39, ""),
    ("networking.k8s.io", "v1beta1", "IPAddress", 34, 37, ""),
    ("networking.k8s.io", "v1beta1", "ServiceCIDR", 34, 37, ""),
    ("resource.k8s.io", "v1alpha3", "DeviceTaintRule", 36, 39, ""),
    ("resource.k8s.io", "v1alpha3", "ResourcePoolStatusRequest", 39, 42, ""),
    ("resource.k8s.io", "v1beta1", "DeviceClass", 35, 38, ""),
    ("resource.k8s.io", "v1beta1", "ResourceClaim", 35, 38, ""),
    ("resource.k8s.io", "v1beta1", "ResourceClaimTemplate", 35, 38, ""),
    ("resource.k8s.io", "v1beta1", "ResourceSlice", 35, 38, ""),
    ("resource.k8s.io", "v1beta2", "DeviceClass", 36, 39, ""),
    ("resource.k8s.io", "v1beta2", "DeviceTaintRule", 39, 42, ""),
    ("resource.k8s.io", "v1beta2", "ResourceClaim", 36, 39, ""),
    ("resource.k8s.io", "v1beta2", "ResourceClaimTemplate", 36, 39, ""),
    ("resource.k8s.io", "v1beta2", "ResourceSlice", 36, 39, ""),
    ("storage.k8s.io", "v1beta1", "VolumeAttributesClass", 34, 37, "storage.k8s.io/v1 VolumeAttributesClass"),
    ("storagemigration.k8s.io", "v1beta1", "StorageVersionMigration", 38, 41, ""),
];

/// What each request for a kind is told, if it is deprecated in the minor version that is served.
pub fn warning(group: &str, version: &str, kind: &str) -> Option<String> {
    let (_, _, _, since, until, instead) = ROWS.iter().find(|row| (row.0, row.1, row.2) == (group, version, kind))?;
    if MINOR.parse::<u16>().is_ok_and(|minor| minor < *since) {
        return None;
    }
    let slash = if group.is_empty() { "" } else { "/" };
    let mut text = format!("{group}{slash}{version} {kind} is deprecated in v1.{since}+");
    if *until > 0 {
        text.push_str(&format!(", unavailable in v1.{until}+"));
    }
    if !instead.is_empty() {
        text.push_str(&format!("; use {instead}"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_upstreams() {
        let rows = [
            (
                "",
                "v1",
                "Endpoints",
                Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
            ),
            (
                "storage.k8s.io",
                "v1beta1",
                "VolumeAttributesClass",
                Some(
                    "storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; use \
                     storage.k8s.io/v1 VolumeAttributesClass",
                ),
            ),
            ("admissionregistration.k8s.io", "v1beta1", "MutatingAdmissionPolicy", None),
            ("", "v1", "Pod", None),
        ];
        for (group, version, kind, want) in rows {
            assert_eq!(warning(group, version, kind).as_deref(), want, "{kind}");
        }
    }
}
