//! Carries out one sync of one deployment: finds or makes the newest replica set, sizes all of them, writes the status.
//! Numbers come from `sizing`, conditions from `status`.
use std::sync::Arc;

use jiff::Timestamp;
use kelson_client::{DeleteOptions, EventType, Object, ObjectRef};
use kelson_meta::ObjectKey;
use serde_json::{Value, json};

use super::controller::DeploymentController;
use super::revision::{self, DESIRED_REPLICAS, HASH_LABEL, MAX_REPLICAS, REVISION};
use super::sizing::{self, Ask, SetSize};
use super::status;
use crate::shared::context::{SyncError, update_value};
use crate::shared::history;
use crate::views::condition::{self, Condition};
use crate::views::{DeploymentStatus, DeploymentView, ReplicaSetView};
use kelson_meta::tree::{map_at, put_unless};

/// The state of one sync. `sets` are all sets of the deployment, the oldest first, and `new` is the index of the one
/// with the current template.
pub(super) struct Rollout<'a> {
    c: &'a Arc<DeploymentController>,
    d: DeploymentView,
    sets: Vec<ReplicaSetView>,
    new: Option<usize>,
    template: Value,
    ask: Ask,
    now: Timestamp,
}

fn size_of(s: &ReplicaSetView) -> SetSize {
    let number = |k: &str| s.metadata.annotations.get(k).and_then(|v| v.parse().ok());
    SetSize {
        replicas: s.spec.replicas.unwrap_or(1),
        available: s.status.available_replicas,
        max_replicas: number(MAX_REPLICAS),
        desired_replicas: number(DESIRED_REPLICAS),
        created: s.metadata.creation_timestamp.clone(),
    }
}

impl<'a> Rollout<'a> {
    pub(super) fn new(
        c: &'a Arc<DeploymentController>,
        d: &DeploymentView,
        mut sets: Vec<ReplicaSetView>,
    ) -> Result<Self, SyncError> {
        sets.sort_by(|a, b| {
            let (a, b) = (&a.metadata, &b.metadata);
            a.creation_timestamp.cmp(&b.creation_timestamp).then_with(|| a.name.cmp(&b.name))
        });
        let template = d.spec.template.as_deref().and_then(revision::normalize);
        let template = template.ok_or_else(|| SyncError::Other("invalid pod template".into()))?;
        let same =
            |s: &ReplicaSetView| s.spec.template.as_deref().and_then(revision::normalize).as_ref() == Some(&template);
        let new = sets.iter().position(same);
        Ok(Self { c, ask: Ask::of(d), d: d.clone(), sets, new, template, now: c.ctx.clock.now() })
    }

    fn newest(&self) -> Option<&ReplicaSetView> {
        self.new.map(|i| &self.sets[i])
    }
    fn old_indexes(&self) -> Vec<usize> {
        (0..self.sets.len()).filter(|i| Some(*i) != self.new).collect()
    }
    fn sizes(&self, indexes: &[usize]) -> Vec<SetSize> {
        indexes.iter().map(|&i| size_of(&self.sets[i])).collect()
    }

    pub(super) fn is_scaling(&self) -> bool {
        sizing::is_scaling(&self.ask, &self.sizes(&(0..self.sets.len()).collect::<Vec<_>>()))
    }

    /// Scales the sets of a paused or scaled deployment without rolling out a new template.
    pub(super) async fn scale_only(&mut self) -> Result<(), SyncError> {
        self.ensure_newest(false).await?;
        self.scale().await?;
        if self.d.spec.paused {
            self.clean_up().await?;
        }
        self.sync_status_only().await
    }

    pub(super) async fn rolling_update(&mut self) -> Result<(), SyncError> {
        self.ensure_newest(true).await?;
        let old = self.old_indexes();
        let sizes = self.sizes(&old);
        let Some(new) = self.new else { return Ok(()) };
        if let Some(n) = sizing::reconcile_new(&self.ask, &sizes, &size_of(&self.sets[new])) {
            self.resize(new, n).await?;
            return self.sync_rollout_status().await;
        }
        let wanted = sizing::reconcile_old(&self.ask, &sizes, &size_of(&self.sets[new]));
        let mut changed = false;
        for (&i, n) in old.iter().zip(wanted) {
            if n != size_of(&self.sets[i]).replicas {
                self.resize(i, n).await?;
                changed = true;
            }
        }
        if !changed && status::is_complete(&self.d, &self.d.status) {
            self.clean_up().await?;
        }
        self.sync_rollout_status().await
    }

