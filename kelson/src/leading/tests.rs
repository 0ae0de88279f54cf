//! Two servers on one lease.

use std::collections::VecDeque;

use bytes::Bytes;
use http::Method;
use kelson_client::{Request, Response, TransportError, full_body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;

/// The lease's duration by default.
const LEASE: Duration = kelson_client::leader::LEASE;

/// An API with one lease and a log of other writes.
#[derive(Default)]
struct Api {
    lease: Mutex<Option<Value>>,
    writes: Mutex<VecDeque<(String, Instant)>>,
}

/// The connection of one server to the API.
struct Connection {
    api: Arc<Api>,
    server: &'static str,
    is_cut: Arc<Mutex<bool>>,
}

impl Api {
    fn answer(&self, request: &Request) -> (u16, Value) {
        let mut lease = self.lease.lock();
        let version = |lease: &Option<Value>| {
            lease.as_ref().map_or(0, |l| {
                l["metadata"]["resourceVersion"].clone().as_str().and_then(|v| v.parse().ok()).unwrap_or(0)
            })
        };
        let before: u64 = version(&lease);
        if *request.method() == Method::GET {
            return lease
                .clone()
                .map_or((404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})), |l| (200, l));
        }
        let mut body: Value = serde_json::from_slice(request.body()).unwrap();
        let given: u64 = body["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
        if given != before {
            return (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"}));
        }
        body["metadata"]["resourceVersion"] = json!((before + 1).to_string());
        *lease = Some(body.clone());
        (200, body)
    }

    /// Returns the servers that wrote, each once as long as no other one wrote between.
    fn writers(&self) -> Vec<String> {
        let mut writers: Vec<String> = self.writes.lock().iter().map(|(server, _)| server.clone()).collect();
        writers.dedup();
        writers
    }

    fn last_write(&self) -> Instant {
        self.writes.lock().back().expect("a write").1
    }
}

impl Transport for Connection {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        if *self.is_cut.lock() {
            return Box::pin(async { Err(TransportError::new("no route to host")) });
        }
        let (code, answer) = match request.uri().path() {
            "/work" => {
                self.api.writes.lock().push_back((self.server.to_owned(), Instant::now()));
                (200, json!({}))
            }
            _ => self.api.answer(&request),
        };
        let mut response = Response::new(full_body(answer.to_string()));
        *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
        Box::pin(async { Ok(response) })
    }
}

struct Server {
    part: Part,
    is_cut: Arc<Mutex<bool>>,
}

