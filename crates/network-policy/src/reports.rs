//! Log lines and events of enforcement, about policies and about the node.

use kelson_client::{EventRecorder, EventType, ObjectRef};

use crate::view::NetworkPolicy;

/// Reason: a policy has parts that have no effect.
const INEFFECTIVE: &str = "PolicyPartIneffective";
/// Reason: rules that another program changed are restored.
const RESTORED: &str = "NetworkPoliciesRestored";

/// Writes log lines and events.
pub(crate) struct Reports {
    recorder: EventRecorder,
    node: ObjectRef,
}

impl Reports {
    /// Creates reports for the node with this name.
    pub fn new(recorder: EventRecorder, node_name: &str) -> Self {
        // Like the kubelet's events, these have the node's name in place of its UID.
        let node = ObjectRef {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node_name.to_owned(),
            uid: node_name.to_owned(),
            ..ObjectRef::default()
        };
        Self { recorder, node }
    }

    /// Reports the parts of a policy that have no effect, each as field path and reason.
    pub fn ineffective(&self, policy: &NetworkPolicy, parts: &[String]) {
        if parts.is_empty() {
            return;
        }
        let (namespace, name) = (&policy.metadata.namespace, &policy.metadata.name);
        let parts = parts.join("; ");
        tracing::warn!(namespace, policy = name, parts, "parts of a network policy have no effect");
        let message = format!("Parts of the policy have no effect: {parts}");
        self.recorder.event(&ObjectRef::of(policy), EventType::Warning, INEFFECTIVE, message);
    }

    /// Reports that the rules in these tables are restored.
    pub fn restored(&self, tables: &[String]) {
        let tables = tables.join(", ");
        let message =
            format!("Another program changed the rules of network policies, which are being restored: {tables}");
        self.recorder.event(&self.node, EventType::Warning, RESTORED, message);
    }
}