    /// Deletes all old pods before the first new one is created.
    pub(super) async fn recreate(&mut self) -> Result<(), SyncError> {
        self.ensure_newest(false).await?;
        let mut changed = false;
        for i in self.old_indexes() {
            if self.sets[i].spec.replicas.unwrap_or(1) > 0 {
                self.resize(i, 0).await?;
                changed = true;
            }
        }
        let old: Vec<&ReplicaSetView> = self.old_indexes().into_iter().map(|i| &self.sets[i]).collect();
        if changed || self.c.any_pod_runs(&old) {
            return self.sync_rollout_status().await;
        }
        self.ensure_newest(true).await?;
        if let Some(new) = self.new {
            self.resize(new, self.ask.replicas).await?;
        }
        if status::is_complete(&self.d, &self.d.status) {
            self.clean_up().await?;
        }
        self.sync_rollout_status().await
    }

    /// Adapts sizes to a changed `spec.replicas`.
    async fn scale(&mut self) -> Result<(), SyncError> {
        let active: Vec<usize> =
            (0..self.sets.len()).filter(|&i| self.sets[i].spec.replicas.unwrap_or(1) > 0).collect();
        let only = match active.len() {
            0 => self.new.or_else(|| self.sets.len().checked_sub(1)),
            1 => Some(active[0]),
            _ => None,
        };
        if let Some(i) = only {
            return self.resize(i, self.ask.replicas).await;
        }
        if let Some(new) = self.new
            && sizing::is_saturated(&self.ask, &size_of(&self.sets[new]))
        {
            for i in active.into_iter().filter(|i| *i != new) {
                self.resize(i, 0).await?;
            }
            return Ok(());
        }
        if self.ask.rolling {
            let wanted = sizing::proportional(&self.ask, &self.sizes(&active));
            for (i, n) in active.into_iter().zip(wanted) {
                self.resize(i, n).await?;
            }
        }
        Ok(())
    }

    /// Updates a set's size and its annotations with the deployment's size, if they differ.
    async fn resize(&mut self, index: usize, size: i32) -> Result<(), SyncError> {
        let set = &self.sets[index];
        let before = set.spec.replicas.unwrap_or(1);
        let (desired, max) = (self.ask.replicas.to_string(), self.ask.max_total().to_string());
        let noted = |k: &str, v: &String| set.metadata.annotations.get(k) == Some(v);
        if before == size && noted(DESIRED_REPLICAS, &desired) && noted(MAX_REPLICAS, &max) {
            return Ok(());
        }
        let (namespace, name) = (set.metadata.namespace.clone(), set.metadata.name.clone());
        let seen = set.metadata.resource_version.clone();
        let updated = update_value::<ReplicaSetView>(&self.c.client, &namespace, &name, "", &seen, |v| {
            v["spec"]["replicas"] = json!(size);
            let annotations = map_at(&mut v["metadata"], "annotations");
            annotations.insert(DESIRED_REPLICAS.into(), json!(desired));
            annotations.insert(MAX_REPLICAS.into(), json!(max));
        })
        .await?;
        self.sets[index] = updated;
        if before != size {
            let way = if before < size { "up" } else { "down" };
            let message = format!("Scaled {way} replica set {name} from {before} to {size}");
            self.c.recorder.event(&ObjectRef::of(&self.d), EventType::Normal, "ScalingReplicaSet", message);
        }
        Ok(())
    }

    /// Updates the newest set's annotations. Creates the set if it does not exist and `create` is true.
    async fn ensure_newest(&mut self, create: bool) -> Result<(), SyncError> {
        let top = self.old_indexes().iter().map(|&i| revision::revision(&self.sets[i].metadata)).max().unwrap_or(0);
        match self.new {
            Some(i) => self.adjust_newest(i, top + 1).await,
            None if create => self.create_newest(top + 1).await,
            None => Ok(()),
        }
    }

    async fn adjust_newest(&mut self, index: usize, next: i64) -> Result<(), SyncError> {
        let set = &self.sets[index];
        let annotations = revision::annotations_for(&self.d.metadata.annotations, &set.metadata.annotations, next);
        let min_ready = self.d.spec.min_ready_seconds;
        if annotations != set.metadata.annotations || min_ready != set.spec.min_ready_seconds {
            let (ns, name) = (set.metadata.namespace.clone(), set.metadata.name.clone());
            let seen = set.metadata.resource_version.clone();
            let updated = update_value::<ReplicaSetView>(&self.c.client, &ns, &name, "", &seen, |v| {
                v["metadata"]["annotations"] = json!(annotations);
                put_unless(&mut v["spec"], "minReadySeconds", json!(min_ready), min_ready == 0);
            })
            .await?;
            self.sets[index] = updated;
        }
        let set = &self.sets[index];
        let (name, revision) = (set.metadata.name.clone(), set.metadata.annotations.get(REVISION).cloned());
        self.set_revision(revision).await?;
        if status::has_deadline(&self.d) && condition::find(&self.d.status.conditions, status::PROGRESSING).is_none() {
            self.note("True", "FoundNewReplicaSet", format!("Found new replica set {name:?}")).await?;
        }
        Ok(())
    }

