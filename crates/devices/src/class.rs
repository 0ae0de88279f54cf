//! The fields of `resource.k8s.io/v1` DeviceClass that components use.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;
use serde_json::Value;

use crate::claim::selectors;
use crate::names;

/// A DeviceClass of `resource.k8s.io/v1`: selectors for devices and configuration for their drivers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassView {
    /// The metadata of the class.
    pub metadata: ObjectMeta,
    /// The selectors and the configuration.
    pub spec: DeviceClassSpec,
}
slim_object!(DeviceClassView, ResourceType::cluster("resource.k8s.io", "v1", "deviceclasses", "DeviceClass"));

/// The `spec` of a class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClassSpec {
    /// The CEL expressions, all of which a device must satisfy.
    #[serde(deserialize_with = "selectors")]
    pub selectors: Vec<String>,
    /// The configuration for drivers, unchanged.
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<Value>,
    /// The extended resource with which pods can request devices of the class (KEP-5004).
    pub extended_resource_name: Option<String>,
}

/// Returns the class for an extended resource: the newest class that names it (of equally old classes, the first by
/// name), otherwise the class in the resource's name.
pub fn by_extended_resource<'c>(
    classes: impl IntoIterator<Item = &'c DeviceClassView>,
    resource: &str,
) -> Option<&'c DeviceClassView> {
    let implicit = resource.strip_prefix(names::IMPLICIT_EXTENDED_RESOURCE);
    let mut best: Option<&DeviceClassView> = None;
    let mut named = None;
    for class in classes {
        if implicit == Some(class.metadata.name.as_str()) {
            named = Some(class);
        }
        if class.spec.extended_resource_name.as_deref() != Some(resource) {
            continue;
        }
        let (m, before) = (&class.metadata, best.map(|b| &b.metadata));
        let better = before.is_none_or(|b| {
            m.creation_timestamp > b.creation_timestamp
                || (m.creation_timestamp == b.creation_timestamp && m.name < b.name)
        });
        if better {
            best = Some(class);
        }
    }
    best.or(named)
}
