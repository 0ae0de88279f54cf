//! Priority and fairness: joins `kelson-flowcontrol` with what it must know of a request and of the store.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use kelson_flowcontrol::{Admission, Classified, FlowControl, ListWork, Seats, Utilization, Work};
use kelson_metrics::{Families, Registry};
use kelson_store::{Resource, Store};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::request::body::RETRY_AFTER_S;
use crate::request::routes::Route;
use crate::shared::flow::{Admittance, Busy, Decision, Flow, FlowRequest, Permit};
use crate::shared::watches::Watches;

/// Objects that are looked at to know how large those of a resource are.
const SAMPLES: usize = 16;
/// The longest wait for a turn.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How many requests wait, or run, and which part that is of those that may, over time.
struct Kind {
    labels: [(&'static str, &'static str); 2],
    requests: AtomicUsize,
    over_time: Mutex<Utilization>,
}

impl Kind {
    fn new(phase: &'static str, kind: &'static str) -> Self {
        let over_time = Mutex::new(Utilization::of_kinds(Duration::ZERO));
        Self { labels: [("phase", phase), ("request_kind", kind)], requests: AtomicUsize::new(0), over_time }
    }

    /// One more, or one less.
    fn step(&self, since: Instant, more: bool) {
        // Counted under the lock, so that what is shown goes the way of the count.
        let mut over_time = self.over_time.lock();
        let before = self.requests.load(Ordering::Relaxed);
        let now = if more { before + 1 } else { before.saturating_sub(1) };
        self.requests.store(now, Ordering::Relaxed);
        over_time.set(since.elapsed(), now as f64);
    }
}

/// Requests under way, by what they do and whether they wait.
struct UnderWay {
    since: Instant,
    /// Waiting and running reads, waiting and running writes.
    kinds: [Kind; 4],
}

impl UnderWay {
    fn new() -> Self {
        let kinds =
            [("waiting", "readOnly"), ("executing", "readOnly"), ("waiting", "mutating"), ("executing", "mutating")];
        Self { since: Instant::now(), kinds: kinds.map(|(phase, kind)| Kind::new(phase, kind)) }
    }

    fn count(self: &Arc<Self>, read: bool, runs: bool) -> CountedRequest {
        let kind = if read { 0 } else { 2 } + usize::from(runs);
        self.kinds[kind].step(self.since, true);
        CountedRequest { under_way: Arc::clone(self), kind }
    }

    fn running(&self) -> (usize, usize) {
        (self.kinds[1].requests.load(Ordering::Relaxed), self.kinds[3].requests.load(Ordering::Relaxed))
    }

    fn scrape(&self, capacity: (usize, u32), families: &mut Families) {
        let help = "Requests that wait or run, as a part of those that may, for each nanosecond.";
        let mut family = families.histogram("apiserver_flowcontrol_read_vs_write_current_requests", help);
        for (at, kind) in self.kinds.iter().enumerate() {
            let (mut over_time, now) = (kind.over_time.lock(), self.since.elapsed());
            let whole = if at % 2 == 0 { capacity.0 as f64 } else { capacity.1.into() };
            over_time.of(now, whole);
            over_time.show(now, &mut family, &kind.labels);
        }
    }
}

/// One request under way.
struct CountedRequest {
    under_way: Arc<UnderWay>,
    kind: usize,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.under_way.kinds[self.kind].step(self.under_way.since, false);
    }
}

/// Sorts requests by flow schemas, and lets them wait for seats of their priority level.
pub struct Fairness {
    control: Arc<FlowControl>,
    store: Store,
    watches: Arc<Watches>,
    wait_max: Duration,
    under_way: Arc<UnderWay>,
}

impl Fairness {
    /// Requests wait for a quarter of the time that they may take in all. How many wait and run is read whenever `registry` is.
    pub fn new(
        control: Arc<FlowControl>,
        store: Store,
        watches: Arc<Watches>,
        request_timeout: Duration,
        registry: &Registry,
    ) -> Self {
        let wait_max = (request_timeout / 4).min(WAIT_MAX);
        let under_way = Arc::new(UnderWay::new());
        let (shown, levels) = (Arc::clone(&under_way), Arc::downgrade(&control));
        registry.on_scrape(move |families| {
            if let Some(control) = levels.upgrade() {
                shown.scrape(control.capacity(), families);
            }
        });
        Self { control, store, watches, wait_max, under_way }
    }

