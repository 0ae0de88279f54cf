//! Watches of a part of a resource. The changes of each part that is watched are kept apart, so that a write wakes only the watchers that
//! it concerns, and a watcher reads no other changes. The cost of a write does not grow with the number of watchers of other parts.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::event::Event;
use crate::log::Log;
use crate::record::Record;

/// The part of a resource that a cursor watches. Changes outside it neither wake the cursor nor are returned by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WatchScope {
    /// All records of the resource.
    #[default]
    All,
    /// The records of one namespace.
    Namespace(Box<str>),
    /// The records with one name.
    Name {
        /// The namespace, or empty for all namespaces and for cluster-scoped resources.
        namespace: Box<str>,
        /// The name of the object.
        name: Box<str>,
    },
    /// The records whose selectable field has this value, or had it before the change. A record without the field has the empty value.
    Field {
        /// The name of the field, as in [`crate::FieldNames`].
        name: Box<str>,
        /// The value of the field.
        value: Box<str>,
    },
}

impl WatchScope {
    fn contains(&self, event: &Event) -> bool {
        let key = event.record.key();
        match self {
            Self::All => true,
            Self::Namespace(namespace) => *key.namespace == **namespace,
            Self::Name { namespace, name } => {
                *key.name == **name && (namespace.is_empty() || *key.namespace == **namespace)
            }
            Self::Field { name, value } => {
                let has = |record: &Arc<Record>| field(record, name) == &**value;
                has(&event.record) || event.previous.as_ref().is_some_and(has)
            }
        }
    }
}

/// The value of a record's selectable field; empty if it has none.
pub(crate) fn field<'r>(record: &'r Record, name: &str) -> &'r str {
    record.meta().fields.get(name).unwrap_or("")
}

/// The changes of one scope that are still in the resource's log, and the channel that wakes its watchers.
pub(crate) struct ScopeLog {
    recent: Mutex<ScopeEvents>,
    pub changed: watch::Sender<()>,
}

struct ScopeEvents {
    /// The events in the order of their revisions.
    events: VecDeque<Arc<Event>>,
    /// All changes of the scope after this revision are in `events`.
    floor: u64,
    /// There are changes of which the watchers have not been woken yet.
    is_unannounced: bool,
}

impl ScopeLog {
    fn new(floor: u64, events: VecDeque<Arc<Event>>) -> Arc<Self> {
        let recent = Mutex::new(ScopeEvents { events, floor, is_unannounced: false });
        Arc::new(Self { recent, changed: watch::Sender::new(()) })
    }

    /// The revision from which watches are complete.
    pub fn floor(&self) -> u64 {
        self.recent.lock().floor
    }

    /// Whether there is a change after `revision`.
    pub fn has_after(&self, revision: u64) -> bool {
        self.recent.lock().events.back().is_some_and(|event| event.revision > revision)
    }

    /// Calls `take` with the changes after `revision`, oldest first, until it returns false.
    pub fn after(&self, revision: u64, mut take: impl FnMut(&Arc<Event>) -> bool) {
        let recent = self.recent.lock();
        let from = recent.events.partition_point(|event| event.revision <= revision);
        for event in recent.events.range(from..) {
            if !take(event) {
                break;
            }
        }
    }

    /// Wakes the watchers.
    pub fn announce(&self) {
        self.recent.lock().is_unannounced = false;
        self.changed.send_replace(());
    }

    /// Adds a change. Returns whether the watchers have to be woken, which is true once until they are.
    fn push(&self, event: &Arc<Event>) -> bool {
        let mut recent = self.recent.lock();
        recent.events.push_back(Arc::clone(event));
        !std::mem::replace(&mut recent.is_unannounced, true)
    }

    /// Drops the changes up to one that left the resource's log.
    fn forget(&self, event: &Event) {
        let mut recent = self.recent.lock();
        while recent.events.front().is_some_and(|oldest| oldest.revision <= event.revision) {
            recent.events.pop_front();
        }
        recent.floor = recent.floor.max(event.revision);
        if recent.events.is_empty() {
            recent.events.shrink_to(4);
        }
    }

    fn is_unused(&self) -> bool {
        self.changed.receiver_count() == 0
    }
}

type ByText<T> = HashMap<Box<str>, T>;

/// The logs of all scopes of one resource that are watched.
#[derive(Default)]
pub(crate) struct ScopeLogs {
    namespaces: ByText<Arc<ScopeLog>>,
    /// The logs by namespace and name. The namespace is empty for watchers of all namespaces.
    names: ByText<ByText<Arc<ScopeLog>>>,
    /// The logs by field and value. Few fields of a resource are ever watched.
    fields: Vec<(Box<str>, ByText<Arc<ScopeLog>>)>,
}

