//! Requests that fail as with a real network and a busy server: at a rate and by a seed, or exactly where a test wants
//! it.
mod cut;
mod rates;
mod repeat;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kelson_transport::{BoxFuture, Request, Response, TakesObjects, Transport, TransportError, full_body};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::sync::oneshot;

pub use self::rates::{Failure, Rates};
use crate::Trace;

/// The number of requests of one component in one second of the paused clock that counts as a loop without pauses.
const FLOOD: u32 = 500;
/// The time for which each further request of such a component waits, so that time passes and the test can report it.
const FLOOD_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of recorded writes.
const WRITES_MAX: usize = 20_000;

struct FaultState {
    rng: StdRng,
    rates: Rates,
    plans: Vec<Plan>,
    writes: VecDeque<String>,
    requests: usize,
    second: u64,
    in_second: BTreeMap<Arc<str>, u32>,
    flood: Option<String>,
}

/// A failure planned for one request.
struct Plan {
    fits: Fits,
    left: usize,
    failure: Failure,
    happened: Option<oneshot::Sender<()>>,
}

/// Whether a failure applies to this request: its sender, method, path and query.
type Fits = Box<dyn Fn(&str, &Method, &str) -> bool + Send>;

/// Decides which requests fail and records requests; cheap to clone, all clones share their state.
#[derive(Clone)]
pub struct Faults {
    state: Arc<Mutex<FaultState>>,
    trace: Trace,
}

impl Faults {
    /// Creates it without faults. The result of each request is recorded in `trace`.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let state = FaultState {
            rng: StdRng::seed_from_u64(seed),
            rates: Rates::default(),
            plans: Vec::new(),
            writes: VecDeque::new(),
            requests: 0,
            second: 0,
            in_second: BTreeMap::new(),
            flood: None,
        };
        Self { state: Arc::new(Mutex::new(state)), trace }
    }

    /// Sets the rates of faults from now on; the default ends them.
    pub fn set(&self, rates: Rates) {
        self.state.lock().rates = rates;
    }

    /// Makes the `n`th request from now on (1: the next) with this method, whose path and query contain `part`, fail.
    /// Both may be empty, which matches any.
    pub fn fail_nth(&self, n: usize, method: &str, part: &str, failure: Failure) {
        let (method, part) = (method.to_owned(), part.to_owned());
        let fits =
            move |_: &str, m: &Method, uri: &str| (method.is_empty() || method == m.as_str()) && uri.contains(&part);
        drop(self.plan(n, Box::new(fits), failure));
    }

    /// Makes the `n`th write from now on (1: the next), as counted by [`writes`](Self::writes), fail.
    pub fn fail_write(&self, n: usize, failure: Failure) {
        drop(self.plan(n, Box::new(|_, method, uri| is_write(method, uri)), failure));
    }

    /// Executes the `n`th write from now on of a component whose name `who` accepts, without ever answering it. The
    /// receiver is notified then, so that the component can be killed in the middle of its work.
    pub fn silence(&self, n: usize, who: impl Fn(&str) -> bool + Send + 'static) -> oneshot::Receiver<()> {
        self.plan(n, Box::new(move |w, method, uri| who(w) && is_write(method, uri)), Failure::Silence)
    }

    /// Removes planned failures that have not happened.
    pub fn forget_plans(&self) {
        self.state.lock().plans.clear();
    }

    fn plan(&self, n: usize, fits: Fits, failure: Failure) -> oneshot::Receiver<()> {
        assert!(n > 0, "the first one is 1");
        let (happened, hears) = oneshot::channel();
        self.state.lock().plans.push(Plan { fits, left: n, failure, happened: Some(happened) });
        hears
    }

    /// Reports whether a planned failure has not happened.
    pub fn planned(&self) -> bool {
        !self.state.lock().plans.is_empty()
    }

    /// Returns every request and its result.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.state.lock().requests
    }

    /// Returns the writes so far, `METHOD PATH`, except events and leases.
    pub fn writes(&self) -> Vec<String> {
        self.state.lock().writes.iter().cloned().collect()
    }

    /// Returns the component that sent too many requests in one second, if any did.
    pub fn flood(&self) -> Option<String> {
        self.state.lock().flood.clone()
    }

    /// Wraps a transport so that its requests may fail. `who` names the component in the trace.
    pub fn wrap(&self, who: &str, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(FaultyTransport { who: who.into(), inner, faults: self.clone() })
    }

    /// Returns the failure of the next call of a container runtime.
    pub(crate) fn call(&self) -> Option<Failure> {
        let FaultState { rng, rates, .. } = &mut *self.state.lock();
        rates.call(rng)
    }

    /// Returns how many times an event of a container runtime is delivered: not at all, once or twice.
    pub(crate) fn times(&self) -> usize {
        let FaultState { rng, rates, .. } = &mut *self.state.lock();
        rates.times(rng)
    }

    /// Returns whether an event of a watch is delivered twice.
    fn repeats(&self) -> bool {
        let FaultState { rng, rates, .. } = &mut *self.state.lock();
        rng.random_bool(rates.repeated)
    }

    fn draw(&self, who: &str, method: &Method, uri: &str) -> Option<Failure> {
        let FaultState { rng, rates, plans, .. } = &mut *self.state.lock();
        let mut planned = None;
        plans.retain_mut(|plan| {
            plan.left -= usize::from((plan.fits)(who, method, uri));
            if plan.left == 0 {
                planned = planned.or(Some(plan.failure));
                // The receiver may be gone.
                let _ = plan.happened.take().map(|h| h.send(()));
            }
            plan.left > 0
        });
        planned.or_else(|| rates.request(rng, method))
    }

    fn cut(&self) -> Option<cut::CutAt> {
        let FaultState { rng, rates, .. } = &mut *self.state.lock();
        rates.watch(rng)
    }

    /// Counts a request; returns true when its sender sends too many.
    fn count(&self, who: &Arc<str>, method: &Method, uri: &str) -> bool {
        let second = self.trace.now().as_secs();
        let mut s = self.state.lock();
        s.requests += 1;
        if is_write(method, uri) {
            if s.writes.len() == WRITES_MAX {
                s.writes.pop_front();
            }
            s.writes.push_back(format!("{method} {}", uri.split('?').next().unwrap_or(uri)));
        }
        if s.second != second {
            s.second = second;
            s.in_second.clear();
        }
        let count = s.in_second.entry(Arc::clone(who)).or_default();
        *count += 1;
        let floods = *count > FLOOD;
        if floods {
            s.flood.get_or_insert_with(|| {
                format!("{who} sent {FLOOD} requests within second {second}, last {method} {uri}")
            });
        }
        floods
    }
}

