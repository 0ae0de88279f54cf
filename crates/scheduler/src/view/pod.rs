//! A pod: its identity and its node; everything that its template determines is shared with other pods of the template
//! ([`PodSpec`]).
use std::sync::Arc;

use kelson_client::{ObjectRef, ResourceType};
use serde::Deserialize;

use super::raw::RawPod;
use super::spec::{self, PodSpec};

/// The `PodScheduled` condition while it is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledCondition {
    /// The reason: `Unschedulable`, `SchedulingGated` or `SchedulerError`.
    pub reason: Box<str>,
    pub message: Box<str>,
    /// The pod's generation for which it was written; 0 when unknown.
    pub observed_generation: i64,
}

/// The fields of `v1.Pod` that scheduling reads.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: Box<str>,
    pub uid: Arc<str>,
    pub resource_version: Box<str>,
    pub generation: i64,
    /// Everything that the template, the namespace and the labels determine.
    pub spec: Arc<PodSpec>,
    /// The node; empty while the pod is not assigned.
    pub node_name: Box<str>,
    /// Value of `status.nominatedNodeName`.
    pub nominated: Option<Box<str>>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it has succeeded or failed, and so uses no resources.
    pub terminal: bool,
    /// Whether it is being deleted because the scheduler preempted it.
    pub preempted: bool,
    /// The start time in seconds since the epoch; `i64::MAX` before it.
    pub started_s: i64,
    /// The `PodScheduled` condition, if it is false.
    pub condition: Option<Box<ScheduledCondition>>,
}

impl Pod {
    pub fn namespace(&self) -> &str {
        &self.spec.namespace
    }
    /// Reports whether it waits for this scheduler.
    pub fn is_pending(&self) -> bool {
        self.node_name.is_empty() && !self.deleting && !self.terminal
    }
    /// Returns the reference for events about it.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef::of(self)
    }
    /// Returns the pod with this node assigned.
    pub fn assigned_to(&self, node: &str) -> Self {
        Self { node_name: node.into(), condition: None, nominated: None, ..self.clone() }
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let mut raw = RawPod::deserialize(d)?;
        let node_name = raw.spec.node_name.take().unwrap_or_default().into_boxed_str();
        let status = std::mem::take(&mut raw.status);
        let condition = status.conditions.iter().find(|c| c.kind == "PodScheduled" && c.status == "False");
        let condition = condition.map(|c| {
            let text = |s: &Option<String>| s.as_deref().unwrap_or_default().into();
            let observed_generation = c.observed_generation.unwrap_or(0);
            Box::new(ScheduledCondition { reason: text(&c.reason), message: text(&c.message), observed_generation })
        });
        let preempted = status.conditions.iter().any(|c| {
            c.kind == "DisruptionTarget" && c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler")
        });
        let started = status.start_time.as_deref().and_then(|t| t.parse::<jiff::Timestamp>().ok());
        let uid: Arc<str> = std::mem::take(&mut raw.metadata.uid).into();
        Ok(Self {
            // Not moved: claims made for the pod alone are named after it.
            name: raw.metadata.name.as_str().into(),
            resource_version: std::mem::take(&mut raw.metadata.resource_version).into(),
            generation: raw.metadata.generation.unwrap_or(0),
            node_name,
            nominated: status.nominated_node_name.as_deref().filter(|n| !n.is_empty()).map(Into::into),
            deleting: raw.metadata.deletion_timestamp.is_some(),
            terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            preempted,
            started_s: started.map_or(i64::MAX, jiff::Timestamp::as_second),
            condition,
            spec: spec::intern(PodSpec::decode(raw, &status, &uid)),
            uid,
        })
    }
}

impl kelson_client::Object for Pod {
    const TYPE: ResourceType = ResourceType::namespaced("", "v1", "pods", "Pod");
    fn name(&self) -> &str {
        &self.name
    }
    fn namespace(&self) -> &str {
        &self.spec.namespace
    }
    fn uid(&self) -> &str {
        &self.uid
    }
    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_of_an_ephemeral_volume_is_named_after_the_pod() {
        let pod =
            r#"{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[],"volumes":[{"name":"v","ephemeral":{}}]}}"#;
        let pod: Pod = serde_json::from_str(pod).expect("a pod");
        let claim = &pod.spec.claims[0];
        assert_eq!((&*pod.name, &*claim.name, &claim.made_for), ("p", "p-v", &Some(("p".into(), "u".into()))));
    }
}
