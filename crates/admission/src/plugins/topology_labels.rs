//! PodTopologyLabels: copies the zone and region labels of a node to its pods (KEP-4742).
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::Status;
use kelson_meta::tree::path::{object_mut, text};

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The plugin; see the module.
pub struct PodTopologyLabels {
    objects: Arc<dyn Objects>,
}

impl PodTopologyLabels {
    /// Creates the plugin, which reads nodes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is("", "pods") {
            return Ok(());
        }
        let object = a.new_object();
        let node = match a.subresource {
            "" => text(object, &["spec", "nodeName"]),
            "binding" if matches!(text(object, &["target", "kind"]), "" | "Node") => text(object, &["target", "name"]),
            _ => "",
        };
        if node.is_empty() {
            return Ok(());
        }
        let Some(node) = self.objects.tree("", "nodes", "", node) else { return Ok(()) };
        let found: Vec<(&str, &str)> = LABELS
            .into_iter()
            .map(|key| (key, text(&node, &["metadata", "labels", key])))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let Some(object) = a.object.as_mut().filter(|_| !found.is_empty()) else { return Ok(()) };
        if let Some(labels) = object_mut(object, &["metadata", "labels"]) {
            labels.extend(found.into_iter().map(|(key, value)| (key.to_owned(), value.into())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::{Value, json};

    #[tokio::test]
    async fn labels_of_the_node() {
        let labels = json!({LABELS[0]: "z1", LABELS[1]: "r1", "kubernetes.io/hostname": "n"});
        let d = dependencies(&[("nodes//n", json!({"metadata": {"labels": labels}})), ("nodes//bare", json!({}))]);
        let both = || json!({LABELS[0]: "z1", LABELS[1]: "r1"});
        let pod = |node: &str, labels: Value| json!({"metadata": {"labels": labels}, "spec": {"nodeName": node}});
        let binding = |kind: &str, node: &str| json!({"metadata": {}, "target": {"kind": kind, "name": node}});
        for (resource, asked, want) in [
            ("/pods", pod("n", json!({"a": "b"})), json!({"a": "b", LABELS[0]: "z1", LABELS[1]: "r1"})),
            ("/pods", pod("n", json!({LABELS[0]: "own"})), both()),
            ("/pods", pod("", Value::Null), Value::Null),
            ("/pods", pod("bare", Value::Null), Value::Null),
            ("/pods", pod("gone", Value::Null), Value::Null),
            ("/pods/binding", binding("Node", "n"), both()),
            ("/pods/binding", binding("", "n"), both()),
            ("/pods/binding", binding("Machine", "n"), Value::Null),
            ("/secrets", pod("n", Value::Null), Value::Null),
        ] {
            let out = object(PodTopologyLabels::new(&d), Ask::create(resource, asked.clone())).await.unwrap();
            assert_eq!(out["metadata"]["labels"], want, "{asked}");
        }
    }
}