/// Starts a server whose component writes ten times a second. A `stubborn` one continues when it is stopped.
fn server(api: &Arc<Api>, name: &'static str, stubborn: bool, tasks: &Tasks) -> Server {
    let is_cut = Arc::new(Mutex::new(false));
    let connect = |is_cut: &Arc<Mutex<bool>>| -> Arc<dyn Transport> {
        Arc::new(Connection { api: Arc::clone(api), server: name, is_cut: Arc::clone(is_cut) })
    };
    // The component's own connection is never cut, as if its writes took another way.
    let (work, group) = (connect(&Arc::default()), tasks.clone());
    let start = move |term: &Term| {
        let (transport, group) = (term.guard(Arc::clone(&work)), group.child("component"));
        group.spawn("work", OnPanic::EndProcess, async move {
            loop {
                let request = http::Request::post("/work").body(Bytes::new()).unwrap();
                // Its errors are those of the term.
                let _answer = transport.send(request).await;
                sleep(Duration::from_millis(100)).await;
            }
        });
        Box::pin(async move {
            if !stubborn {
                group.shutdown(Duration::from_secs(5)).await;
            }
        }) as BoxFuture<()>
    };
    let component = Candidate { name: "kube-scheduler", end_max: Duration::from_secs(5), start: Box::new(start) };
    let elector =
        Elector { transport: connect(&is_cut), identity: name.to_owned(), election: Election::of("kube-scheduler") };
    Server { part: Part::start(component, Some(elector), tasks), is_cut }
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_hands_over_at_once() {
    let (api, tasks) = (Arc::new(Api::default()), Tasks::root("test"));
    let a = server(&api, "a", false, &tasks);
    sleep(Duration::from_secs(1)).await;
    let b = server(&api, "b", false, &tasks);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.writers(), ["a"], "one server works");
    let stopped = Instant::now();
    a.part.shutdown().await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(api.writers(), ["a", "b"]);
    let first = api.writes.lock().iter().find(|(server, _)| server == "b").expect("it wrote").1;
    assert!(first - stopped < LEASE, "the lease was released: {:?}", first - stopped);
    b.part.shutdown().await;
    assert_eq!(api.lease.lock().as_ref().unwrap()["spec"]["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_loses_its_lease_writes_nothing_after_another_one_and_returns() {
    for stubborn in [false, true] {
        let (api, tasks) = (Arc::new(Api::default()), Tasks::root("test"));
        let a = server(&api, "a", stubborn, &tasks);
        sleep(Duration::from_secs(1)).await;
        let b = server(&api, "b", false, &tasks);
        sleep(Duration::from_secs(30)).await;
        *a.is_cut.lock() = true;
        sleep(LEASE * 2).await;
        assert_eq!(api.writers(), ["a", "b"], "stubborn: {stubborn}");
        *a.is_cut.lock() = false;
        sleep(Duration::from_secs(30)).await;
        assert_eq!(api.writers(), ["a", "b"], "it waits for the lease");
        b.part.shutdown().await;
        sleep(Duration::from_secs(5)).await;
        assert_eq!(api.writers(), ["a", "b", "a"], "it is a candidate again");
        assert!(api.last_write().elapsed() < Duration::from_secs(1));
        a.part.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_killed_continues_its_own_lease() {
    let (api, dir) = (Arc::new(Api::default()), tempfile::tempdir().unwrap());
    assert_eq!(identity(dir.path()).unwrap(), identity(dir.path()).unwrap());
    let (killed, tasks) = (Tasks::root("killed"), Tasks::root("test"));
    let first = server(&api, "a", false, &killed);
    sleep(Duration::from_secs(1)).await;
    // Nothing of it runs any more, and nothing was released.
    *first.is_cut.lock() = true;
    first.part.shutdown().await;
    let again = server(&api, "a", false, &tasks);
    let begun = Instant::now();
    sleep(Duration::from_secs(1)).await;
    assert!(api.last_write() > begun, "it waits for no other server");
    again.part.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_election_a_component_starts_at_once() {
    let (tasks, started) = (Tasks::root("test"), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&started);
    let start = move |_: &Term| {
        *count.lock() += 1;
        Box::pin(async {}) as BoxFuture<()>
    };
    let part = Part::start(Candidate { name: "c", end_max: LEASE, start: Box::new(start) }, None, &tasks);
    assert_eq!(*started.lock(), 1, "before anything is awaited");
    part.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_that_is_left_counts_from_the_last_renewal() {
    assert_eq!(Term::unlimited().remaining(), LEASE);
    let term = Term::of(kelson_client::leader::Times::default());
    assert_eq!(term.remaining(), Duration::ZERO, "nothing was renewed yet");
    let api = Arc::new(Api::default());
    let connection = term.observe(Arc::new(Connection { api, server: "a", is_cut: Arc::default() }));
    let renew = || connection.send(http::Request::post("/work").body(Bytes::new()).unwrap());
    renew().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(term.remaining(), LEASE - Duration::from_secs(5));
    renew().await.unwrap();
    assert_eq!(term.remaining(), LEASE);
    sleep(LEASE * 2).await;
    assert_eq!(term.remaining(), Duration::ZERO);
    renew().await.unwrap();
    term.end();
    assert_eq!(term.remaining(), Duration::ZERO);
}
