//! Correlation of a recorder's events: floods about one object are dropped, many events that differ only in their
//! messages are combined, and repeated ones are counted (upstream: client-go `tools/record/events_cache.go`). Pure
//! except for the time.
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::reference::{EventType, ObjectRef};

/// The maximum number of distinct events that are kept for counting.
const REMEMBERED_MAX: usize = 4096;
/// Events about one object at once, then one per [`REFILL`] (client-go's spam filter).
const BURST: f64 = 25.0;
/// The interval after which one more event about the same object may be sent.
const REFILL: Duration = Duration::from_secs(300);
/// The number of different messages of one reason from which events are combined.
const SIMILAR_MAX: usize = 10;
/// The time without a similar event after which events are no longer combined.
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// The prefix of a combined event's message.
const COMBINED: &str = "(combined from similar events): ";

/// An event as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CoreEvent {
    pub about: ObjectRef,
    pub kind: EventType,
    pub reason: String,
    pub message: String,
}

/// The identity of an event. Without a message it is that of combined events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    about: ObjectRef,
    kind: EventType,
    reason: String,
    message: Option<String>,
}

/// An event that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub namespace: String,
    pub name: String,
    pub count: i64,
}

/// An event to write.
#[derive(Debug)]
pub(super) struct Correlated {
    pub key: EventKey,
    /// The message, which has a prefix for combined events.
    pub message: String,
    /// Whether it combines similar events.
    pub combined: bool,
    /// The stored event to update, if there is one.
    pub before: Option<Recorded>,
}

#[derive(Default)]
struct Similar {
    messages: HashSet<u64>,
    last: Option<Instant>,
}

/// The state of one recorder's events.
#[derive(Default)]
pub(super) struct Correlator {
    hasher: RandomState,
    recorded: HashMap<EventKey, Recorded>,
    similar: HashMap<EventKey, Similar>,
    budgets: HashMap<(ObjectRef, EventType), (f64, Instant)>,
}

impl Correlator {
    /// Returns the event to write, or `None` if the object has too many events.
    pub(super) fn take(&mut self, reported: &CoreEvent, now: Instant) -> Option<Correlated> {
        let mut about = reported.about.clone();
        about.resource_version.clear();
        let mut whole = about.clone();
        whole.field_path.clear();
        let (kind, reason) = (reported.kind, reported.reason.clone());
        let similar = EventKey { about: whole.clone(), kind, reason: reason.clone(), message: None };
        let combined = self.is_combined(&similar, &reported.message, now);
        if !self.is_within_budget((whole, kind), now) {
            return None;
        }
        let (key, message) = match combined {
            true => (similar, format!("{COMBINED}{}", reported.message)),
            false => {
                (EventKey { about, kind, reason, message: Some(reported.message.clone()) }, reported.message.clone())
            }
        };
        let before = self.recorded.get(&key).cloned();
        Some(Correlated { key, message, combined, before })
    }

    /// Records a written event.
    pub(super) fn wrote(&mut self, key: EventKey, recorded: Recorded) {
        if self.recorded.len() >= REMEMBERED_MAX {
            self.recorded.clear();
        }
        self.recorded.insert(key, recorded);
    }

    fn is_combined(&mut self, key: &EventKey, message: &str, now: Instant) -> bool {
        if self.similar.len() >= REMEMBERED_MAX && !self.similar.contains_key(key) {
            self.similar.retain(|_, s| s.last.is_some_and(|at| now.duration_since(at) <= SIMILAR_WITHIN));
        }
        if self.similar.len() >= REMEMBERED_MAX && !self.similar.contains_key(key) {
            self.similar.clear();
        }
        let similar = self.similar.entry(key.clone()).or_default();
        if similar.last.is_some_and(|at| now.duration_since(at) > SIMILAR_WITHIN) {
            similar.messages.clear();
        }
        similar.last = Some(now);
        similar.messages.insert(self.hasher.hash_one(message));
        if similar.messages.len() < SIMILAR_MAX {
            return false;
        }
        // Any message is removed; the next one then counts as the tenth again.
        if let Some(any) = similar.messages.iter().next().copied() {
            similar.messages.remove(&any);
        }
        true
    }

    fn is_within_budget(&mut self, key: (ObjectRef, EventType), now: Instant) -> bool {
        if self.budgets.len() >= REMEMBERED_MAX {
            self.budgets.retain(|_, (_, t)| now.duration_since(*t) < REFILL);
        }
        if self.budgets.len() >= REMEMBERED_MAX {
            self.budgets.clear();
        }
        let (tokens, at) = self.budgets.entry(key).or_insert((BURST, now));
        *tokens = (*tokens + now.duration_since(*at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *at = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(kind: EventType, message: &str) -> CoreEvent {
        let about = ObjectRef { kind: "Pod".into(), name: "p".into(), ..ObjectRef::default() };
        CoreEvent { about, kind, reason: "Why".into(), message: message.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn similar_events_are_one_and_floods_are_dropped() {
        let mut all = Correlator::default();
        let take = |all: &mut Correlator, n: usize| {
            let taken = all.take(&reported(EventType::Warning, &format!("message {n}")), Instant::now());
            taken.map(|t| (t.message, t.combined, t.key))
        };
        for n in 0..SIMILAR_MAX - 1 {
            let (message, combined, _) = take(&mut all, n).unwrap();
            assert_eq!((message.as_str(), combined), (format!("message {n}").as_str(), false));
        }
        let (message, combined, key) = take(&mut all, 10).unwrap();
        assert_eq!((message.as_str(), combined), ("(combined from similar events): message 10", true));
        assert_eq!(take(&mut all, 11).unwrap().2, key, "which is one event, whatever its message");
        for n in 0..14 {
            assert!(take(&mut all, 100 + n).is_some(), "{n} of what may be told at once");
        }
        assert!(take(&mut all, 200).is_none(), "a flood");
        assert!(all.take(&reported(EventType::Normal, "message"), Instant::now()).is_some(), "of this type alone");
        tokio::time::advance(SIMILAR_WITHIN + Duration::from_secs(1)).await;
        assert!(!take(&mut all, 201).unwrap().1, "after a pause each is told by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_is_known_again() {
        let mut all = Correlator::default();
        let mut event = reported(EventType::Normal, "once");
        let first = all.take(&event, Instant::now()).unwrap();
        assert_eq!(first.before, None);
        let recorded = Recorded { namespace: "n".into(), name: "p.1".into(), count: 1 };
        all.wrote(first.key, recorded.clone());
        event.about.resource_version = "7".into();
        assert_eq!(all.take(&event, Instant::now()).unwrap().before, Some(recorded));
        event.about.field_path = "spec.containers{c}".into();
        assert_eq!(all.take(&event, Instant::now()).unwrap().before, None, "another part of the object");
    }
}
