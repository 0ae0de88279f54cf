//! `resource.k8s.io/v1` DeviceClass.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;
use serde_json::Value;

use crate::claim::selectors;
use crate::names;

/// `resource.k8s.io/v1` DeviceClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassView {
    /// Name, version, owners and the rest of its metadata.
    pub metadata: ObjectMeta,
    /// What its author says.
    pub spec: DeviceClassSpec,
}
slim_object!(DeviceClassView, ResourceType::cluster("resource.k8s.io", "v1", "deviceclasses", "DeviceClass"));

/// What devices of the class are like.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClassSpec {
    /// Expressions that must all hold of a device.
    #[serde(deserialize_with = "selectors")]
    pub selectors: Vec<String>,
    /// Configuration for drivers, as it is.
    #[serde(deserialize_with = "null_default")]
    pub config: Vec<Value>,
    /// The extended resource by which pods can ask for such devices (KEP-5004).
    pub extended_resource_name: Option<String>,
}

/// The class that stands for an extended resource: of those that name it the newest, of equally old ones the first by name;
/// else the one that the resource names.
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
