//! Creates and deletes the pods of an owner with upstream's events (`controller_utils.go`, RealPodControl).
use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use kelson_client::{Client, ClientError, DeleteOptions, EventRecorder, EventType, Object, ObjectRef};
use kelson_meta::{ObjectMeta, OwnerReference, format_seconds};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::views::PodView;

/// The maximum length of a generated pod name's prefix, which leaves room for the random suffix.
const PREFIX_MAX: usize = 248;
/// The size of the first batch of creations. It doubles as long as all succeed.
const FIRST_BATCH: usize = 1;
/// The number of concurrent creations within a batch.
const PARALLEL_MAX: usize = 64;

/// Calls `make` `count` times, with the numbers from 0, in batches of doubling size. The batch with the first error is
/// the last one, so that an owner whose creations fail does not flood the API server. Returns the number of successes
/// and the first error.
pub async fn slow_start<R, T>(count: usize, make: impl Fn(usize) -> R) -> (usize, Option<ClientError>)
where
    R: Future<Output = Result<T, ClientError>>,
{
    let (mut tried, mut made, mut batch) = (0, 0, FIRST_BATCH);
    while tried < count {
        let now = batch.min(count - tried).min(PARALLEL_MAX);
        let mut error = None;
        for result in join_all((tried..tried + now).map(&make)).await {
            match result {
                Ok(_) => made += 1,
                Err(e) => error = error.or(Some(e)),
            }
        }
        if error.is_some() {
            return (made, error);
        }
        tried += now;
        batch = batch.saturating_mul(2);
    }
    (made, None)
}

/// A pod template with the spec as raw JSON, so that no field is lost.
#[derive(Deserialize)]
pub struct Template {
    /// The metadata of new pods.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// The spec of new pods.
    pub spec: Box<RawValue>,
}

/// Metadata of a pod template.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub finalizers: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodDocument<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: NewMeta<'a>,
    spec: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewMeta<'a> {
    generate_name: String,
    namespace: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    finalizers: &'a [String],
    owner_references: [OwnerReference; 1],
}

/// Creates and deletes pods for one controller, and records upstream's events `SuccessfulCreate`, `FailedCreate`,
/// `SuccessfulDelete` and `FailedDelete` on the owner. A creation sets the owner reference that makes the owner the
/// pod's controller.
#[derive(Clone)]
pub struct PodControl {
    /// A client that acts as the controller's user.
    pub client: Client,
    /// Records events on the owner.
    pub recorder: EventRecorder,
}

impl PodControl {
    /// Creates a pod from `template` that is controlled by `owner`.
    pub async fn create<O: Object>(&self, owner: &O, template: &Template) -> Result<PodView, ClientError> {
        let mut prefix = owner.name().to_owned();
        prefix.truncate(PREFIX_MAX);
        prefix.push('-');
        self.create_as(owner, prefix, template).await
    }

    /// Like [`create`](Self::create), with a name that the API server generates from `prefix`.
    pub async fn create_as<O: Object>(
        &self,
        owner: &O,
        prefix: String,
        template: &Template,
    ) -> Result<PodView, ClientError> {
        let pod = PodDocument {
            api_version: "v1",
            kind: "Pod",
            metadata: NewMeta {
                generate_name: prefix,
                namespace: owner.namespace(),
                labels: &template.metadata.labels,
                annotations: &template.metadata.annotations,
                finalizers: &template.metadata.finalizers,
                owner_references: [crate::shared::ownership::controller_ref(owner)],
            },
            spec: &template.spec,
        };
        let about = ObjectRef::of(owner);
        match self.client.create::<PodView>(owner.namespace(), &pod).await {
            Ok(made) => {
                let message = format!("Created pod: {}", made.metadata.name);
                self.recorder.event(&about, EventType::Normal, "SuccessfulCreate", message);
                Ok(made)
            }
            Err(e) => {
                if !e.is_namespace_terminating() {
                    let message = format!("Error creating: {e}");
                    self.recorder.event(&about, EventType::Warning, "FailedCreate", message);
                }
                Err(e)
            }
        }
    }

    /// Deletes a pod of `owner`. Succeeds without an event if the pod does not exist.
    pub async fn delete<O: Object>(&self, owner: &O, pod: &PodView) -> Result<(), ClientError> {
        let about = ObjectRef::of(owner);
        let options = DeleteOptions::default().with_uid(&pod.metadata.uid);
        match self.client.delete::<PodView>(&pod.metadata.namespace, &pod.metadata.name, &options).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", pod.metadata.name);
                self.recorder.event(&about, EventType::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Err(e) => {
                if !e.is_not_found() {
                    let message = format!("Error deleting: {e}");
                    self.recorder.event(&about, EventType::Warning, "FailedDelete", message);
                }
                Err(e)
            }
        }
    }
}

/// Returns a strategic merge patch of a pod's status with the condition `DisruptionTarget`, which states why the pod is
/// about to be deleted (KEP-3329). Its `observedGeneration` is the pod's generation (KEP-5067).
pub fn disruption_target(pod: &ObjectMeta, reason: &str, message: &str, now: Timestamp) -> Value {
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": format_seconds(now), "observedGeneration": pod.generation});
    json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}})
}

/// Returns the time until a ready pod is available: zero if it is available, `None` if it is not ready. `min_ready` is
/// the owner's `minReadySeconds`.
pub fn until_available(pod: &PodView, min_ready: i32, now: Timestamp) -> Option<Duration> {
    if !pod.is_ready() {
        return None;
    }
    if min_ready <= 0 {
        return Some(Duration::ZERO);
    }
    let ready_for = now.duration_since(pod.ready_since()?).as_millis().max(0);
    let missing = i128::from(min_ready) * 1000 - ready_for;
    Some(Duration::from_millis(u64::try_from(missing).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_slow_start_ends_at_the_first_batch_that_fails() {
        for (count, fails_from, made, tried) in
            [(7, 99, 7, 7), (0, 0, 0, 0), (100, 0, 0, 1), (100, 2, 2, 3), (100, 5, 5, 7)]
        {
            let calls = AtomicUsize::new(0);
            let result = slow_start(count, |i| {
                calls.fetch_add(1, Ordering::Relaxed);
                async move { if i < fails_from { Ok(i) } else { Err(ClientError::Decode("no".into())) } }
            });
            let (got, error) = result.await;
            assert_eq!((got, calls.into_inner(), error.is_some()), (made, tried, tried > made), "{count} {fails_from}");
        }
    }

    #[test]
    fn when_pods_are_available() {
        let pod = |ready: &str| -> PodView {
            let c =
                serde_json::json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            serde_json::from_value(serde_json::json!({"status": {"conditions": c}})).unwrap()
        };
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        for (ready, min_ready, want) in [
            ("True", 0, Some(0)),
            ("True", 10, Some(0)),
            ("True", 30, Some(20)),
            ("False", 0, None),
            ("False", 9, None),
        ] {
            assert_eq!(
                until_available(&pod(ready), min_ready, now),
                want.map(Duration::from_secs),
                "{ready} {min_ready}"
            );
        }
    }
}
