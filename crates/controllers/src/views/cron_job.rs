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

/// The spec of a cron job. The spec of its jobs is raw JSON, so that no field is lost.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpecView {
    /// The schedule in cron format.
    pub schedule: String,
    /// The time zone of the schedule. Absent means the controller's time zone.
    pub time_zone: Option<String>,
    /// The seconds after the scheduled time in which a job may still start. Absent means no deadline.
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`.
    pub concurrency_policy: String,
    /// Whether no further jobs are started.
    pub suspend: Option<bool>,
    /// The template of the jobs.
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

/// The metadata of new jobs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplateMeta {
    #[serde(deserialize_with = "null_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default")]
    pub annotations: BTreeMap<String, String>,
}

/// The complete status of a cron job, which is written as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    /// References to running jobs.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<ObjectRef>,
    /// The scheduled time of the last job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Timestamp>,
    /// When a job last succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Timestamp>,
}

impl CronJobStatus {
    /// Whether the job with this UID is in `active`.
    pub fn runs(&self, uid: &str) -> bool {
        self.active.iter().any(|j| j.uid == uid)
    }
    /// Removes a job from `active`. Returns whether it was there.
    pub fn ended(&mut self, uid: &str) -> bool {
        let before = self.active.len();
        self.active.retain(|j| j.uid != uid);
        before != self.active.len()
    }
}

impl Indexed for CronJobView {}
slim_object!(CronJobView, ResourceType::namespaced("batch", "v1", "cronjobs", "CronJob"));