impl ScopeLogs {
    /// The log of a scope.
    pub fn get(&self, scope: &WatchScope) -> Option<&Arc<ScopeLog>> {
        match scope {
            WatchScope::All => None,
            WatchScope::Namespace(namespace) => self.namespaces.get(namespace),
            WatchScope::Name { namespace, name } => self.names.get(namespace)?.get(name),
            WatchScope::Field { name, value } => self.fields.iter().find(|(n, _)| n == name)?.1.get(value),
        }
    }

    /// Sees to it that a scope has a log that is complete after `from`. `earlier` are the changes of the scope after `from` up to
    /// the revision `seen`; those after it are taken from the resource's log. Nothing happens for [`WatchScope::All`].
    pub fn open(&mut self, scope: &WatchScope, from: u64, (earlier, seen): (Vec<Arc<Event>>, u64), log: &Log) {
        let (map, key) = match scope {
            WatchScope::All => return,
            WatchScope::Namespace(namespace) => (&mut self.namespaces, namespace),
            WatchScope::Name { namespace, name } => (self.names.entry(namespace.clone()).or_default(), name),
            WatchScope::Field { name, value } => {
                let at = self.fields.iter().position(|(n, _)| n == name).unwrap_or_else(|| {
                    self.fields.push((name.clone(), HashMap::new()));
                    self.fields.len() - 1
                });
                (&mut self.fields[at].1, value)
            }
        };
        let later = log.after(seen).filter(|event| scope.contains(event)).cloned();
        let events = earlier.into_iter().chain(later);
        match map.get(key) {
            Some(found) => {
                let mut recent = found.recent.lock();
                let floor = recent.floor;
                if from < floor {
                    let missing: Vec<_> = events.take_while(|event| event.revision <= floor).collect();
                    for event in missing.into_iter().rev() {
                        recent.events.push_front(event);
                    }
                    recent.floor = from;
                }
            }
            None => drop(map.insert(key.clone(), ScopeLog::new(from, events.collect()))),
        }
    }

    /// Adds a change to the logs of its scopes. Those whose watchers have to be woken are added to `concerned`.
    pub fn push(&mut self, event: &Arc<Event>, concerned: &mut Vec<Arc<ScopeLog>>) {
        self.each(event, |log| {
            if log.push(event) {
                concerned.push(Arc::clone(log));
            }
        });
    }

    /// Drops a change that left the resource's log.
    pub fn forget(&mut self, event: &Event) {
        self.each(event, |log| log.forget(event));
    }

    /// Calls `act` with the log of each scope that contains the change. Logs that nothing reads any more are dropped instead.
    fn each(&mut self, event: &Event, mut act: impl FnMut(&Arc<ScopeLog>)) {
        let key = event.record.key();
        act_on(&mut self.namespaces, &key.namespace, &mut act);
        let namespaces = [&*key.namespace, ""];
        for namespace in &namespaces[..if key.namespace.is_empty() { 1 } else { 2 }] {
            if let Some(names) = self.names.get_mut(*namespace) {
                act_on(names, &key.name, &mut act);
            }
        }
        for (name, values) in &mut self.fields {
            let now = field(&event.record, name);
            act_on(values, now, &mut act);
            if let Some(before) = event.previous.as_ref().map(|record| field(record, name)).filter(|v| *v != now) {
                act_on(values, before, &mut act);
            }
        }
    }

    /// Drops the logs that nothing reads any more.
    pub fn sweep(&mut self) {
        let sweep = |logs: &mut ByText<Arc<ScopeLog>>| logs.retain(|_, log| !log.is_unused());
        sweep(&mut self.namespaces);
        self.names.retain(|_, names| {
            sweep(names);
            !names.is_empty()
        });
        self.fields.retain_mut(|(_, values)| {
            sweep(values);
            !values.is_empty()
        });
    }

    /// Forgets all changes up to `revision`, before which nothing is known.
    pub fn restart_at(&mut self, revision: u64) {
        for log in self.all() {
            let mut recent = log.recent.lock();
            recent.events.clear();
            recent.floor = revision;
        }
    }

    /// Wakes all watchers.
    pub fn announce(&self) {
        self.all().for_each(|log| log.announce());
    }

    fn all(&self) -> impl Iterator<Item = &Arc<ScopeLog>> {
        let names = self.names.values().flat_map(HashMap::values);
        let fields = self.fields.iter().flat_map(|(_, values)| values.values());
        self.namespaces.values().chain(names).chain(fields)
    }
}

fn act_on(logs: &mut ByText<Arc<ScopeLog>>, key: &str, act: &mut impl FnMut(&Arc<ScopeLog>)) {
    match logs.get(key) {
        None => {}
        Some(log) if log.is_unused() => drop(logs.remove(key)),
        Some(log) => act(log),
    }
}

/// The changes of a scope in a resource's log after `from`.
pub(crate) fn changes_after(log: &Log, scope: &WatchScope, from: u64) -> Vec<Arc<Event>> {
    log.after(from).filter(|event| scope.contains(event)).cloned().collect()
}

#[cfg(test)]
#[path = "scope_tests.rs"]
mod tests;
