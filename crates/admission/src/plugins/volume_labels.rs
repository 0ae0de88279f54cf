//! PersistentVolumeLabel: a volume with zone or region labels can only be used there. Upstream's plugin got the labels
//! from a cloud provider and was removed with those; now volumes have node affinity (CSI drivers) or labels (others),
//! which this plugin converts to node affinity.
use kelson_meta::Status;
use kelson_meta::tree::path::{at, set, text};
use serde_json::{Value, json};

use crate::{Attributes, Notes, Operation, Operations, Plugin};

/// The zone and region labels, and their deprecated names.
const LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// Separates the zones of a volume in several zones.
const SEPARATOR: &str = "__";

/// The plugin; see the module.
pub struct PersistentVolumeLabel;

impl Plugin for PersistentVolumeLabel {
    fn name(&self) -> &'static str {
        "PersistentVolumeLabel"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let volume = a.new_object();
        // A node affinity that is already set takes precedence.
        if !a.is_main("", "persistentvolumes") || !at(volume, &["spec", "nodeAffinity"]).is_null() {
            return Ok(());
        }
        let place = |key: &&str| {
            let value = text(volume, &["metadata", "labels", key]);
            let values: Vec<&str> = value.split(SEPARATOR).filter(|v| !v.is_empty()).collect();
            (!values.is_empty()).then(|| json!({"key": key, "operator": "In", "values": values}))
        };
        let places: Vec<Value> = LABELS.iter().filter_map(place).collect();
        if !places.is_empty()
            && let Some(volume) = a.object.as_mut()
        {
            let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": places}]}});
            set(volume, &["spec", "nodeAffinity"], affinity);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, object};

    #[tokio::test]
    async fn labels_become_affinity() {
        let volume = |labels: Value, affinity: Value| {
            let mut volume = json!({"metadata": {"labels": labels}, "spec": {}});
            if !affinity.is_null() {
                volume["spec"]["nodeAffinity"] = affinity;
            }
            volume
        };
        let within = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
        let terms = |all: &[Value]| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": all}]}});
        let own = json!({"required": {"nodeSelectorTerms": []}});
        for (labels, affinity, want) in [
            (json!({}), Value::Null, Value::Null),
            (json!({LABELS[0]: "a"}), Value::Null, terms(&[within(LABELS[0], &["a"])])),
            (
                json!({LABELS[0]: "a__b", LABELS[1]: "r"}),
                Value::Null,
                terms(&[within(LABELS[0], &["a", "b"]), within(LABELS[1], &["r"])]),
            ),
            (json!({LABELS[2]: "a"}), Value::Null, terms(&[within(LABELS[2], &["a"])])),
            (json!({LABELS[0]: "a"}), own.clone(), own),
        ] {
            let ask = Ask::create("/persistentvolumes", volume(labels, affinity));
            assert_eq!(object(PersistentVolumeLabel, ask).await.unwrap()["spec"]["nodeAffinity"], want);
        }
    }
}
