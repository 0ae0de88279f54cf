//! `batch/v1` Job.
use jiff::Timestamp;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelSelector, LabelSelectorSpec, ObjectMeta, format_seconds, null_default};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::index::{IndexKey, Indexed, index_owned};

/// The value of `spec.managedBy` for jobs of this controller; absent means the same.
pub const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// `batch/v1` Job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobView {
    pub metadata: ObjectMeta,
    pub spec: JobSpecView,
    pub status: JobStatus,
}

/// The spec of a job. The template is raw JSON, so that no field is lost.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpecView {
    /// The number of concurrent pods; the API defaults it to 1.
    pub parallelism: Option<i32>,
    /// The required number of successes. If absent, the success of any pod finishes the job.
    pub completions: Option<i32>,
    /// The maximum run time in seconds.
    pub active_deadline_seconds: Option<i64>,
    /// The number of failed pods after which the job fails; the API defaults it.
    pub backoff_limit: Option<i32>,
    /// Failures of one index after which the index fails.
    pub backoff_limit_per_index: Option<i32>,
    /// Failed indexes after which the job fails.
    pub max_failed_indexes: Option<i32>,
    pub selector: Option<LabelSelectorSpec>,
    /// Pod template, JSON.
    pub template: Option<Box<RawValue>>,
    /// Seconds from the end of the job to its deletion.
    pub ttl_seconds_after_finished: Option<i32>,
    /// `NonIndexed` or `Indexed`.
    pub completion_mode: Option<String>,
    /// Whether the job has no pods for now.
    pub suspend: Option<bool>,
    /// `Failed` or `TerminatingOrFailed`.
    pub pod_replacement_policy: Option<String>,
    /// The policy for failed pods of the job.
    pub pod_failure_policy: Option<PodFailurePolicy>,
    /// The indexes that must succeed.
    pub success_policy: Option<SuccessPolicy>,
    /// The controller that reconciles the job.
    pub managed_by: Option<String>,
}

/// `batch/v1` PodFailurePolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    /// The rules; the first that matches applies.
    #[serde(deserialize_with = "null_default")]
    pub rules: Vec<PodFailureRule>,
}

/// `batch/v1` PodFailurePolicyRule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFailureRule {
    /// `Ignore`, `FailIndex`, `Count` or `FailJob`.
    pub action: String,
    /// The requirement on exit codes of containers.
    pub on_exit_codes: Option<OnExitCodes>,
    /// The requirement on conditions of the pod.
    #[serde(deserialize_with = "null_default")]
    pub on_pod_conditions: Vec<ConditionPattern>,
}

/// `batch/v1` PodFailurePolicyOnExitCodesRequirement.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OnExitCodes {
    /// Only this container.
    pub container_name: Option<String>,
    /// `In` or `NotIn`.
    pub operator: String,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<i32>,
}

/// `batch/v1` PodFailurePolicyOnPodConditionsPattern.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConditionPattern {
    pub r#type: String,
    /// Status; the API defaults it to `True`.
    pub status: String,
}

/// `batch/v1` SuccessPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    /// The rules; one that is met is enough.
    #[serde(deserialize_with = "null_default")]
    pub rules: Vec<SuccessRule>,
}

/// `batch/v1` SuccessPolicyRule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRule {
    /// The indexes that count, as `1,3-5`; absent means all.
    pub succeeded_indexes: Option<String>,
    /// The number of these indexes that must succeed. Absent means all.
    pub succeeded_count: Option<i32>,
}

/// The complete status of a job, which is written as it is here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    /// When the job started, or was last resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// When it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// The number of pods that are pending or running.
    #[serde(skip_serializing_if = "is_zero")]
    pub active: i32,
    /// Pods that succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    /// Pods that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// Pods being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    /// Active pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
    /// Indexes that succeeded, as `1,3-5`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed_indexes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_indexes: Option<String>,
    /// Terminated pods that are in no counter yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted_terminated_pods: Option<UncountedPods>,
}

// Serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// `batch/v1` UncountedTerminatedPods: UIDs.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default)]
pub struct UncountedPods {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<String>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// `batch/v1` JobCondition.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCondition {
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// When the condition was last checked, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl JobCondition {
    /// Returns a condition whose status changed at `now`.
    pub fn new(kind: &str, status: &str, reason: &str, message: impl Into<String>, now: Timestamp) -> Self {
        let now = Some(format_seconds(now));
        Self {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            last_probe_time: now.clone(),
            last_transition_time: now,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

impl JobStatus {
    /// Returns the condition of this type if it is true.
    pub fn holds(&self, kind: &str) -> Option<&JobCondition> {
        self.conditions.iter().find(|c| c.r#type == kind && c.status == "True")
    }
    /// Returns the condition with which the job finished, if it has.
    pub fn finished(&self) -> Option<&JobCondition> {
        self.conditions.iter().find(|c| matches!(c.r#type.as_str(), "Complete" | "Failed") && c.status == "True")
    }
    /// When it began.
    pub fn started(&self) -> Option<Timestamp> {
        self.start_time.as_deref()?.parse().ok()
    }
    /// Sets a condition. A false condition that was never true is left out. Returns whether anything changed.
    pub fn put(&mut self, new: JobCondition) -> bool {
        match self.conditions.iter_mut().find(|c| c.r#type == new.r#type) {
            Some(old) if old.status == new.status && old.reason == new.reason && old.message == new.message => false,
            Some(old) => {
                *old = new;
                true
            }
            None if new.status == "False" => false,
            None => {
                self.conditions.push(new);
                true
            }
        }
    }
}

impl JobView {
    /// Whether completion indexes are used.
    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }
    /// Whether the job is suspended.
    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }
    /// Returns the other controller that reconciles the job, if there is one.
    pub fn external_manager(&self) -> Option<&str> {
        self.spec.managed_by.as_deref().filter(|m| *m != JOB_CONTROLLER)
    }
    /// Whether a pod is replaced only once it has failed, not while it terminates.
    pub fn replaces_only_failed(&self) -> bool {
        match &self.spec.pod_replacement_policy {
            Some(policy) => policy == "Failed",
            None => self.spec.pod_failure_policy.is_some(),
        }
    }
    /// Returns the selector of the job's pods. An invalid or empty selector selects nothing.
    pub fn selector(&self) -> LabelSelector {
        let parsed = self.spec.selector.as_ref().and_then(|s| s.selector().ok());
        parsed.filter(|s| !s.is_everything()).unwrap_or_else(LabelSelector::nothing)
    }
}

impl Indexed for JobView {
    fn index(&self, into: &mut Vec<IndexKey>) {
        into.push(IndexKey::Namespace(self.metadata.namespace.clone()));
        index_owned(&self.metadata, into);
    }
}
slim_object!(JobView, ResourceType::namespaced("batch", "v1", "jobs", "Job"));