    async fn create_newest(&mut self, next: i64) -> Result<(), SyncError> {
        let hash = history::hash(&self.template, self.d.status.collision_count);
        let name = format!("{}-{hash}", self.d.metadata.name);
        let total: i32 = self.sets.iter().map(|s| s.spec.replicas.unwrap_or(1)).sum();
        let replicas = sizing::new_set_size(&self.ask, total, 0);
        let body = self.new_set(&name, &hash, replicas, next);
        let namespace = self.d.metadata.namespace.clone();
        let made = match self.c.client.create::<ReplicaSetView>(&namespace, &body).await {
            Ok(s) => s,
            Err(e) if e.is_already_exists() => match self.same_set(&namespace, &name).await? {
                Some(s) => s,
                None => return self.count_collision(&name).await,
            },
            Err(e) if e.is_namespace_terminating() => return Ok(()),
            Err(e) => {
                let message = format!("Failed to create new replica set {name:?}: {e}");
                if status::has_deadline(&self.d) {
                    self.note("False", "ReplicaSetCreateError", message.clone()).await?;
                }
                let about = ObjectRef::of(&self.d);
                self.c.recorder.event(&about, EventType::Warning, "ReplicaSetCreateError", message);
                return Err(e.into());
            }
        };
        if replicas > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {replicas}");
            self.c.recorder.event(&ObjectRef::of(&self.d), EventType::Normal, "ScalingReplicaSet", message);
        }
        let revision = made.metadata.annotations.get(REVISION).cloned();
        self.sets.push(made);
        self.new = Some(self.sets.len() - 1);
        self.set_revision(revision).await?;
        if status::has_deadline(&self.d) {
            self.note("True", "NewReplicaSetCreated", format!("Created new replica set {name:?}")).await?;
        }
        Ok(())
    }

    /// Returns the replica set for the current template.
    fn new_set(&self, name: &str, hash: &str, replicas: i32, next: i64) -> Value {
        let mut annotations =
            revision::annotations_for(&self.d.metadata.annotations, &std::collections::BTreeMap::new(), next);
        annotations.insert(DESIRED_REPLICAS.into(), self.ask.replicas.to_string());
        annotations.insert(MAX_REPLICAS.into(), self.ask.max_total().to_string());
        let mut template = self.template.clone();
        let labels = map_at(map_at_value(&mut template, "metadata"), "labels");
        labels.insert(HASH_LABEL.into(), json!(hash));
        let labels = labels.clone();
        let mut selector = json!(self.d.spec.selector);
        map_at(&mut selector, "matchLabels").insert(HASH_LABEL.into(), json!(hash));
        let mut spec = json!({"replicas": replicas, "selector": selector, "template": template});
        let min_ready = self.d.spec.min_ready_seconds;
        put_unless(&mut spec, "minReadySeconds", json!(min_ready), min_ready == 0);
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": name, "namespace": self.d.metadata.namespace, "labels": labels, "annotations": annotations,
                "ownerReferences": [crate::shared::ownership::controller_ref(&self.d)],
            },
            "spec": spec,
        })
    }

    /// Returns the set with this name if it is the deployment's and has the same template: an earlier sync created it
    /// and the cache is outdated.
    async fn same_set(&self, namespace: &str, name: &str) -> Result<Option<ReplicaSetView>, SyncError> {
        let live: ReplicaSetView = self.c.client.get(namespace, name).await?;
        let ours = live.metadata.controller().is_some_and(|o| o.uid == self.d.metadata.uid);
        let same = live.spec.template.as_deref().and_then(revision::normalize).as_ref() == Some(&self.template);
        Ok((ours && same).then_some(live))
    }

    async fn count_collision(&mut self, name: &str) -> Result<(), SyncError> {
        let mut s = self.d.status.clone();
        s.collision_count = Some(s.collision_count.unwrap_or(0) + 1);
        self.write_status(s).await?;
        Err(SyncError::Other(format!("another replica set is named {name:?}, trying another hash")))
    }

    /// Updates the revision through the status subresource, where annotations do not change the generation.
    async fn set_revision(&mut self, revision: Option<String>) -> Result<(), SyncError> {
        let Some(revision) = revision.filter(|r| self.d.metadata.annotations.get(REVISION) != Some(r)) else {
            return Ok(());
        };
        let (ns, name, seen) = self.place();
        self.d = update_value::<DeploymentView>(&self.c.client, &ns, &name, "status", &seen, |v| {
            map_at(&mut v["metadata"], "annotations").insert(REVISION.into(), json!(revision));
        })
        .await?;
        Ok(())
    }

    fn place(&self) -> (String, String, String) {
        let m = &self.d.metadata;
        (m.namespace.clone(), m.name.clone(), m.resource_version.clone())
    }

    /// Updates the condition Progressing only.
    async fn note(&mut self, state: &str, reason: &str, message: String) -> Result<(), SyncError> {
        let time = kelson_meta::format_seconds(self.now);
        self.put_condition(Condition::new(status::PROGRESSING, state, reason, message, &time).updated_at(&time)).await
    }

    async fn put_condition(&mut self, c: Condition) -> Result<(), SyncError> {
        let mut s = self.d.status.clone();
        condition::set(&mut s.conditions, c);
        self.write_status(s).await
    }

    pub(super) async fn note_pause(&mut self) -> Result<(), SyncError> {
        match status::paused_condition(&self.d, self.now) {
            Some(c) => self.put_condition(c).await,
            None => Ok(()),
        }
    }

    pub(super) async fn sync_status_only(&mut self) -> Result<(), SyncError> {
        let s = status::calculate(&self.d, &self.sets, self.newest(), self.now);
        self.write_status(s).await
    }

    async fn sync_rollout_status(&mut self) -> Result<(), SyncError> {
        let s = status::rollout(&self.d, &self.sets, self.newest(), self.now);
        if let Some(wait) = status::check_again(&self.d, &s, self.now) {
            self.c.queue.add_after(ObjectKey::new(&self.d.metadata.namespace, &self.d.metadata.name), wait);
        }
        self.write_status(s).await
    }

    async fn write_status(&mut self, s: DeploymentStatus) -> Result<(), SyncError> {
        if s == self.d.status {
            return Ok(());
        }
        let (ns, name, seen) = self.place();
        let write = |v: &mut Value| put_status(&mut v["status"], &s);
        self.d = update_value::<DeploymentView>(&self.c.client, &ns, &name, "status", &seen, write).await?;
        Ok(())
    }

    /// Deletes old sets above the history limit, the lowest revision first, if they have no pods.
    async fn clean_up(&mut self) -> Result<(), SyncError> {
        let Some(limit) = self.d.spec.revision_history_limit.filter(|l| *l != i32::MAX) else { return Ok(()) };
        let mut old = self.old_indexes();
        old.retain(|&i| !self.sets[i].metadata.is_deleting());
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        old.sort_by_key(|&i| revision::revision(&self.sets[i].metadata));
        for i in old.into_iter().take(surplus) {
            let s = &self.sets[i];
            let settled = s.status.replicas == 0
                && s.spec.replicas.unwrap_or(1) == 0
                && s.metadata.generation <= s.status.observed_generation;
            if !settled {
                continue;
            }
            let options = DeleteOptions::default().with_uid(s.uid());
            match self.c.client.delete::<ReplicaSetView>(s.namespace(), s.name(), &options).await {
                Err(e) if !e.is_not_found() => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn map_at_value<'v>(tree: &'v mut Value, name: &str) -> &'v mut Value {
    map_at(tree, name);
    &mut tree[name]
}

fn put_status(tree: &mut Value, s: &DeploymentStatus) {
    if !tree.is_object() {
        *tree = json!({});
    }
    let numbers = [
        ("observedGeneration", s.observed_generation),
        ("replicas", s.replicas.into()),
        ("updatedReplicas", s.updated_replicas.into()),
        ("readyReplicas", s.ready_replicas.into()),
        ("availableReplicas", s.available_replicas.into()),
        ("unavailableReplicas", s.unavailable_replicas.into()),
    ];
    for (name, n) in numbers {
        put_unless(tree, name, json!(n), n == 0);
    }
    put_unless(tree, "terminatingReplicas", json!(s.terminating_replicas), s.terminating_replicas.is_none());
    put_unless(tree, "collisionCount", json!(s.collision_count), s.collision_count.is_none());
    put_unless(tree, "conditions", json!(s.conditions), s.conditions.is_empty());
}
