//! Priority and fairness: connects `kelson-flowcontrol` with the request and the store.
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

/// Objects that are sampled to estimate the size of a resource's objects.
const SAMPLES: usize = 16;
/// Longest wait for a seat.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The number of requests that wait or run, and their share of the capacity over time.
struct RequestCount {
    labels: [(&'static str, &'static str); 2],
    requests: AtomicUsize,
    over_time: Mutex<Utilization>,
}

impl RequestCount {
    fn new(phase: &'static str, kind: &'static str) -> Self {
        let over_time = Mutex::new(Utilization::of_kinds(Duration::ZERO));
        Self { labels: [("phase", phase), ("request_kind", kind)], requests: AtomicUsize::new(0), over_time }
    }

    /// Adds or removes one request.
    fn change_by_one(&self, since: Instant, more: bool) {
        // Counted under the lock, so that the metric follows the count in order.
        let mut over_time = self.over_time.lock();
        let before = self.requests.load(Ordering::Relaxed);
        let now = if more { before + 1 } else { before.saturating_sub(1) };
        self.requests.store(now, Ordering::Relaxed);
        over_time.set(since.elapsed(), now as f64);
    }
}

/// Requests in progress by kind and phase.
struct RequestCounts {
    since: Instant,
    /// Waiting and executing reads, then waiting and executing writes.
    kinds: [RequestCount; 4],
}

impl RequestCounts {
    fn new() -> Self {
        let kinds =
            [("waiting", "readOnly"), ("executing", "readOnly"), ("waiting", "mutating"), ("executing", "mutating")];
        Self { since: Instant::now(), kinds: kinds.map(|(phase, kind)| RequestCount::new(phase, kind)) }
    }

    fn count(self: &Arc<Self>, read: bool, runs: bool) -> CountedRequest {
        let kind = if read { 0 } else { 2 } + usize::from(runs);
        self.kinds[kind].change_by_one(self.since, true);
        CountedRequest { in_flight: Arc::clone(self), kind }
    }

    fn running(&self) -> (usize, usize) {
        (self.kinds[1].requests.load(Ordering::Relaxed), self.kinds[3].requests.load(Ordering::Relaxed))
    }

    fn scrape(&self, capacity: (usize, u32), families: &mut Families) {
        let help = "Requests that wait or execute, as a fraction of the capacity, observed for each nanosecond.";
        let mut family = families.histogram("apiserver_flowcontrol_read_vs_write_current_requests", help);
        for (at, kind) in self.kinds.iter().enumerate() {
            let (mut over_time, now) = (kind.over_time.lock(), self.since.elapsed());
            let whole = if at % 2 == 0 { capacity.0 as f64 } else { capacity.1.into() };
            over_time.of(now, whole);
            over_time.show(now, &mut family, &kind.labels);
        }
    }
}

/// One counted request in progress.
struct CountedRequest {
    in_flight: Arc<RequestCounts>,
    kind: usize,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.in_flight.kinds[self.kind].change_by_one(self.in_flight.since, false);
    }
}

/// Classifies requests by flow schemas, and queues them for seats of their priority level. It estimates the work of a request: lists
/// take seats by the number and size of their objects, writes by the number of watchers.
pub struct Fairness {
    control: Arc<FlowControl>,
    store: Store,
    watches: Arc<Watches>,
    wait_max: Duration,
    in_flight: Arc<RequestCounts>,
}

impl Fairness {
    /// A request waits for at most a quarter of `request_timeout`. `registry` shows the numbers of waiting and executing requests.
    pub fn new(
        control: Arc<FlowControl>,
        store: Store,
        watches: Arc<Watches>,
        request_timeout: Duration,
        registry: &Registry,
    ) -> Self {
        let wait_max = (request_timeout / 4).min(WAIT_MAX);
        let in_flight = Arc::new(RequestCounts::new());
        let (shown, levels) = (Arc::clone(&in_flight), Arc::downgrade(&control));
        registry.on_scrape(move |families| {
            if let Some(control) = levels.upgrade() {
                shown.scrape(control.capacity(), families);
            }
        });
        Self { control, store, watches, wait_max, in_flight }
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
                let watches = self.watches.count(served.store, &info.namespace, &info.name);
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

    /// The number of objects of a resource, and their estimated average size in bytes.
    fn sizes(&self, resource: Resource) -> (u64, u64) {
        let view = self.store.list(resource, None, None, None);
        let count = view.len();
        let step = (count / SAMPLES).max(1);
        let samples = (0..count).step_by(step).take(SAMPLES).filter_map(|at| view.iter_from(at).next());
        let (n, bytes) = samples.fold((0u64, 0u64), |(n, bytes), record| (n + 1, bytes + record.bytes().len() as u64));
        (count as u64, bytes / n.max(1))
    }
}

/// Details of a waiting request for the debug endpoints.
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
            return Admittance { decision: Decision::Run(Permit::uncounted()), classification: None };
        };
        let header = |uid: &str| HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""));
        let classification = Some([header(class.flow_schema_uid()), header(class.priority_level_uid())]);
        let work = self.work(request, &class);
        let watch = request.info.verb == "watch";
        let seated = move |seats: Seats| if watch { seats.of_watch() } else { seats };
        let busy = |after: u64| Busy { retry_after_s: i32::try_from(after).unwrap_or(RETRY_AFTER_S) };
        let decision = match self.control.start(&class, &attributes, work, || details(request)) {
            Admission::Run(seats) => {
                Decision::Run(Permit::hold((seated(seats), self.in_flight.count(request.read, true))))
            }
            Admission::Refused(refused) => Decision::Full(busy(refused.retry_after_s)),
            Admission::Wait(turn) => {
                let until = Instant::now() + self.wait_max;
                let (in_flight, read) = (Arc::clone(&self.in_flight), request.read);
                let waits = in_flight.count(read, false);
                Decision::Wait(Box::pin(async move {
                    let seats = turn.come(until).await.map_err(|refused| busy(refused.retry_after_s))?;
                    drop(waits);
                    Ok(Permit::hold((seated(seats), in_flight.count(read, true))))
                }))
            }
        };
        Admittance { decision, classification }
    }

    fn in_flight(&self) -> (usize, usize) {
        self.in_flight.running()
    }
}
