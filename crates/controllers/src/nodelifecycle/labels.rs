//! Keeps the deprecated node labels for operating system and architecture equal to the current ones (upstream `reconcileNodeLabels`), and
//! sets the role label on the node of the control plane's machine, which no kubelet may set itself.
use std::collections::BTreeMap;

use kelson_client::{PatchKind, WriteOptions};
use serde_json::json;

use super::NodeLifecycleController;
use crate::shared::context::SyncError;
use crate::views::NodeView;

/// The current label, and the deprecated one that follows it.
const FOLLOWING: &[(&str, &str)] =
    &[("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

/// The label of a node's role, whose value is empty (kubeadm).
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Returns the labels to set.
fn missing(labels: &BTreeMap<String, String>, is_control_plane: bool) -> BTreeMap<&'static str, &str> {
    let of = |(new, old): &(&'static str, &'static str)| {
        let value = labels.get(*new)?;
        (labels.get(*old) != Some(value)).then_some((*old, value.as_str()))
    };
    let role = (is_control_plane && !labels.contains_key(CONTROL_PLANE)).then_some((CONTROL_PLANE, ""));
    FOLLOWING.iter().filter_map(of).chain(role).collect()
}

impl NodeLifecycleController {
    /// Sets the labels that differ.
    pub(super) async fn mend_labels(&self, node: &NodeView) -> Result<(), SyncError> {
        let labels = missing(&node.metadata.labels, node.metadata.name == self.control_plane_node);
        if labels.is_empty() {
            return Ok(());
        }
        let patch = json!({"metadata": {"labels": labels}});
        let o = WriteOptions::default();
        match self.client.patch::<NodeView>("", &node.metadata.name, "", PatchKind::Merge, &patch, &o).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_labels_follow_new_ones() {
        let labels = |of: &[(&str, &str)]| of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        for (has, want) in [
            (&[][..], &[][..]),
            (&[("kubernetes.io/os", "linux")], &[("beta.kubernetes.io/os", "linux")]),
            (&[("kubernetes.io/os", "linux"), ("beta.kubernetes.io/os", "x")], &[("beta.kubernetes.io/os", "linux")]),
            (&[("kubernetes.io/arch", "arm64"), ("beta.kubernetes.io/arch", "arm64")], &[]),
            (&[("beta.kubernetes.io/arch", "arm64")], &[]),
        ] {
            assert_eq!(missing(&labels(has), false), want.iter().copied().collect(), "{has:?}");
        }
    }

    #[test]
    fn the_node_of_the_control_plane_has_its_role() {
        let none = BTreeMap::new();
        assert_eq!(missing(&none, true), BTreeMap::from([(CONTROL_PLANE, "")]));
        let has = BTreeMap::from([(CONTROL_PLANE.to_owned(), "true".to_owned())]);
        assert!(missing(&has, true).is_empty(), "whatever its value");
    }
}
