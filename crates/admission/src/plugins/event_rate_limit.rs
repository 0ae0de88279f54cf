//! EventRateLimit: limits the rate of events for the server, a namespace, a user, or the event's source and object
//! (`eventratelimit.admission.k8s.io/v1alpha1`). Each limit is a token bucket.
use kelson_codec::strict::{Fields, Shape};
use kelson_meta::tree::path::{at, list, text};
use kelson_meta::{FieldErrors, FieldPath, Reason, Status};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::lru::Lru;
use crate::configuration::Part;
use crate::containers::aggregate;
use crate::{Attributes, Notes, Operation, Operations, Plugin};

/// The default number of buckets of one limit.
const BUCKETS: usize = 4096;
/// The maximum number of buckets that a configuration may set.
const BUCKETS_MAX: i64 = 1 << 20;

/// The plugin; see the module.
pub struct EventRateLimit {
    limits: Vec<Limit>,
}

/// The scope of a bucket of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

impl Of {
    const ALL: [Self; 4] = [Self::Namespace, Self::Server, Self::SourceAndObject, Self::User];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "Server",
            Self::Namespace => "Namespace",
            Self::User => "User",
            Self::SourceAndObject => "SourceAndObject",
        }
    }
    fn key(self, a: &Attributes<'_>) -> String {
        match self {
            Self::Server => String::new(),
            Self::Namespace => a.namespace.to_owned(),
            Self::User => a.user.name.clone(),
            Self::SourceAndObject => {
                let event = a.new_object();
                // The newer version of events has the same fields under other names.
                let source = if at(event, &["source"]).is_object() { "source" } else { "deprecatedSource" };
                let about = if at(event, &["involvedObject"]).is_object() { "involvedObject" } else { "regarding" };
                let of_source = ["component", "host"].map(|f| text(event, &[source, f]));
                let of_object = ["kind", "namespace", "name", "uid", "apiVersion"].map(|f| text(event, &[about, f]));
                [&of_source[..], &of_object[..]].concat().concat()
            }
        }
    }
}

