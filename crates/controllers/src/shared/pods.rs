//! Makes and deletes the pods of an owner, with the events upstream gives (`controller_utils.go`, RealPodControl).
use std::collections::BTreeMap;

use futures::future::join_all;
use kelson_client::{Client, ClientError, DeleteOptions, EventRecorder, EventType, Object, ObjectRef};
use kelson_meta::OwnerReference;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::views::PodView;

/// Longest prefix of a generated pod name that still leaves room for the random suffix.
const PREFIX_MAX: usize = 248;
/// Size of the first batch of creations; it doubles as long as all succeed.
const FIRST_BATCH: usize = 1;
/// Creations in flight at once within one batch.
const PARALLEL_MAX: usize = 64;

/// Makes `count` things in batches that double, so that an owner that cannot make any does not flood the API with failures:
/// a batch in which one failed is the last. Gives how many were made, and the first error. `make` gets the number of the
/// thing, from 0.
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

/// A pod template, its spec untouched.
#[derive(Deserialize)]
pub struct Template {
    /// What pods get as metadata.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// What pods get as spec.
    pub spec: Box<RawValue>,
}

/// Metadata of a pod template.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewPod<'a> {
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

/// Acts on pods for one controller.
#[derive(Clone)]
pub struct PodControl {
    /// Under the controller's identity.
    pub client: Client,
    /// Where events go.
    pub recorder: EventRecorder,
}

impl PodControl {
    /// Makes one pod from `template`, controlled by `owner`.
    pub async fn create<O: Object>(&self, owner: &O, template: &Template) -> Result<PodView, ClientError> {
        let mut prefix = owner.name().to_owned();
        prefix.truncate(PREFIX_MAX);
        prefix.push('-');
        self.create_as(owner, prefix, template).await
    }

    /// As [`create`](Self::create), with a name that the API makes from `prefix`.
    pub async fn create_as<O: Object>(
        &self,
        owner: &O,
        prefix: String,
        template: &Template,
    ) -> Result<PodView, ClientError> {
        let pod = NewPod {
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

    /// Deletes one pod of `owner`. A pod that is gone already is no error and makes no event.
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
