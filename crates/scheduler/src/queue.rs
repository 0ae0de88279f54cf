//! The scheduling queue: active pods by priority and age, failed pods until their back-off ends, unschedulable pods
//! until a change may let them fit (or five minutes have passed), and gated pods until their gates are removed. It does
//! not know the reasons; the caller passes the time.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::Backoff;
use tokio::time::Instant;

use crate::plugins::table::{PLUGINS_MAX, PluginSet};
use crate::view::Pod;

/// The default back-off of a pod (upstream `podInitialBackoffSeconds`, `podMaxBackoffSeconds`).
pub const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// The default time after which an unschedulable pod is retried without any change.
pub const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(300);

/// Sort key: higher priority first, then the pod that has waited longer.
type ActiveKey = (i64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Active(ActiveKey),
    Backoff { until: Instant, sequence: u64 },
    Unschedulable { since: Instant, sequence: u64 },
    Gated,
    InFlight,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<Pod>,
    failures: u32,
    waited: Waited,
    /// The order of arrival; kept when an attempt fails.
    arrival: u64,
    plugins: PluginSet,
    backoff_until: Instant,
    /// Whether the back-off follows an error instead of a rejection; it is not shortened then.
    faulty: bool,
    /// Whether a change that may let it fit happened while extenders were asked.
    missed: bool,
    place: QueueState,
}

/// The history of a pod before it was placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// The number of scheduling attempts.
    pub attempts: u32,
    /// When it was first ready to be scheduled.
    pub since: Option<Instant>,
    /// Whether the last attempt was made only because the pod had waited for the maximum time.
    pub flushed: bool,
}

/// Events that add pods to the queues, by upstream's names.
mod event {
    pub const ADD: &str = "UnschedulablePodAdd";
    pub const UPDATE: &str = "UnschedulablePodUpdate";
    pub const FAILURE: &str = "ScheduleAttemptFailure";
    pub const BACKOFF_COMPLETE: &str = "BackoffComplete";
    pub const EARLY: &str = "PopFromBackoffQ";
    pub const TIMEOUT: &str = "UnschedulableTimeout";
}

/// The number of pods in each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Pods that the next cycle may take.
    pub active: usize,
    /// Pods in back-off after a failure.
    pub backoff: usize,
    /// Unschedulable pods that wait for a change.
    pub unschedulable: usize,
    pub gated: usize,
}

/// The queue of pods that are not placed.
///
/// A pod is in exactly one list: active (ordered by priority, then arrival), back-off, unschedulable, gated, or in
/// flight after [`Queue::pop`]. The caller passes the time, so tests need no clock. Its size is bounded by the number
/// of pods in the API server.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Arc<str>, Entry>,
    active: BTreeMap<ActiveKey, Arc<str>>,
    backoff: BTreeMap<(Instant, u64), Arc<str>>,
    unschedulable: BTreeMap<(Instant, u64), Arc<str>>,
    gated: usize,
    /// The gated pods that a plugin holds (PreEnqueue), not their gates.
    held: HashSet<Arc<str>>,
    sequence: u64,
    /// Pods in flight that were rejected and about which extenders are being asked.
    asked: HashSet<Arc<str>>,
    /// The number of unschedulable pods by the plugin that rejected them.
    refused_by: [usize; PLUGINS_MAX],
    /// The configured back-off; `None` means [`BACKOFF`].
    pauses: Option<Backoff>,
    /// The configured maximum wait of an unschedulable pod; `None` means [`UNSCHEDULABLE_MAX`].
    longest: Option<Duration>,
    /// The number of pods added, by queue and by event.
    incoming: BTreeMap<(&'static str, &'static str), u64>,
}

impl Queue {
    /// Sets the back-off between attempts.
    pub fn pause_like(&mut self, pauses: Backoff) {
        self.pauses = Some(pauses);
    }

    /// Sets the maximum wait of unschedulable pods.
    pub fn wait_at_most(&mut self, longest: Duration) {
        self.longest = Some(longest);
    }

