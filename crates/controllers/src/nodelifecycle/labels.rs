//! Keeps the deprecated node labels for operating system and architecture equal to the current ones. Upstream
//! `reconcileNodeLabels`.
use std::collections::BTreeMap;

use kelson_client::{PatchKind, WriteOptions};
use serde_json::json;

use super::NodeLifecycleController;
use crate::shared::context::SyncError;
use crate::views::NodeView;

/// The current label, and the deprecated one that follows it.
const FOLLOWING: &[(&str, &str)] =
    &[("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

/// Returns the labels to set.
fn missing(labels: &BTreeMap<String, String>) -> BTreeMap<&'static str, &str> {
    let of = |(new, old): &(&'static str, &'static str)| {
        let value = labels.get(*new)?;
        (labels.get(*old) != Some(value)).then_some((*old, value.as_str()))
    };
    FOLLOWING.iter().filter_map(of).collect()
}

impl NodeLifecycleController {
    /// Sets the labels that differ.
    pub(super) async fn mend_labels(&self, node: &NodeView) -> Result<(), SyncError> {
        let labels = missing(&node.metadata.labels);
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
            assert_eq!(missing(&labels(has)), want.iter().copied().collect(), "{has:?}");
        }
    }
}
