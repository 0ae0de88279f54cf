//! One sync of one stateful set: carries out the plan and writes the status.
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_client::{ClientError, DeleteOptions, EventType, Object, ObjectRef, PatchKind, WriteOptions};
use kelson_meta::ObjectKey;
use serde_json::{Value, json};

use super::claims::{self, Owners};
use super::identity::{self, INDEX_LABEL, NAME_LABEL, pod_name};
use super::plan::{Observation, PodStep, StatefulSetPlan, has_identity};
use super::revisions::{StatefulSetRevisions, template_of};
use super::{StatefulSetController, selector, status};
use crate::shared::context::{SyncError, update_value};
use crate::shared::ownership::claim_all;
use crate::shared::pods::slow_start;
use crate::shared::refusals::is_refused;
use crate::views::{ClaimView, PodView, StatefulSetView};

impl StatefulSetController {
    pub(super) async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(set) = self.sets.get(key) else {
            self.refusals.forget(key);
            return Ok(());
        };
        let selector = selector(&set);
        let candidates = self.pods.owned_or_orphaned(set.uid(), &key.namespace);
        let named: Vec<_> = candidates.into_iter().filter(|p| set.ordinal_of(&p.metadata.name).is_some()).collect();
        let held = claim_all(&self.client, &*set, &set.metadata, &selector, named, |p| &p.metadata).await?;
        let by_number = |p: Arc<PodView>| set.ordinal_of(&p.metadata.name).map(|o| (o, p));
        let pods: BTreeMap<i64, Arc<PodView>> = held.into_iter().filter_map(by_number).collect();
        let revisions = self.revisions_of(&set).await?;
        let update_revision = revisions.update.metadata.name.as_str();
        let seen = Observation { set: &set, pods: &pods, update_revision, now: self.ctx.clock.now() };
        let (mut new, again) = status::status(&seen, &revisions.current.metadata.name, revisions.collisions);
        let worked = if set.metadata.is_deleting() {
            Ok(())
        } else {
            let plan = seen.plan();
            // Pods that are deleted for an update no longer count for the current revision.
            let updating = i32::try_from(plan.update.len()).unwrap_or(i32::MAX);
            let done = self.carry_out(&set, &revisions, plan).await;
            if done.is_ok() {
                new.current_replicas = (new.current_replicas - updating).max(0);
            }
            done
        };
        status::complete(&set, &mut new);
        let mut written = Ok(());
        if new != set.status {
            let seen = &set.metadata.resource_version;
            let write = |v: &mut Value| status::put(&mut v["status"], &new);
            let (namespace, name) = (&key.namespace, &key.name);
            let sent = update_value::<StatefulSetView>(&self.client, namespace, name, "status", seen, write).await;
            written = sent.map(drop).map_err(SyncError::from);
        }
        if let Some(wait) = again {
            self.queue.add_after(key.clone(), wait);
        }
        let forgotten = self.forget_revisions(&set, &revisions, &pods).await;
        worked.and(written).and(forgotten)
    }

    async fn carry_out(
        &self,
        set: &Arc<StatefulSetView>,
        revisions: &StatefulSetRevisions,
        plan: StatefulSetPlan,
    ) -> Result<(), SyncError> {
        let StatefulSetPlan { steps, surplus, scale_down, update } = plan;
        if set.spec.pod_management_policy == "Parallel" {
            self.each(steps.len(), |i| self.step(set, revisions, &steps[i])).await?;
        } else {
            for step in &steps {
                match self.step(set, revisions, step).await {
                    Err(SyncError::Client(e)) if e.is_namespace_terminating() => return Ok(()),
                    other => other?,
                }
            }
        }
        self.each(surplus.len(), |i| self.own_claims(set, surplus[i].0, &surplus[i].1)).await?;
        self.each(scale_down.len(), |i| self.delete(set, &scale_down[i])).await?;
        self.each(update.len(), |i| self.delete(set, &update[i])).await
    }

    async fn each<F>(&self, count: usize, act: impl Fn(usize) -> F) -> Result<(), SyncError>
    where
        F: Future<Output = Result<(), SyncError>>,
    {
        let other = parking_lot::Mutex::new(None);
        let (_, error) = slow_start(count, |i| {
            let (run, other) = (act(i), &other);
            async move {
                match run.await {
                    Err(SyncError::Client(e)) => Err(e),
                    Err(e) => {
                        let text = e.to_string();
                        *other.lock() = Some(e);
                        Err(ClientError::Decode(text))
                    }
                    Ok(()) => Ok(()),
                }
            }
        })
        .await;
        match (other.into_inner(), error) {
            (Some(e), _) => Err(e),
            (None, Some(e)) if !e.is_namespace_terminating() => Err(e.into()),
            _ => Ok(()),
        }
    }

    async fn step(
        &self,
        set: &Arc<StatefulSetView>,
        revisions: &StatefulSetRevisions,
        step: &PodStep,
    ) -> Result<(), SyncError> {
        match step {
            PodStep::Replace(pod) => match self.refusals.held(&set.key()) {
                Some((_, wait)) if is_refused(pod) => {
                    self.queue.add_after(set.key(), wait);
                    Ok(())
                }
                _ => self.delete(set, pod).await,
            },
            PodStep::Create { ordinal, of_current } => {
                let revision = if *of_current { &revisions.current } else { &revisions.update };
                let body = identity::pod(set, &template_of(revision)?, &revision.metadata.name, *ordinal);
                self.create(set, *ordinal, &body).await
            }
            PodStep::EnsureClaims(ordinal, pod) => {
                self.make_claims(set, *ordinal).await?;
                self.own_claims(set, *ordinal, pod).await
            }
            PodStep::Maintain(ordinal, pod) => self.maintain(set, *ordinal, pod).await,
        }
    }

    /// `verb` is `Create`, `Update` or `Delete`.
    fn announce(&self, set: &StatefulSetView, verb: &str, pod: &str, error: Option<&dyn std::fmt::Display>) {
        let about = ObjectRef::of(set);
        let what = format!("{verb} Pod {pod} in StatefulSet {}", set.metadata.name);
        match error {
            None => {
                let message = format!("{what} successful");
                self.recorder.event(&about, EventType::Normal, &format!("Successful{verb}"), message);
            }
            Some(e) => {
                let message = format!("{what} failed error: {e}");
                self.recorder.event(&about, EventType::Warning, &format!("Failed{verb}"), message);
            }
        }
    }

    async fn create(&self, set: &Arc<StatefulSetView>, ordinal: i64, body: &Value) -> Result<(), SyncError> {
        let name = pod_name(set, ordinal);
        let stale = |claim: String| {
            let there = self.claims.get(&ObjectKey::new(&set.metadata.namespace, claim));
            there.is_some_and(|c| claims::is_stale(&c, set, &name))
        };
        if identity::claim_names(set, ordinal).any(stale) {
            // The deletion of a claim causes no event of a pod, so the sync must be retried.
            return Err(SyncError::Other(format!("pod {name} waits for the deletion of the previous pod's claims")));
        }
        if let Err(e) = self.make_claims(set, ordinal).await {
            self.announce(set, "Create", &name, Some(&e));
            return Err(e);
        }
        match self.client.create::<PodView>(&set.metadata.namespace, body).await {
            Ok(_) => self.announce(set, "Create", &name, None),
            Err(e) => {
                if !e.is_already_exists() && !e.is_namespace_terminating() {
                    self.announce(set, "Create", &name, Some(&e));
                }
                return Err(e.into());
            }
        }
        Ok(())
    }

    async fn delete(&self, set: &Arc<StatefulSetView>, pod: &PodView) -> Result<(), SyncError> {
        let options = DeleteOptions::default().with_uid(&pod.metadata.uid);
        match self.client.delete::<PodView>(&pod.metadata.namespace, &pod.metadata.name, &options).await {
            Err(e) if !e.is_not_found() => {
                self.announce(set, "Delete", &pod.metadata.name, Some(&e));
                Err(e.into())
            }
            _ => {
                self.announce(set, "Delete", &pod.metadata.name, None);
                Ok(())
            }
        }
    }

    /// Creates the missing claims of a pod.
    async fn make_claims(&self, set: &Arc<StatefulSetView>, ordinal: i64) -> Result<(), SyncError> {
        let namespace = &set.metadata.namespace;
        for (claim, name) in identity::claims(set, ordinal).iter().zip(identity::claim_names(set, ordinal)) {
            if let Some(there) = self.claims.get(&ObjectKey::new(namespace, &name)) {
                if there.metadata.is_deleting() {
                    return Err(SyncError::Other(format!("pvc {name} is being deleted")));
                }
                continue;
            }
            let about = ObjectRef::of(&**set);
            let what =
                format!("Create Claim {name} Pod {} in StatefulSet {}", pod_name(set, ordinal), set.metadata.name);
            match self.client.create::<ClaimView>(namespace, claim).await {
                Ok(_) => {
                    let message = format!("{what} success");
                    self.recorder.event(&about, EventType::Normal, "SuccessfulCreate", message);
                }
                // The claim is older than this pod, or the cache is outdated.
                Err(e) if e.is_already_exists() => {}
                Err(e) => {
                    let message = format!("{what} failed error: {e}");
                    self.recorder.event(&about, EventType::Warning, "FailedCreate", message);
                    return Err(SyncError::Other(format!("failed to create PVC {name}: {e}")));
                }
            }
        }
        Ok(())
    }

    /// Sets the owners of a pod's claims by the retention policy.
    async fn own_claims(&self, set: &Arc<StatefulSetView>, ordinal: i64, pod: &PodView) -> Result<(), SyncError> {
        for name in identity::claim_names(set, ordinal) {
            let Some(claim) = self.claims.get(&ObjectKey::new(&set.metadata.namespace, &name)) else { continue };
            let Owners::Set { owners, conflict } = claims::owners(&claim, set, pod, set.holds(ordinal)) else {
                continue;
            };
            if conflict {
                let message = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a managing controller, the retention policy is ignored for this claim"
                );
                self.recorder.event(&ObjectRef::of(&**set), EventType::Warning, "ConflictingController", message);
            }
            let m = &claim.metadata;
            let write = |v: &mut Value| v["metadata"]["ownerReferences"] = json!(owners);
            update_value::<ClaimView>(&self.client, &m.namespace, &m.name, "", &m.resource_version, write).await?;
        }
        Ok(())
    }

    async fn maintain(&self, set: &Arc<StatefulSetView>, ordinal: i64, pod: &PodView) -> Result<(), SyncError> {
        if !has_identity(pod) {
            let m = &pod.metadata;
            let labels = json!({NAME_LABEL: m.name, INDEX_LABEL: ordinal.to_string()});
            let patch = json!({"metadata": {"uid": m.uid, "labels": labels}});
            let options = WriteOptions::default();
            let sent =
                self.client.patch::<PodView>(&m.namespace, &m.name, "", PatchKind::Merge, &patch, &options).await;
            self.announce(set, "Update", &m.name, sent.as_ref().err().map(|e| e as &dyn std::fmt::Display));
            sent?;
        }
        self.own_claims(set, ordinal, pod).await
    }
}