struct Limit {
    of: Of,
    per_second: f64,
    burst: f64,
    buckets: Mutex<Lru<Bucket>>,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Limit {
    /// Takes a token, if there is one.
    fn takes(&self, key: &str) -> bool {
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        let Some(bucket) = buckets.get(key) else {
            buckets.insert(key, Bucket { tokens: self.burst - 1.0, filled: now });
            return true;
        };
        let filled = bucket.tokens + now.duration_since(bucket.filled).as_secs_f64() * self.per_second;
        bucket.tokens = filled.min(self.burst);
        bucket.filled = now;
        let has_one = bucket.tokens >= 1.0;
        if has_one {
            bucket.tokens -= 1.0;
        }
        has_one
    }

    fn read(limit: &Value, path: &FieldPath, faults: &mut FieldErrors) -> Option<Self> {
        let kind = text(limit, &["type"]);
        let of = Of::ALL.into_iter().find(|of| of.as_str() == kind);
        if of.is_none() {
            faults.not_supported(&path.child("type"), kind, &Of::ALL.map(Of::as_str));
        }
        let mut positive = |field: &str| {
            let value = at(limit, &[field]).as_i64().unwrap_or(0);
            if value <= 0 || value > i64::from(i32::MAX) {
                faults.invalid(&path.child(field), value, "must be positive");
            }
            i32::try_from(value).ok().filter(|v| *v > 0).map(f64::from)
        };
        let (burst, per_second) = (positive("burst"), positive("qps"));
        let given = at(limit, &["cacheSize"]).as_i64().unwrap_or(0);
        if given < 0 && of != Some(Of::Server) {
            faults.invalid(&path.child("cacheSize"), given, "must not be negative");
        }
        let buckets = if given > 0 { usize::try_from(given.min(BUCKETS_MAX)).unwrap_or(BUCKETS) } else { BUCKETS };
        let buckets = if of == Some(Of::Server) { 1 } else { buckets };
        Some(Self { of: of?, per_second: per_second?, burst: burst?, buckets: Mutex::new(Lru::new(buckets)) })
    }
}

const FIELDS: Fields = &[(
    "limits",
    Shape::List(&Shape::Object(&[
        ("type", Shape::Text),
        ("qps", Shape::Number),
        ("burst", Shape::Number),
        ("cacheSize", Shape::Number),
    ])),
)];

impl EventRateLimit {
    /// Creates the plugin from its section of the configuration, which is required.
    ///
    /// # Errors
    /// The section is invalid.
    pub fn new(configuration: &Value) -> Result<Self, String> {
        Part { group: "eventratelimit.admission.k8s.io", versions: &["v1alpha1"], kinds: &["Configuration"] }
            .check(configuration, FIELDS)?;
        let mut faults = FieldErrors::new();
        let path = FieldPath::new("limits");
        let given = list(configuration, &["limits"]);
        if given.is_empty() {
            faults.invalid(&path, at(configuration, &["limits"]), "must not be empty");
        }
        let mut limits = Vec::new();
        for (i, limit) in given.iter().enumerate() {
            limits.extend(Limit::read(limit, &path.index(i), &mut faults));
        }
        if faults.is_empty() { Ok(Self { limits }) } else { Err(faults.to_string()) }
    }
}

impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let event = a.resource.resource == "events" && matches!(a.resource.group.as_str(), "" | "events.k8s.io");
        if !event || a.dry_run {
            return Ok(());
        }
        // Every limit is evaluated, so that a rejection by one still takes a token of the others.
        let reached: Vec<String> = self
            .limits
            .iter()
            .filter_map(|limit| {
                let key = limit.of.key(a);
                let full = !limit.takes(&key);
                full.then(|| format!("limit reached on type {} for key {key}", limit.of.as_str()))
            })
            .collect();
        if reached.is_empty() {
            return Ok(());
        }
        Err(Status::failure(429, Reason::TooManyRequests, format!("Too many requests: {}", aggregate(&reached))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ask;
    use serde_json::json;
    use std::time::Duration;

    fn plugin(limits: Value) -> EventRateLimit {
        EventRateLimit::new(&json!({"kind": "Configuration", "limits": limits})).unwrap()
    }

    /// Sends an event about a pod of this name from a namespace.
    fn send(plugin: &EventRateLimit, namespace: &str, pod: &str, user: &str) -> Result<(), String> {
        let event =
            json!({"kind": "Event", "source": {"component": "k"}, "involvedObject": {"kind": "Pod", "name": pod}});
        let ask = Ask::create("/events", event).named(namespace, "e").by(user, "g");
        ask.with(|a| plugin.validate(a, &mut Notes::default())).map_err(|s| format!("{} {}", s.code, s.message))
    }

    #[tokio::test(start_paused = true)]
    async fn buckets_fill_with_time() {
        let server = plugin(json!([{"type": "Server", "qps": 2, "burst": 3}]));
        let accepted = |n: usize| (0..n).filter(|_| send(&server, "a", "p", "u").is_ok()).count();
        assert_eq!(accepted(5), 3);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(accepted(5), 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(accepted(5), 3, "never more than the burst");
        assert_eq!(
            send(&server, "a", "p", "u").unwrap_err(),
            "429 Too many requests: limit reached on type Server for key "
        );
        let pod = Ask::pod(json!({}));
        assert!(pod.with(|a| server.validate(a, &mut Notes::default())).is_ok(), "no event");
    }

    #[tokio::test(start_paused = true)]
    async fn each_has_a_separate_bucket() {
        let one = |kind: &str| plugin(json!([{"type": kind, "qps": 1, "burst": 1}]));
        for (kind, again, refused) in [
            ("Namespace", ("b", "p", "u"), "limit reached on type Namespace for key a"),
            ("User", ("a", "p", "v"), "limit reached on type User for key u"),
            ("SourceAndObject", ("a", "q", "u"), "limit reached on type SourceAndObject for key kPodp"),
        ] {
            let plugin = one(kind);
            send(&plugin, "a", "p", "u").unwrap();
            send(&plugin, again.0, again.1, again.2).unwrap();
            assert!(send(&plugin, "a", "p", "u").unwrap_err().ends_with(refused));
        }
        let both = plugin(json!([{"type": "User", "qps": 1, "burst": 1}, {"type": "Namespace", "qps": 1, "burst": 1}]));
        send(&both, "a", "p", "u").unwrap();
        assert_eq!(
            send(&both, "a", "p", "u").unwrap_err(),
            "429 Too many requests: [limit reached on type User for key u, limit reached on type Namespace for key a]"
        );
        let small = plugin(json!([{"type": "User", "qps": 1, "burst": 1, "cacheSize": 1}]));
        send(&small, "a", "p", "u").unwrap();
        send(&small, "a", "p", "v").unwrap();
        send(&small, "a", "p", "u").unwrap();
    }

    #[test]
    fn configurations() {
        for (configuration, want) in [
            (Value::Null, "limits: Invalid value: null: must not be empty"),
            (json!({"limits": [{"type": "X", "qps": 1, "burst": 1}]}), "limits[0].type: Unsupported value: \"X\""),
            (json!({"limits": [{"type": "User", "burst": 1}]}), "limits[0].qps: Invalid value: 0: must be positive"),
            (json!({"limits": [{"type": "User", "qps": 1, "burst": -1}]}), "limits[0].burst: Invalid value: -1"),
            (json!({"limits": [{"type": "User", "qps": 1, "burst": 1, "cacheSize": -1}]}), "must not be negative"),
            (json!({"limits": [{"type": "User", "rate": 1}]}), "unknown field \"limits[0].rate\""),
            (json!({"kind": "Config", "limits": []}), "unexpected kind \"Config\""),
        ] {
            let why = EventRateLimit::new(&configuration).err().unwrap();
            assert!(why.contains(want), "{why}");
        }
    }
}