    fn work(&self, request: &FlowRequest<'_>, class: &Classified) -> Work {
        let info = request.info;
        let Some(Route::Stored(served)) = request.route else { return Work::ONE };
        match info.verb {
            "list" => self.list_work(request, class, served.store),
            "watch" => {
                let version = request.query.text("resourceVersion");
                let from_state = matches!(version, "" | "0") || request.query.flag("sendInitialEvents");
                if from_state { self.list_work(request, class, served.store) } else { Work::ONE }
            }
            "create" | "update" | "patch" | "delete" if served.options().stored && info.subresource != "token" => {
                let watches = self.watches.of(served.store, &info.namespace, &info.name);
                class.observe_watches(watches);
                Work::of_write(watches, class.request_seats_max())
            }
            _ => Work::ONE,
        }
    }

    fn list_work(&self, request: &FlowRequest<'_>, class: &Classified, resource: Resource) -> Work {
        let (objects, object_bytes) = self.sizes(resource);
        let list = ListWork {
            objects,
            object_bytes,
            limit: request.query.text("limit").parse().unwrap_or(0),
            single: !request.info.name.is_empty(),
            streamed: true,
        };
        Work::of_list(&list, class.request_seats_max())
    }

    /// How many objects there are of a resource, and how large they are about.
    fn sizes(&self, resource: Resource) -> (u64, u64) {
        let view = self.store.list(resource, None, None, None);
        let count = view.len();
        let step = (count / SAMPLES).max(1);
        let samples = (0..count).step_by(step).take(SAMPLES).filter_map(|at| view.iter_from(at).next());
        let (n, bytes) = samples.fold((0u64, 0u64), |(n, bytes), record| (n + 1, bytes + record.bytes().len() as u64));
        (count as u64, bytes / n.max(1))
    }
}

/// What a flow waits with, for people who look.
fn details(request: &FlowRequest<'_>) -> [String; 8] {
    let i = request.info;
    let version = if i.group.is_empty() { i.version.clone() } else { format!("{}/{}", i.group, i.version) };
    [
        request.user.name.clone(),
        i.verb.to_owned(),
        request.path.to_owned(),
        i.namespace.clone(),
        i.name.clone(),
        version,
        i.resource.clone(),
        i.subresource.clone(),
    ]
}

impl Flow for Fairness {
    fn admit(&self, request: &FlowRequest<'_>) -> Admittance {
        let attributes = request.attributes();
        let Some(class) = self.control.classify(&attributes) else {
            return Admittance { decision: Decision::Run(Permit::uncounted()), sorted: None };
        };
        let header = |uid: &str| HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""));
        let sorted = Some([header(class.flow_schema_uid()), header(class.priority_level_uid())]);
        let work = self.work(request, &class);
        let watch = request.info.verb == "watch";
        let seated = move |seats: Seats| if watch { seats.of_watch() } else { seats };
        let busy = |after: u64| Busy { retry_after_s: i32::try_from(after).unwrap_or(RETRY_AFTER_S) };
        let decision = match self.control.start(&class, &attributes, work, || details(request)) {
            Admission::Run(seats) => {
                Decision::Run(Permit::holding((seated(seats), self.under_way.count(request.read, true))))
            }
            Admission::Refused(refused) => Decision::Full(busy(refused.retry_after_s)),
            Admission::Wait(turn) => {
                let until = Instant::now() + self.wait_max;
                let (under_way, read) = (Arc::clone(&self.under_way), request.read);
                let waits = under_way.count(read, false);
                Decision::Wait(Box::pin(async move {
                    let seats = turn.come(until).await.map_err(|refused| busy(refused.retry_after_s))?;
                    drop(waits);
                    Ok(Permit::holding((seated(seats), under_way.count(read, true))))
                }))
            }
        };
        Admittance { decision, sorted }
    }

    fn under_way(&self) -> (usize, usize) {
        self.under_way.running()
    }
}
