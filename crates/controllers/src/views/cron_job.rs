//! `batch/v1` CronJob.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_client::{ObjectRef, ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::index::Indexed;

/// `batch/v1` CronJob.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CronJobView {
    pub metadata: ObjectMeta,
    pub spec: CronJobSpecView,
    pub status: CronJobStatus,
}

/// A cron job's spec; the spec of its jobs stays as it came.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpecView {
    /// In cron's form.
    pub schedule: String,
    /// Of the schedule; absent: the controller's.
    pub time_zone: Option<String>,
    /// Seconds after its time in which a run may still begin; absent: any.
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`.
    pub concurrency_policy: String,
    /// No further runs while set.
    pub suspend: Option<bool>,
    /// What jobs are made of.
    pub job_template: JobTemplateView,
    /// Succeeded jobs to keep.
    pub successful_jobs_history_limit: Option<i32>,
    /// Failed jobs to keep.
    pub failed_jobs_history_limit: Option<i32>,
}

/// `batch/v1` JobTemplateSpec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplateView {
    /// Metadata of the jobs.
    pub metadata: JobTemplateMeta,
    /// Spec of the jobs, JSON.
    pub spec: Option<Box<RawValue>>,
}

/// Metadata that jobs get.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplateMeta {
    #[serde(deserialize_with = "null_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub annotations: BTreeMap<String, String>,
}

/// A cron job's status, whole: it is written back as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    /// Jobs that run.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<ObjectRef>,
    /// The time in the schedule of the last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Timestamp>,
    /// When a run last ended with success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Timestamp>,
}

impl CronJobStatus {
    /// Whether the job with this UID is known to run.
    pub fn runs(&self, uid: &str) -> bool {
        self.active.iter().any(|j| j.uid == uid)
    }
    /// Takes a job out of those that run. Whether it was there.
    pub fn ended(&mut self, uid: &str) -> bool {
        let before = self.active.len();
        self.active.retain(|j| j.uid != uid);
        before != self.active.len()
    }
}

impl Indexed for CronJobView {}
slim_object!(CronJobView, ResourceType::namespaced("batch", "v1", "cronjobs", "CronJob"));
