//! One sync of one daemon set: its history, the pods of each node, the rolling update, the status.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kelson_client::{EventType, ObjectRef};
use kelson_meta::ObjectKey;
use serde_json::Value;
use serde_json::value::RawValue;

use super::DaemonSetController;
use super::manage::{self, GENERATION_LABEL, NodePlan, PodCriteria};
use super::placement::{add_tolerations, pin};
use super::revisions::DaemonSetRevisions;
use super::rolling::{self, Limits, NodePods};
use super::status;
use crate::shared::context::{SyncError, update_value};
use crate::shared::history::HASH_LABEL;
use crate::shared::pods::{Template, slow_start};
use crate::views::{DaemonSetView, PodView};

/// The maximum number of pods created, and of pods deleted, in one sync.
const BURST_MAX: usize = 250;
/// The annotation with the template generation.
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";

impl DaemonSetController {
    pub(super) async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(set) = self.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let everything = set.spec.selector.as_ref().and_then(|s| s.selector().ok()).is_some_and(|s| s.is_everything());
        if everything {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.event(&ObjectRef::of(&*set), EventType::Warning, "SelectingAll", text);
            return Ok(());
        }
        // The history may be deleted before the pods, so a computed status would be wrong.
        if set.metadata.is_deleting() {
            return Ok(());
        }
        let DaemonSetRevisions { hash, old } = self.revisions_of(&set).await?;
        let criteria = criteria(&set, hash, self.ctx.clock.now());
        if !self.expectations.satisfied(key) {
            return self.write_status(key, &set, &criteria, false).await;
        }
        let worked = self.work(key, &set, &criteria, old).await;
        let written = self.write_status(key, &set, &criteria, true).await;
        worked.and(written)
    }

    async fn work(
        &self,
        key: &ObjectKey,
        set: &Arc<DaemonSetView>,
        criteria: &PodCriteria,
        old: Vec<Arc<crate::views::ControllerRevisionView>>,
    ) -> Result<(), SyncError> {
        let pods = self.pods_of(set).await?;
        let nodes = self.nodes_of(set, &pods);
        self.manage(key, set, criteria, &nodes).await?;
        if set.spec.update_strategy.r#type == "RollingUpdate" && self.expectations.satisfied(key) {
            let pods = self.pods_of(set).await?;
            let nodes = self.nodes_of(set, &pods);
            let desired = nodes.values().filter(|n| n.fit.run).count();
            let step = rolling::next(&nodes, Limits::of(&set.spec.update_strategy, desired), criteria);
            self.apply(key, set, criteria, step.create, step.delete).await?;
        }
        self.forget_revisions(set, old, &pods).await
    }

    /// Creates missing pods and deletes surplus ones.
    async fn manage(
        &self,
        key: &ObjectKey,
        set: &Arc<DaemonSetView>,
        criteria: &PodCriteria,
        nodes: &BTreeMap<String, NodePods>,
    ) -> Result<(), SyncError> {
        let (mut create, mut delete) = (Vec::new(), Vec::new());
        for (name, node) in nodes {
            if !node.exists {
                // The pod garbage collector deletes scheduled pods of deleted nodes, but not these.
                delete.extend(node.pods.iter().filter(|p| p.spec.node_name.is_empty()).cloned());
                continue;
            }
            let plan = manage::on_node(node.fit, &node.pods, criteria);
            if plan.create {
                create.push(name.clone());
            }
            delete.extend(self.ended(key, set, name, &plan));
            delete.extend(plan.delete);
        }
        self.apply(key, set, criteria, create, delete).await
    }

    /// Returns the terminated pods of a node that may be deleted now, and records an event for each.
    fn ended(&self, key: &ObjectKey, set: &DaemonSetView, node: &str, plan: &NodePlan) -> Vec<Arc<PodView>> {
        let (about, mut out) = (ObjectRef::of(set), Vec::new());
        let now = self.ctx.clock.now();
        for pod in &plan.failed {
            let back_off = (set.metadata.uid.clone(), set.status.observed_generation, node.to_owned());
            if let Err(left) = self.failed.may_delete(&back_off, now) {
                self.queue.add_after(key.clone(), left + Duration::from_millis(1));
                continue;
            }
            let message = format!("Found failed daemon pod {} on node {node}, will try to kill it", of(pod));
            self.recorder.event(&about, EventType::Warning, "FailedDaemonPod", message);
            out.push(Arc::clone(pod));
        }
        for pod in &plan.succeeded {
            let message = format!("Found succeeded daemon pod {} on node {node}, will try to delete it", of(pod));
            self.recorder.event(&about, EventType::Normal, "SucceededDaemonPod", message);
            out.push(Arc::clone(pod));
        }
        out
    }

    /// Creates a pod for each of these nodes and deletes these pods, up to the limit of one sync.
    async fn apply(
        &self,
        key: &ObjectKey,
        set: &Arc<DaemonSetView>,
        criteria: &PodCriteria,
        mut create: Vec<String>,
        mut delete: Vec<Arc<PodView>>,
    ) -> Result<(), SyncError> {
        create.truncate(BURST_MAX);
        delete.truncate(BURST_MAX);
        if create.is_empty() && delete.is_empty() {
            return Ok(());
        }
        self.expectations.expect(key, create.len(), delete.iter().map(|p| p.metadata.uid.clone()));
        let created = self.create(key, set, criteria, &create).await;
        let results = join_all(delete.iter().map(|p| self.control.delete(&**set, p))).await;
        let mut error = created.err();
        for (result, pod) in results.into_iter().zip(&delete) {
            if let Err(e) = result {
                self.expectations.deletion_observed(key, &pod.metadata.uid);
                if !e.is_not_found() {
                    error = error.or(Some(e.into()));
                }
            }
        }
        error.map_or(Ok(()), Err)
    }

    async fn create(
        &self,
        key: &ObjectKey,
        set: &Arc<DaemonSetView>,
        criteria: &PodCriteria,
        nodes: &[String],
    ) -> Result<(), SyncError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let templates = match templates(set, criteria, nodes) {
            Ok(templates) => templates,
            Err(e) => {
                self.expectations.lower_creations(key, nodes.len());
                return Err(SyncError::Other(format!("invalid pod template: {e}")));
            }
        };
        let (made, error) = slow_start(nodes.len(), |i| self.control.create(&**set, &templates[i])).await;
        self.expectations.lower_creations(key, nodes.len() - made);
        match error {
            Some(e) if !e.is_namespace_terminating() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Updates the status. `processed` is whether this sync completed for the set's generation.
    async fn write_status(
        &self,
        key: &ObjectKey,
        set: &Arc<DaemonSetView>,
        criteria: &PodCriteria,
        processed: bool,
    ) -> Result<(), SyncError> {
        let nodes = self.nodes_of(set, &self.pods_of(set).await?);
        let (mut new, again) = status::status(set.status, &nodes, criteria);
        if processed {
            new.observed_generation = set.metadata.generation;
        }
        if new != set.status {
            let seen = &set.metadata.resource_version;
            let write = |v: &mut Value| status::put(&mut v["status"], &new);
            let (namespace, name) = (&key.namespace, &key.name);
            update_value::<DaemonSetView>(&self.client, namespace, name, "status", seen, write).await?;
        }
        if let Some(wait) = again {
            self.queue.add_after(key.clone(), wait);
        }
        Ok(())
    }
}

