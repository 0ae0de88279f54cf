//! The interface: classifies requests, admits them, follows the objects, and lets levels borrow seats from each other.
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kelson_auth::Attributes;
use kelson_metrics::Registry;
use kelson_tasks::Tasks;
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::allocation::{Want, allocate};
use crate::config::{CATCH_ALL, EXEMPT, FlowSchema, Level, PriorityLevelConfiguration, Shape};
use crate::counters::{Counters, OfSchema};
use crate::level::{Entered, LevelState, Limits, Refused, Seats, Turn};
use crate::objects;
use crate::work::Work;

/// The interval at which the seats are divided between the levels.
const ADJUST_EVERY: Duration = Duration::from_secs(10);

/// Priority and fairness of one server. It matches each request to a flow schema, and admits it to the schema's
/// priority level, where it runs or waits for seats. The configuration follows the API objects. At intervals, the
/// seats are divided between the levels by their recent demand.
pub struct FlowControl {
    state: RwLock<State>,
    /// The number of seats of all levels together.
    seats: u32,
    counters: Counters,
    hasher: RandomState,
    origin: Instant,
    tasks: Tasks,
}

#[derive(Default)]
struct State {
    /// The schemas in matching order: by precedence, then by name.
    schemas: Vec<Arc<SchemaState>>,
    levels: BTreeMap<String, Arc<LevelState>>,
    nominal_sum: u32,
    fair_factor: f64,
}

/// A schema that is in use.
struct SchemaState {
    schema: FlowSchema,
    name: Arc<str>,
    level: Arc<LevelState>,
    level_uid: String,
    counted: Arc<OfSchema>,
}

/// The flow schema that a request was matched to.
#[derive(Clone)]
pub struct Classified(Arc<SchemaState>);

impl Classified {
    /// The value of the response header `X-Kubernetes-PF-FlowSchema-UID`.
    pub fn flow_schema_uid(&self) -> &str {
        &self.0.schema.metadata.uid
    }
    /// The value of the response header `X-Kubernetes-PF-PriorityLevel-UID`.
    pub fn priority_level_uid(&self) -> &str {
        &self.0.level_uid
    }
    /// Returns the maximum number of seats for one request of the level, or `None` for no limit.
    pub fn request_seats_max(&self) -> Option<u32> {
        self.0.level.request_seats_max()
    }
    /// Records how many watches a write affects.
    pub fn observe_watches(&self, watches: u32) {
        self.0.counted.watches.observe(f64::from(watches));
    }
}

/// The outcome of a request's admission to its level.
pub enum Admission {
    /// The request runs while it holds these seats.
    Run(Seats),
    /// The request waits for its turn.
    Wait(Turn),
    /// The level has no free seat and no space in its queues.
    Refused(Refused),
}

/// The condition `Dangling` that a schema should have, if its current one differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dangling {
    /// The name of the schema.
    pub schema: String,
    /// Whether the priority level of the schema does not exist.
    pub dangling: bool,
    /// The reason of the condition for programs.
    pub reason: &'static str,
    /// The message of the condition, which names the priority level.
    pub message: String,
}

impl FlowControl {
    /// Creates a control with the mandatory levels and schemas. All levels share `seats`. The metrics of the levels are
    /// read whenever `registry` is.
    pub fn new(seats: u32, registry: &Registry, tasks: &Tasks) -> Arc<Self> {
        let control = Arc::new(Self {
            state: RwLock::default(),
            seats,
            counters: Counters::new(registry),
            hasher: RandomState::new(),
            origin: Instant::now(),
            tasks: tasks.clone(),
        });
        control.configure(&[], &[]);
        let shown: Weak<Self> = Arc::downgrade(&control);
        registry.on_scrape(move |families| {
            if let Some(control) = shown.upgrade() {
                control.scrape(families);
            }
        });
        control
    }

    /// Classifies a request by the first matching schema, or by the catch-all schema.
    pub fn classify(&self, request: &Attributes<'_>) -> Option<Classified> {
        let state = self.state.read();
        let found = state.schemas.iter().find(|s| s.schema.matches(request));
        let catch_all = || state.schemas.iter().find(|s| &*s.name == CATCH_ALL);
        found.or_else(catch_all).map(|s| Classified(Arc::clone(s)))
    }

