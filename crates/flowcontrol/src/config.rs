//! The fields of FlowSchema and PriorityLevelConfiguration objects, and their validation.
use kelson_meta::null_default;
use serde::Deserialize;

use crate::shuffle::Dealer;

/// The name of the priority level whose requests never wait.
pub const EXEMPT: &str = "exempt";
/// The name of the schema and of the level for requests that match no other schema.
pub const CATCH_ALL: &str = "catch-all";

/// The maximum number of queues of a level. Each queue uses memory, and each is considered when a request is placed.
const QUEUES_MAX: usize = 4096;
/// The maximum number of requests in a queue.
const QUEUE_LENGTH_MAX: usize = 10_000;

/// The name and the identity of an object.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The name that flow schemas and metrics use for the level.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// The UID; empty for a level without a stored object.
    #[serde(deserialize_with = "null_default")]
    pub uid: String,
}

/// The fields of a `PriorityLevelConfiguration` that are used here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PriorityLevelConfiguration {
    /// The name and the identity of the object.
    pub metadata: Meta,
    pub(crate) spec: LevelSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct LevelSpec {
    #[serde(rename = "type", deserialize_with = "null_default")]
    kind: String,
    limited: Option<Limited>,
    exempt: Option<Exempt>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Limited {
    nominal_concurrency_shares: Option<i32>,
    lendable_percent: Option<i32>,
    borrowing_limit_percent: Option<i32>,
    #[serde(deserialize_with = "null_default")]
    limit_response: LimitResponse,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Exempt {
    nominal_concurrency_shares: Option<i32>,
    lendable_percent: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct LimitResponse {
    #[serde(rename = "type", deserialize_with = "null_default")]
    kind: String,
    queuing: Option<Queuing>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Queuing {
    queues: i32,
    hand_size: i32,
    queue_length_limit: i32,
}

/// A valid priority level.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    pub name: String,
    pub uid: String,
    /// The shares of the server's seats, relative to other levels.
    pub shares: u32,
    /// The percentage of its seats that other levels may borrow.
    pub lendable_percent: u32,
    /// The maximum number of seats to borrow, as a percentage of the nominal seats. `None` means as many as others
    /// lend.
    pub borrowing_percent: Option<u32>,
    pub shape: Shape,
}

/// The handling of a request when the seats of its level are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The request runs without waiting.
    Exempt,
    /// The request is rejected.
    Reject,
    /// The request waits in a queue.
    Queue {
        /// The number of queues.
        queues: usize,
        /// The number of queues that one flow may use.
        hand: usize,
        /// The maximum number of requests in one queue.
        length_max: usize,
    },
}

impl PriorityLevelConfiguration {
    /// Returns the level if the object is valid. API validation should reject other objects.
    pub(crate) fn judge(&self) -> Option<Level> {
        let LevelSpec { kind, limited, exempt } = &self.spec;
        let number = |n: Option<i32>, default: u32| n.map_or(default, |n| u32::try_from(n).unwrap_or(0));
        let level = |shares, lendable, borrowing_percent, shape| Level {
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            shares,
            lendable_percent: number(lendable, 0).min(100),
            borrowing_percent,
            shape,
        };
        let is_exempt = self.metadata.name == EXEMPT;
        match (kind.as_str(), limited, exempt) {
            ("Exempt", None, Some(e)) if is_exempt => {
                Some(level(number(e.nominal_concurrency_shares, 0), e.lendable_percent, None, Shape::Exempt))
            }
            ("Limited", Some(l), None) if !is_exempt => {
                let shape = match (l.limit_response.kind.as_str(), &l.limit_response.queuing) {
                    ("Reject", None) => Shape::Reject,
                    ("Queue", Some(q)) => {
                        let (queues, hand) = (usize::try_from(q.queues).ok()?, usize::try_from(q.hand_size).ok()?);
                        let length_max = usize::try_from(q.queue_length_limit).ok()?.min(QUEUE_LENGTH_MAX);
                        let queues = queues.min(QUEUES_MAX);
                        Dealer::new(queues, hand)?;
                        Shape::Queue { queues, hand, length_max }
                    }
                    _ => return None,
                };
                let borrowing = l.borrowing_limit_percent.map(|n| u32::try_from(n).unwrap_or(0));
                Some(level(number(l.nominal_concurrency_shares, 30), l.lendable_percent, borrowing, shape))
            }
            _ => None,
        }
    }
}

/// The fields of a `FlowSchema` that are used here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FlowSchema {
    /// The name and the identity of the object.
    pub metadata: Meta,
    pub(crate) spec: SchemaSpec,
    #[serde(deserialize_with = "null_default")]
    pub(crate) status: SchemaStatus,
}

impl FlowSchema {
    /// Returns the name of the priority level.
    pub(crate) fn level(&self) -> &str {
        &self.spec.priority_level_configuration.name
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SchemaSpec {
    #[serde(deserialize_with = "null_default")]
    pub priority_level_configuration: Reference,
    pub matching_precedence: i32,
    pub distinguisher_method: Option<Distinguisher>,
    #[serde(deserialize_with = "null_default")]
    pub rules: Vec<Rules>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Reference {
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Distinguisher {
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SchemaStatus {
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Rules {
    #[serde(deserialize_with = "null_default")]
    pub subjects: Vec<Subject>,
    #[serde(deserialize_with = "null_default")]
    pub resource_rules: Vec<ResourceRule>,
    #[serde(deserialize_with = "null_default")]
    pub non_resource_rules: Vec<PathRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Subject {
    pub kind: String,
    pub user: Option<Named>,
    pub group: Option<Named>,
    pub service_account: Option<Named>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub name: String,
    pub namespace: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ResourceRule {
    #[serde(deserialize_with = "null_default")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub namespaces: Vec<String>,
    pub cluster_scope: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct PathRule {
    #[serde(deserialize_with = "null_default")]
    pub verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_default")]
    pub urls: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn levels_that_make_no_sense_are_left_out() {
        let queuing = json!({"queues": 8, "handSize": 2, "queueLengthLimit": 5});
        let queue = |queuing| json!({"type": "Queue", "queuing": queuing});
        for (name, spec, good) in [
            ("a", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}), true),
            ("a", json!({"type": "Limited", "limited": {"limitResponse": queue(queuing.clone())}}), true),
            (
                "a",
                json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject", "queuing": queuing}}}),
                false,
            ),
            ("a", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}}), false),
            ("a", json!({"type": "Limited"}), false),
            ("a", json!({"type": "Exempt", "exempt": {}}), false),
            ("exempt", json!({"type": "Exempt", "exempt": {}}), true),
            ("exempt", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}), false),
            (
                "a",
                json!({"type": "Limited", "limited": {"limitResponse": queue(json!({"queues": 2, "handSize": 8}))}}),
                false,
            ),
        ] {
            let object = json!({"metadata": {"name": name}, "spec": spec});
            let level: PriorityLevelConfiguration = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(level.judge().is_some(), good, "{object}");
        }
    }
}