fn of(pod: &PodView) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

fn criteria(set: &DaemonSetView, hash: String, now: jiff::Timestamp) -> PodCriteria {
    let template_generation = set.metadata.annotations.get(GENERATION_ANNOTATION).and_then(|g| g.parse().ok());
    let surges = Limits::of(&set.spec.update_strategy, 1).surge > 0;
    PodCriteria { hash, template_generation, min_ready: set.spec.min_ready_seconds, surges, now }
}

/// Returns the pod template for each of these nodes.
fn templates(
    set: &DaemonSetView,
    criteria: &PodCriteria,
    nodes: &[String],
) -> Result<Vec<Template>, serde_json::Error> {
    let raw = set.spec.template.raw.as_deref().map_or("{}", RawValue::get);
    let Template { mut metadata, spec } = serde_json::from_str(raw)?;
    if let Some(g) = criteria.template_generation {
        metadata.labels.insert(GENERATION_LABEL.to_owned(), g.to_string());
    }
    metadata.labels.insert(HASH_LABEL.to_owned(), criteria.hash.clone());
    let mut spec: Value = serde_json::from_str(spec.get())?;
    add_tolerations(&mut spec);
    let on = |node: &String| {
        pin(&mut spec, node);
        Ok(Template { metadata: metadata.clone(), spec: serde_json::value::to_raw_value(&spec)? })
    };
    nodes.iter().map(on).collect()
}