    /// Admits a request, or makes it wait. `details` is called only if it waits: user, verb, path, namespace, name,
    /// API version, resource and subresource.
    pub fn start(
        &self,
        class: &Classified,
        request: &Attributes<'_>,
        work: Work,
        details: impl FnOnce() -> [String; 8],
    ) -> Admission {
        let schema = &class.0;
        let flow = schema.schema.distinguisher(request);
        let hash = self.hasher.hash_one((&*schema.name, flow));
        let waiter = || (Arc::clone(&schema.name), flow.into(), details());
        match schema.level.enter(&schema.counted, work, hash, waiter) {
            Entered::Run(seats) => Admission::Run(seats),
            Entered::Wait(turn) => Admission::Wait(turn),
            Entered::Refused(refused) => Admission::Refused(refused),
        }
    }

    /// Applies the stored objects, with defaults for missing mandatory ones. Returns the conditions to write.
    pub fn configure(&self, levels: &[PriorityLevelConfiguration], schemas: &[FlowSchema]) -> Vec<Dangling> {
        let mut state = self.state.write();
        let mut wanted: BTreeMap<String, (Level, bool)> = levels
            .iter()
            .filter_map(PriorityLevelConfiguration::judge)
            .map(|level| (level.name.clone(), (level, false)))
            .collect();
        let dangling = schemas.iter().filter_map(|s| condition(s, wanted.contains_key(s.level()))).collect();
        for name in [EXEMPT, CATCH_ALL] {
            if !wanted.contains_key(name) {
                let level = imagined::<PriorityLevelConfiguration>("prioritylevelconfigurations", name);
                wanted.extend(level.and_then(|l| l.judge()).map(|l| (name.to_owned(), (l, false))));
            }
        }
        // Removed levels keep their share of the seats while they have requests.
        for (name, old) in &state.levels {
            let inner = old.inner.lock();
            if !wanted.contains_key(name) && !inner.queues.is_idle() {
                wanted.insert(name.clone(), (inner.level.clone(), true));
            }
        }
        let shares: u64 = wanted.values().map(|(l, _)| u64::from(l.shares)).sum();
        let known = std::mem::take(&mut state.levels);
        state.nominal_sum = 0;
        for (name, (level, unwanted)) in wanted {
            let old = known.get(&name).cloned();
            let limits = self.limits(&level, shares, old.as_deref());
            state.nominal_sum += limits.nominal;
            let new = || LevelState::new(level.clone(), limits, self.origin, &self.tasks);
            let of_level = old.unwrap_or_else(new);
            of_level.configure(level, limits, unwanted);
            state.levels.insert(name, of_level);
        }
        self.order(&mut state, schemas);
        adjust(&mut state);
        dangling
    }

    fn limits(&self, level: &Level, shares: u64, known: Option<&LevelState>) -> Limits {
        let of_all = u64::from(self.seats) * u64::from(level.shares);
        let nominal = u32::try_from(of_all.div_ceil(shares.max(1))).unwrap_or(self.seats);
        let part = |percent: u32| (f64::from(nominal) * f64::from(percent) / 100.0).round() as u32;
        let lendable = part(level.lendable_percent).min(nominal);
        let borrowing = level.borrowing_percent.map_or(self.seats, part);
        let current = known.map_or(nominal - lendable / 2, |k| k.inner.lock().limits.current);
        Limits { nominal, min: nominal - lendable, max: nominal.saturating_add(borrowing), current }
    }

    /// Sorts the schemas that have a level.
    fn order(&self, state: &mut State, schemas: &[FlowSchema]) {
        let mut all: Vec<FlowSchema> = schemas.to_vec();
        for name in [EXEMPT, CATCH_ALL] {
            if !all.iter().any(|s| s.metadata.name == name) {
                all.extend(imagined::<FlowSchema>("flowschemas", name));
            }
        }
        all.sort_by(|a, b| {
            let by_name = || a.metadata.name.cmp(&b.metadata.name);
            a.spec.matching_precedence.cmp(&b.spec.matching_precedence).then_with(by_name)
        });
        let place = |level: &LevelState, schema: &str| (level.name.clone(), schema.to_owned());
        let old = std::mem::take(&mut state.schemas);
        let mut counted: HashMap<(String, String), Arc<OfSchema>> =
            old.iter().map(|s| (place(&s.level, &s.name), Arc::clone(&s.counted))).collect();
        for schema in all {
            let Some(level) = state.levels.get(schema.level()) else { continue };
            let (unwanted, level_uid) = {
                let inner = level.inner.lock();
                (inner.unwanted, inner.level.uid.clone())
            };
            if unwanted {
                continue;
            }
            let name: Arc<str> = schema.metadata.name.as_str().into();
            let known = counted.remove(&place(level, &name));
            let counted = known.unwrap_or_else(|| Arc::new(self.counters.of(&level.name, &name)));
            let level = Arc::clone(level);
            state.schemas.push(Arc::new(SchemaState { schema, name, level, level_uid, counted }));
        }
        for (level, schema) in counted.into_keys() {
            self.counters.forget(&level, &schema);
        }
    }

