//! Conditions as in most statuses. The transition time of a condition changes only with its status.
use serde::{Deserialize, Serialize};

/// A condition of a deployment, replica set, namespace, node or certificate request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    pub r#type: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Last heartbeat (nodes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
    /// Last write (deployments, certificate requests).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<String>,
    /// Last change of status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}

impl Condition {
    /// Returns a condition whose status changed at `now`.
    pub fn new(kind: &str, status: &str, reason: &str, message: impl Into<String>, now: &str) -> Self {
        Self {
            r#type: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: Some(now.to_owned()),
            ..Self::default()
        }
    }
    /// Sets the time of the last update, which deployments have.
    pub fn updated_at(mut self, now: &str) -> Self {
        self.last_update_time = Some(now.to_owned());
        self
    }
}

/// Returns the condition of a type.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.r#type == kind)
}

/// Sets a condition unless one with the same status and reason exists.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition) {
    if let Some(old) = find(conditions, &new.r#type) {
        if old.status == new.status && old.reason == new.reason {
            return;
        }
        if old.status == new.status {
            new.last_transition_time.clone_from(&old.last_transition_time);
        }
    }
    remove(conditions, &new.r#type.clone());
    conditions.push(new);
}

/// Removes a condition.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|c| c.r#type != kind);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_moves_with_the_status_only() {
        let mut all = vec![];
        set(&mut all, Condition::new("A", "True", "X", "m", "t1"));
        set(&mut all, Condition::new("A", "True", "X", "other", "t2"));
        assert_eq!((all[0].message.as_str(), all.len()), ("m", 1));
        set(&mut all, Condition::new("A", "True", "Y", "m", "t3"));
        assert_eq!((all[0].reason.as_str(), all[0].last_transition_time.as_deref()), ("Y", Some("t1")));
        set(&mut all, Condition::new("A", "False", "Y", "m", "t4"));
        assert_eq!(all[0].last_transition_time.as_deref(), Some("t4"));
        remove(&mut all, "A");
        assert!(find(&all, "A").is_none());
    }
}
