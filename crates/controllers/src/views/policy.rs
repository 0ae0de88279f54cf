//! `admissionregistration.k8s.io/v1` ValidatingAdmissionPolicy with its observed generation.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

use super::index::Indexed;

/// `admissionregistration.k8s.io/v1` ValidatingAdmissionPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyView {
    pub metadata: ObjectMeta,
    pub status: PolicyStatus,
}

/// `admissionregistration.k8s.io/v1` ValidatingAdmissionPolicyStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The generation whose expressions were checked last.
    pub observed_generation: i64,
}

impl Indexed for PolicyView {}
slim_object!(
    PolicyView,
    ResourceType::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy"
    )
);