    /// Adjusts the seats of all levels at intervals, without end.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(ADJUST_EVERY).await;
            let mut state = self.state.write();
            state.levels.retain(|_, level| {
                let inner = level.inner.lock();
                !(inner.unwanted && inner.queues.is_idle())
            });
            adjust(&mut state);
        }
    }

    /// Returns the factor of the last adjustment.
    pub(crate) fn fair_factor(&self) -> f64 {
        self.state.read().fair_factor
    }

    /// Returns the number of requests that may wait and the number of seats, for all levels that limit requests.
    pub fn capacity(&self) -> (usize, u32) {
        let state = self.state.read();
        let places = state.levels.values().map(|level| level.inner.lock().queues.places()).sum();
        (places, state.nominal_sum)
    }

    /// Returns the levels sorted by name.
    pub(crate) fn levels(&self) -> Vec<Arc<LevelState>> {
        self.state.read().levels.values().cloned().collect()
    }
}

/// Returns a mandatory object without an identity.
fn imagined<T: serde::de::DeserializeOwned>(resource: &str, name: &str) -> Option<T> {
    let wanted = objects::wanted().into_iter().find(|w| w.resource == resource && w.name() == name)?;
    serde_json::from_value(wanted.object).ok()
}

fn condition(schema: &FlowSchema, found: bool) -> Option<Dangling> {
    let (reason, rest) = if found { ("Found", "and it exists") } else { ("NotFound", "but there is no such object") };
    let level = schema.level();
    let message = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {rest}");
    let status = if found { "False" } else { "True" };
    let said = schema.status.conditions.iter().find(|c| c.kind == "Dangling");
    let right = said.is_some_and(|c| c.status == status && c.reason == reason && c.message == message);
    (!right).then(|| Dangling { schema: schema.metadata.name.clone(), dangling: !found, reason, message })
}

/// Divides the seats by the recent demand of the levels. The seats that exempt levels used are subtracted first, since
/// exempt requests are never limited.
fn adjust(state: &mut State) {
    let (mut left, mut shared, mut min_sum, mut least_sum) = (f64::from(state.nominal_sum), Vec::new(), 0.0, 0.0);
    for level in state.levels.values() {
        let (demand, limits, shape) = level.observe();
        if shape == Shape::Exempt {
            let current = limits.min.max(demand.high);
            left -= f64::from(current);
            level.set_current(current, current.into());
            continue;
        }
        let least = f64::from(limits.min.max(limits.nominal.min(demand.high)));
        min_sum += f64::from(limits.min);
        least_sum += least;
        shared.push((level, limits, Want { min: least, max: limits.max.into(), target: least.max(demand.smoothed) }));
    }
    state.fair_factor = 0.0;
    let seats: Vec<f64> = if left <= min_sum {
        shared.iter().map(|(_, limits, _)| limits.min.into()).collect()
    } else if left <= least_sum {
        let part = (left - min_sum) / (least_sum - min_sum);
        let between = |(_, limits, want): &(_, Limits, Want)| {
            let min = f64::from(limits.min);
            min + part * (want.min - min)
        };
        shared.iter().map(between).collect()
    } else {
        let wants: Vec<Want> = shared.iter().map(|(_, _, want)| *want).collect();
        match allocate(left, &wants) {
            Some((seats, factor)) => {
                state.fair_factor = factor;
                seats
            }
            None => shared.iter().map(|(_, limits, _)| limits.current.into()).collect(),
        }
    };
    for ((level, limits, want), seats) in shared.into_iter().zip(seats) {
        // A level with shares has at least one seat.
        let least = u32::from(limits.nominal > 0);
        level.set_current((seats.round() as u32).max(least), want.target);
    }
}

#[cfg(test)]
mod tests;
