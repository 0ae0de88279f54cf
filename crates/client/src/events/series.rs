//! Events of `events.k8s.io`: an action, its object, and a related object. Repeated events are a series on the existing
//! event; it is written when it begins, twice an hour while it lasts, and when it has ended (upstream: client-go
//! `tools/events`).
use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::format_micro;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::reference::{EventType, ObjectRef};

/// Series remembered at once.
const REMEMBERED_MAX: usize = 4096;
/// A series without an event for this time has ended; also the interval of the check.
const FINISHED_AFTER: Duration = Duration::from_secs(6 * 60);
/// The interval at which a continuing series is written.
const REFRESHED_EVERY: Duration = Duration::from_secs(30 * 60);

/// The identity of an event: everything except its message and its time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Act {
    pub regarding: ObjectRef,
    pub related: Option<ObjectRef>,
    pub kind: EventType,
    pub reason: String,
    pub action: String,
}

struct Series {
    event: Value,
    /// The number of occurrences.
    count: u64,
    last: Instant,
    last_observed: Timestamp,
    written: Instant,
}

impl Series {
    /// Returns the event to store.
    fn written(&mut self, now: Instant) -> Written {
        self.written = now;
        let mut event = self.event.clone();
        if self.count > 1 {
            event["series"] = json!({"count": self.count, "lastObservedTime": format_micro(self.last_observed)});
        }
        Written { event, is_series: self.count > 1 }
    }
}

/// An event to store.
#[derive(Debug)]
pub(super) struct Written {
    /// All of it.
    pub event: Value,
    /// Whether it is there already, and only its series is new.
    pub is_series: bool,
}

/// The recent events of one recorder.
pub(super) struct Acts {
    component: String,
    instance: String,
    series: HashMap<Act, Series>,
    /// The time of the next check for ended series.
    next: Option<Instant>,
}

impl Acts {
    pub(super) fn new(component: &str, host: &str) -> Self {
        let instance = format!("{component}-{host}");
        Self { component: component.to_owned(), instance, series: HashMap::new(), next: None }
    }

    /// Returns what to write for an action; `None` when it is only counted.
    pub(super) fn take(&mut self, act: Act, note: &str, name: String, at: (Instant, Timestamp)) -> Option<Written> {
        let (now, time) = at;
        if let Some(series) = self.series.get_mut(&act) {
            series.count += 1;
            (series.last, series.last_observed) = (now, time);
            return (series.count == 2).then(|| series.written(now));
        }
        if self.series.len() >= REMEMBERED_MAX {
            self.series.clear();
        }
        let namespace = if act.regarding.namespace.is_empty() { "default" } else { &act.regarding.namespace };
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": format_micro(time), "type": act.kind.word(), "reason": act.reason, "action": act.action, "note": note,
            "regarding": act.regarding, "reportingController": self.component, "reportingInstance": self.instance,
        });
        if let Some(related) = &act.related {
            event["related"] = json!(related);
        }
        let mut series = Series { event, count: 1, last: now, last_observed: time, written: now };
        let written = series.written(now);
        self.series.insert(act, series);
        self.next.get_or_insert(now + FINISHED_AFTER);
        Some(written)
    }

    /// Returns when [`ended`](Self::ended) must be called next; `None` when no series can end.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Returns the last write of series that have ended, and a new one for those that last long.
    pub(super) fn ended(&mut self, now: Instant) -> Vec<Written> {
        let mut out = Vec::new();
        self.series.retain(|_, series| {
            let over = now.duration_since(series.last) >= FINISHED_AFTER;
            let due = over || now.duration_since(series.written) >= REFRESHED_EVERY;
            if due && series.count > 1 {
                out.push(series.written(now));
            }
            !over
        });
        self.next = (!self.series.is_empty()).then_some(now + FINISHED_AFTER);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_happens_again_is_a_series() {
        let mut acts = Acts::new("default-scheduler", "host");
        let regarding =
            ObjectRef { kind: "Pod".into(), name: "p".into(), namespace: "n".into(), ..ObjectRef::default() };
        let (reason, action) = ("FailedScheduling".to_owned(), "Scheduling".to_owned());
        let act = Act { regarding, related: None, kind: EventType::Warning, reason, action };
        let at = || (Instant::now(), Timestamp::UNIX_EPOCH);
        let first = acts.take(act.clone(), "no room", "p.1".into(), at()).unwrap();
        assert!(!first.is_series && first.event["series"].is_null());
        assert_eq!(first.event["reportingInstance"], "default-scheduler-host");
        let second = acts.take(act.clone(), "still no room", "p.2".into(), at()).unwrap();
        let said = |w: &Written| (w.event["metadata"]["name"].clone(), w.event["series"]["count"].clone());
        assert_eq!((said(&second), second.is_series), ((json!("p.1"), json!(2)), true));
        assert!(acts.take(act.clone(), "no room", "p.3".into(), at()).is_none(), "is counted");
        let mut other = act.clone();
        other.regarding.resource_version = "2".into();
        assert!(
            acts.take(other, "no room", "p.4".into(), at()).is_some_and(|w| !w.is_series),
            "of another state of it"
        );
        tokio::time::advance(FINISHED_AFTER).await;
        let last = acts.ended(Instant::now());
        assert_eq!(
            last.iter().map(said).collect::<Vec<_>>(),
            [(json!("p.1"), json!(3))],
            "the last word, where there is one"
        );
        assert_eq!(acts.next(), None);
        assert!(acts.take(act, "no room", "p.5".into(), at()).is_some_and(|w| !w.is_series), "begins anew");
    }
}
