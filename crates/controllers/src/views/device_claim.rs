//! Claims for devices in pods, and `resource.k8s.io/v1` ResourceClaimTemplate.
use kelson_client::{ResourceType, slim_object};
use kelson_devices::{ResourceClaimView, ResourceSliceView};
use kelson_meta::{ObjectMeta, null_default};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::index::{IndexKey, Indexed, index_owned};

/// `v1.PodResourceClaim`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PodDeviceClaim {
    /// The name by which containers refer to the claim.
    pub name: Box<str>,
    /// The name of an existing claim.
    #[serde(rename = "resourceClaimName")]
    pub claim: Option<Box<str>>,
    /// The name of the template from which a claim is created.
    #[serde(rename = "resourceClaimTemplateName")]
    pub template: Option<Box<str>>,
}

/// `v1.PodResourceClaimStatus`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MadeDeviceClaim {
    /// The entry of the pod's spec.
    pub name: Box<str>,
    /// The claim's name, or `None` if no claim is needed.
    #[serde(rename = "resourceClaimName")]
    pub claim: Option<Box<str>>,
}

/// A list that may be null.
pub(super) fn boxed<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Box<[T]>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(d)?.unwrap_or_default().into())
}

/// `status.extendedResourceClaimStatus.resourceClaimName`.
pub(super) fn extended_claim<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<str>>, D::Error> {
    #[derive(Deserialize)]
    struct ExtendedClaimForm {
        #[serde(rename = "resourceClaimName")]
        name: Box<str>,
    }
    Ok(Option::<ExtendedClaimForm>::deserialize(d)?.map(|f| f.name))
}

/// `resource.k8s.io/v1` ResourceClaimTemplate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplateView {
    pub metadata: ObjectMeta,
    pub spec: ResourceClaimTemplateSpec,
}

/// The template of claims.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplateSpec {
    /// Labels and annotations of the claims.
    #[serde(deserialize_with = "null_default")]
    pub metadata: ObjectMeta,
    /// The spec of the claims as a tree.
    pub spec: Value,
}
slim_object!(
    ResourceClaimTemplateView,
    ResourceType::namespaced("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
);

impl Indexed for ResourceClaimTemplateView {}
impl Indexed for ResourceSliceView {}
impl Indexed for ResourceClaimView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        index_owned(&self.metadata, into);
    }
}
