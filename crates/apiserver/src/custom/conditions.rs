//! Condition types of a definition, and updates of conditions.
use jiff::Timestamp;
use kelson_meta::format_seconds;
use serde::{Deserialize, Serialize};

pub const NAMES_ACCEPTED: &str = "NamesAccepted";
pub const ESTABLISHED: &str = "Established";
pub const TERMINATING: &str = "Terminating";
pub const APPROVAL_CONFORMANT: &str = "KubernetesAPIApprovalPolicyConformant";

/// One of `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A condition to be set.
pub fn condition(kind: &str, status: bool, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        ..Condition::default()
    }
}

/// Sets a condition. Its transition time changes only with its status.
pub fn set(conditions: &mut Vec<Condition>, mut wanted: Condition, now: Timestamp) {
    let Some(have) = conditions.iter_mut().find(|c| c.kind == wanted.kind) else {
        wanted.last_transition_time = Some(format_seconds(now));
        conditions.push(wanted);
        return;
    };
    let kept = have.last_transition_time.take().filter(|_| have.status == wanted.status);
    wanted.last_transition_time = kept.or_else(|| Some(format_seconds(now)));
    wanted.observed_generation = have.observed_generation;
    *have = wanted;
}