/// Reports whether a request changes something that matters: events and leases are excluded.
fn is_write(method: &Method, uri: &str) -> bool {
    *method != Method::GET && !uri.contains("/events") && !uri.contains("/leases")
}

/// A transport whose requests may fail; see [`Faults::wrap`].
struct FaultyTransport {
    who: Arc<str>,
    inner: Arc<dyn Transport>,
    faults: Faults,
}

impl Transport for FaultyTransport {
    fn send(&self, mut request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let (who, inner, faults) = (Arc::clone(&self.who), Arc::clone(&self.inner), self.faults.clone());
        Box::pin(async move {
            let what = format!("{} {}", request.method(), request.uri());
            let watch = request.uri().query().is_some_and(|q| q.contains("watch=true"));
            if faults.count(&who, request.method(), &request.uri().to_string()) {
                tokio::time::sleep(FLOOD_PAUSE).await;
            }
            let failure = faults.draw(&who, request.method(), &request.uri().to_string());
            match failure {
                Some(Failure::Refused) => {
                    faults.trace.note(&who, format_args!("{what} -> refused"));
                    return Err(TransportError("simulated: connection refused".into()));
                }
                Some(Failure::Answer(code, reason)) => {
                    faults.trace.note(&who, format_args!("{what} -> simulated {code}"));
                    return Ok(status(code, reason));
                }
                Some(Failure::Slow(pause)) => tokio::time::sleep(pause).await,
                Some(Failure::LostAnswer | Failure::Silence) | None => {}
            }
            // A break inside an event needs bytes, as over a network.
            request.extensions_mut().remove::<TakesObjects>();
            let body = request.body().clone();
            let answer = inner.send(request).await;
            let code = answer.as_ref().map_or(0, |a| a.status().as_u16());
            let lost = matches!(failure, Some(Failure::LostAnswer | Failure::Silence));
            faults.trace.note(&who, format_args!("{what} -> {code}{}", if lost { ", lost" } else { "" }));
            if !body.is_empty() {
                faults.trace.detail(&body);
            }
            match failure {
                Some(Failure::LostAnswer) => return Err(TransportError("simulated: connection reset".into())),
                Some(Failure::Silence) => return std::future::pending().await,
                _ => {}
            }
            if !watch || code != 200 {
                return answer;
            }
            let cut = faults.cut();
            let answer = answer.map(|a| a.map(|body| repeat::Repeat::body(body, Box::new(move || faults.repeats()))));
            match cut {
                Some(at) => answer.map(|a| a.map(|body| cut::Cut::body(body, at))),
                None => answer,
            }
        })
    }
}

fn status(code: u16, reason: &str) -> Response {
    let body = serde_json::json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": reason, "message": "simulated"});
    let mut response = Response::new(full_body(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a status code");
    response
}