    fn longest(&self) -> Duration {
        self.longest.unwrap_or(UNSCHEDULABLE_MAX)
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Adds or updates a pending pod. A pod that is `held` is not tried until [`Self::reconsider`].
    pub fn put(&mut self, pod: Arc<Pod>, held: bool, now: Instant) {
        let gated = held || !pod.spec.gates.is_empty();
        let Some(entry) = self.entries.get_mut(&pod.uid) else {
            let arrival = self.next();
            let uid = Arc::clone(&pod.uid);
            let entry = Entry {
                pod,
                failures: 0,
                waited: Waited::default(),
                arrival,
                plugins: PluginSet::default(),
                backoff_until: now,
                faulty: false,
                missed: false,
                place: QueueState::InFlight,
            };
            self.entries.insert(Arc::clone(&uid), entry);
            self.hold(&uid, held);
            self.settle(&uid, now, gated, event::ADD);
            return;
        };
        let changed = !Arc::ptr_eq(&entry.pod.spec, &pod.spec);
        let uid = Arc::clone(&pod.uid);
        entry.pod = pod;
        entry.missed |= changed;
        // A change of the pod itself (labels, tolerations, gates …) is enough to retry it.
        if changed && entry.place != QueueState::InFlight {
            self.detach(&uid);
            self.hold(&uid, held);
            self.settle(&uid, now, gated, event::UPDATE);
        }
    }

    fn hold(&mut self, uid: &Arc<str>, held: bool) {
        if held {
            self.held.insert(Arc::clone(uid));
        } else {
            self.held.remove(uid);
        }
    }

    /// Checks the held pods again (PreEnqueue).
    pub fn reconsider(&mut self, now: Instant, why: &'static str, still_held: impl Fn(&Pod) -> bool) {
        let entries = &self.entries;
        let free = self.held.iter().filter(|uid| entries.get(*uid).is_none_or(|e| !still_held(&e.pod)));
        for uid in free.cloned().collect::<Vec<_>>() {
            self.held.remove(&uid);
            let Some(entry) = self.entries.get(&uid) else { continue };
            let gated = !entry.pod.spec.gates.is_empty();
            if entry.place == QueueState::Gated {
                self.detach(&uid);
                self.settle(&uid, now, gated, why);
            }
        }
    }

    fn came(&mut self, queue: &'static str, why: &'static str) {
        *self.incoming.entry((queue, why)).or_default() += 1;
    }

    /// Moves a detached pod to the list it belongs to.
    fn settle(&mut self, uid: &Arc<str>, now: Instant, gated: bool, why: &'static str) {
        let sequence = self.next();
        let Some(e) = self.entries.get_mut(uid) else { return };
        if !gated {
            e.waited.since.get_or_insert(now);
            e.waited.flushed = why == event::TIMEOUT;
        }
        let (place, queue) = if gated {
            self.gated += 1;
            (QueueState::Gated, "unschedulable")
        } else if e.backoff_until > now {
            self.backoff.insert((e.backoff_until, sequence), Arc::clone(uid));
            (QueueState::Backoff { until: e.backoff_until, sequence }, "backoff")
        } else {
            let key = (-i64::from(e.pod.spec.priority), e.arrival);
            self.active.insert(key, Arc::clone(uid));
            (QueueState::Active(key), "active")
        };
        e.place = place;
        self.came(queue, why);
    }

    /// Removes a pod from its list; it stays known.
    fn detach(&mut self, uid: &str) {
        let Some(e) = self.entries.get_mut(uid) else { return };
        match std::mem::replace(&mut e.place, QueueState::InFlight) {
            QueueState::Active(key) => {
                self.active.remove(&key);
            }
            QueueState::Backoff { until, sequence } => {
                self.backoff.remove(&(until, sequence));
            }
            QueueState::Unschedulable { since, sequence } => {
                self.unschedulable.remove(&(since, sequence));
                for (i, n) in self.refused_by.iter_mut().enumerate() {
                    *n -= usize::from(e.plugins.has(i));
                }
            }
            QueueState::Gated => self.gated -= 1,
            QueueState::InFlight => {}
        }
    }

    /// Removes a pod that was deleted or assigned. Returns its history if it was known.
    pub fn remove(&mut self, uid: &str) -> Option<Waited> {
        self.detach(uid);
        self.held.remove(uid);
        self.asked.remove(uid);
        self.entries.remove(uid).map(|e| e.waited)
    }

    /// Takes the next pod to decide on; it is in flight until it is removed or returned.
    pub fn pop(&mut self, now: Instant) -> Option<Arc<Pod>> {
        self.release(now);
        let uid = match self.active.pop_first() {
            Some((_, uid)) => uid,
            // Nothing else is ready: pods in back-off after a rejection may be taken early.
            None => {
                let early = |uid: &Arc<str>| self.entries.get(uid).is_some_and(|e| !e.faulty);
                let uid = self.backoff.values().find(|uid| early(uid)).cloned()?;
                self.came("active", event::EARLY);
                uid
            }
        };
        self.detach(&uid);
        let e = self.entries.get_mut(&uid)?;
        e.missed = false;
        e.waited.attempts = e.waited.attempts.saturating_add(1);
        Some(Arc::clone(&e.pod))
    }

    fn release(&mut self, now: Instant) {
        while let Some((key, uid)) = self.backoff.first_key_value().filter(|(k, _)| k.0 <= now) {
            let (key, uid) = (*key, Arc::clone(uid));
            self.backoff.remove(&key);
            self.settle(&uid, now, false, event::BACKOFF_COMPLETE);
        }
        let longest = self.longest();
        while let Some((_, uid)) = self.unschedulable.first_key_value().filter(|(k, _)| k.0 + longest <= now) {
            let uid = Arc::clone(uid);
            self.detach(&uid);
            self.settle(&uid, now, false, event::TIMEOUT);
        }
    }

    /// Records that these plugins rejected a pod in flight about which extenders are asked. Until it is returned,
    /// changes that may let it fit are recorded.
    pub fn ask_others(&mut self, uid: &str, plugins: PluginSet) {
        if let Some(e) = self.entries.get_mut(uid) {
            e.plugins = plugins;
            self.asked.insert(Arc::clone(&e.pod.uid));
        }
    }

    /// Ends the question to extenders about a pod in flight.
    pub fn end_asking(&mut self, uid: &str) {
        self.asked.remove(uid);
    }

    fn fail(&mut self, uid: &str, now: Instant, faulty: bool) -> Option<&mut Entry> {
        self.asked.remove(uid);
        let pauses = self.pauses.unwrap_or(BACKOFF);
        let e = self.entries.get_mut(uid).filter(|e| e.place == QueueState::InFlight)?;
        e.backoff_until = now + pauses.delay(e.failures);
        e.failures = e.failures.saturating_add(1);
        e.faulty = faulty;
        Some(e)
    }

    /// Returns a pod that these plugins rejected: it waits for a change that may let it fit.
    pub fn refuse(&mut self, uid: &str, plugins: PluginSet, now: Instant) {
        let sequence = self.next();
        let Some(e) = self.fail(uid, now, false) else { return };
        e.plugins = plugins;
        let uid = Arc::clone(&e.pod.uid);
        if e.missed {
            let gated = !e.pod.spec.gates.is_empty();
            return self.settle(&uid, now, gated, event::FAILURE);
        }
        e.place = QueueState::Unschedulable { since: now, sequence };
        self.unschedulable.insert((now, sequence), uid);
        self.came("unschedulable", event::FAILURE);
        for (i, n) in self.refused_by.iter_mut().enumerate() {
            *n += usize::from(plugins.has(i));
        }
    }

    /// Returns a pod after an error: it is retried after its back-off.
    pub fn fault(&mut self, uid: &str, now: Instant) {
        if let Some(e) = self.fail(uid, now, true) {
            let (uid, gated) = (Arc::clone(&e.pod.uid), !e.pod.spec.gates.is_empty());
            self.settle(&uid, now, gated, event::FAILURE);
        }
    }

    /// Reports whether any unschedulable pod was rejected by one of these plugins.
    pub fn any_refused_by(&self, plugins: PluginSet) -> bool {
        !self.asked.is_empty() || plugins.rows().any(|row| self.refused_by[row] > 0)
    }

    /// Reports whether there are unschedulable pods.
    pub fn any_unschedulable(&self) -> bool {
        !self.unschedulable.is_empty() || !self.asked.is_empty()
    }

    /// Requeues the unschedulable pods for which `may_fit` is true. It is called once for pods of one spec.
    pub fn requeue(&mut self, now: Instant, why: &'static str, mut may_fit: impl FnMut(&Pod, PluginSet) -> bool) {
        let mut last: Option<(*const crate::view::PodSpec, PluginSet, bool)> = None;
        let mut back = Vec::new();
        for uid in self.unschedulable.values() {
            let Some(e) = self.entries.get(uid) else { continue };
            let at = Arc::as_ptr(&e.pod.spec);
            let yes = match last {
                Some((spec, plugins, yes)) if spec == at && plugins == e.plugins => yes,
                _ => may_fit(&e.pod, e.plugins),
            };
            last = Some((at, e.plugins, yes));
            if yes {
                back.push(Arc::clone(uid));
            }
        }
        for uid in &self.asked {
            if let Some(e) = self.entries.get_mut(uid) {
                e.missed = e.missed || may_fit(&e.pod, e.plugins);
            }
        }
        for uid in back {
            self.detach(&uid);
            self.settle(&uid, now, false, why);
        }
    }

    /// Requeues an unschedulable pod, whichever plugin rejected it.
    pub fn wake(&mut self, uid: &str, why: &'static str, now: Instant) {
        if let Some(e) = self.entries.get_mut(uid).filter(|_| self.asked.contains(uid)) {
            e.missed = true;
        }
        let waits = |e: &&Entry| matches!(e.place, QueueState::Unschedulable { .. });
        if let Some(e) = self.entries.get(uid).filter(waits) {
            let uid = Arc::clone(&e.pod.uid);
            self.detach(&uid);
            self.settle(&uid, now, false, why);
        }
    }

    /// Returns the number of pods added to each queue, by event.
    pub fn incoming(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.incoming.iter().map(|((queue, why), n)| (*queue, *why, *n))
    }

    /// Returns the unschedulable pods with the plugins that rejected them last.
    pub fn refused(&self) -> impl Iterator<Item = (&Pod, PluginSet)> {
        let waits = |e: &&Entry| e.place != QueueState::InFlight && !e.plugins.is_empty();
        self.entries.values().filter(waits).map(|e| (&*e.pod, e.plugins))
    }

    /// Returns the time at which a pod becomes ready without a change.
    pub fn due(&self) -> Option<Instant> {
        let backoff = self.backoff.first_key_value().map(|(k, _)| k.0);
        let unschedulable = self.unschedulable.first_key_value().map(|(k, _)| k.0 + self.longest());
        backoff.into_iter().chain(unschedulable).min()
    }

    /// Returns the newest version of a pod that waits or is in flight.
    pub fn get(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.entries.get(uid).map(|e| &e.pod)
    }

    /// Returns the number of pods in each queue.
    pub fn depth(&self) -> Depth {
        Depth {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: self.unschedulable.len(),
            gated: self.gated,
        }
    }
}
