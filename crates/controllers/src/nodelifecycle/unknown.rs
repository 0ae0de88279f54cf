//! Sets the conditions of nodes without heartbeats to `Unknown`.
use kelson_client::{EventType, ObjectRef};
use kelson_meta::format_seconds;
use serde_json::{Value, json};

use super::NodeLifecycleController;
use crate::shared::context::{SyncError, update_value};
use crate::views::NodeView;
use crate::views::condition::Condition;

/// The conditions that become `Unknown`. `NetworkUnavailable` is not set by the kubelet.
const KUBELET_CONDITIONS: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

impl NodeLifecycleController {
    /// Sets the conditions to `Unknown`. The watch event of this write triggers the next steps.
    pub(super) async fn mark_unknown(&self, node: &NodeView) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let write = |v: &mut Value| {
            let created = v["metadata"]["creationTimestamp"].clone();
            let status = kelson_meta::tree::map_at(v, "status");
            let taken = status.remove("conditions").unwrap_or_default();
            let mut all: Vec<Condition> = serde_json::from_value(taken).unwrap_or_default();
            make_unknown(&mut all, created.as_str().unwrap_or(&now), &now);
            status.insert("conditions".into(), json!(all));
        };
        let (name, seen) = (&node.metadata.name, &node.metadata.resource_version);
        update_value::<NodeView>(&self.client, "", name, "status", seen, write).await?;
        let message = format!("Node {name} status is now: NodeNotReady");
        self.recorder.event(&ObjectRef::of(node), EventType::Normal, "NodeNotReady", message);
        Ok(())
    }
}

/// Sets the kubelet's conditions to `Unknown`, with the message for a kubelet that stopped or never posted a status.
fn make_unknown(all: &mut Vec<Condition>, created: &str, now: &str) {
    for kind in KUBELET_CONDITIONS {
        match all.iter_mut().find(|c| c.r#type == *kind) {
            Some(c) if c.status != "Unknown" => {
                c.status = "Unknown".into();
                c.reason = "NodeStatusUnknown".into();
                c.message = "Kubelet stopped posting node status.".into();
                c.last_transition_time = Some(now.to_owned());
            }
            Some(_) => {}
            None => {
                let message = "Kubelet never posted node status.";
                let mut c = Condition::new(kind, "Unknown", "NodeStatusNeverUpdated", message, now);
                c.last_heartbeat_time = Some(created.to_owned());
                all.push(c);
            }
        }
    }
}
