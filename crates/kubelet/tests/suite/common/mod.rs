//! A fake API server that records requests, and an in-memory runtime: the environment of a pod worker.
#![allow(dead_code, reason = "each test file uses a part of it")]
pub mod life;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::{
    Body, Client, EventRecorder, Informer, InformerConfig, Request, Response, Transport, TransportError, full_body,
};
use kelson_cri::Runtime;
use kelson_doubles::TokioClock;
use kelson_kubelet::cgroups::Cgroups;
use kelson_kubelet::cgroups::memory::MemoryRules;
use kelson_kubelet::cgroups::swap::SwapRules;
use kelson_kubelet::config::Config;
use kelson_kubelet::csi::drivers::Drivers;
use kelson_kubelet::csi::in_use::InUse;
use kelson_kubelet::devices::Devices;
use kelson_kubelet::devices::table::Table;
use kelson_kubelet::dra::DynamicResources;
use kelson_kubelet::dra::drivers::DraDrivers;
use kelson_kubelet::dra::prepared::KnownClaims;
use kelson_kubelet::effects::{EventReporter, NetworkGate, PodEffects};
use kelson_kubelet::env::resolve::Environment;
use kelson_kubelet::env::services::ServiceView;
use kelson_kubelet::images::Images;
use kelson_kubelet::metrics::{ClaimMetrics, DeviceMetrics, Metrics, PlacementMetrics, StorageMetrics};
use kelson_kubelet::node::runtime::RuntimeState;
use kelson_kubelet::objects::Objects;
use kelson_kubelet::objects::tokens::Tokens;
use kelson_kubelet::placement::Placement;
use kelson_kubelet::pods::parts::Parts;
use kelson_kubelet::probes::{Handler, Outcome, ProbeRunner, Target};
use kelson_kubelet::runtime::dns::HostDns;
use kelson_kubelet::runtime::userns::UserNamespaces;
use kelson_kubelet::spans::Spans;
use kelson_kubelet::status::writer::StatusWriter;
use kelson_kubelet::volumes::Volumes;
use kelson_kubelet::volumes::csi::{CsiVolumes, VolumeGrowth};
use kelson_kubelet::volumes::mounts::Mounts;
use kelson_kubelet::volumes::persistent::Claims;
use kelson_kubelet::volumes::usage::VolumeUsages;
use kelson_meta::Clock;
pub use kelson_simulation::FakeRuntime;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

/// A fake API server. It keeps the pod's status as patches change it, events and deletions.
#[derive(Default)]
pub struct FakeApi {
    pub status: Mutex<serde_json::Map<String, Value>>,
    pub events: Mutex<Vec<(String, String)>>,
    pub deleted: Mutex<Vec<Value>>,
    /// Called first; requests for which it returns `None` are handled by this API server.
    pub first: Mutex<Option<Box<dyn Fn(&Request) -> Option<Response> + Send + Sync>>>,
}

impl FakeApi {
    fn answer(&self, request: &Request) -> Response {
        if let Some(answer) = self.first.lock().as_ref().and_then(|f| f(request)) {
            return answer;
        }
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        if query.contains("watch=true") {
            let end = json!({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}});
            return Response::new(open_body(format!("{end}\n")));
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        if path.ends_with("/status") {
            let mut status = self.status.lock();
            for (k, v) in body["status"].as_object().into_iter().flatten() {
                if k == "conditions" {
                    merge_by_type(status.entry(k.clone()).or_insert_with(|| json!([])), v);
                } else {
                    status.insert(k.clone(), v.clone());
                }
            }
        } else if path.ends_with("/events") {
            let word = |k: &str| body[k].as_str().unwrap_or_default().to_owned();
            self.events.lock().push((word("reason"), word("message")));
        } else if request.method() == http::Method::DELETE {
            self.deleted.lock().push(body.clone());
        }
        let pod = json!({"metadata":{"name":"p"},"spec":{"containers":[]},"involvedObject":{}});
        Response::new(full_body(pod.to_string()))
    }
    pub fn state(&self) -> Value {
        self.status.lock().get("containerStatuses").map(|l| l[0].clone()).unwrap_or_default()
    }
    pub fn phase(&self) -> String {
        self.status.lock().get("phase").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
    pub fn reasons(&self) -> Vec<String> {
        self.events.lock().iter().map(|(r, _)| r.clone()).collect()
    }
}

/// Merges conditions like a strategic merge patch.
fn merge_by_type(list: &mut Value, patch: &Value) {
    let list = list.as_array_mut().expect("a list");
    for c in patch.as_array().into_iter().flatten() {
        list.retain(|o| o["type"] != c["type"]);
        if c["$patch"] != "delete" {
            list.push(c.clone());
        }
    }
}

/// A body that contains one chunk and does not end.
pub fn open_body(first: String) -> Body {
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;
    let once = futures::stream::once(async move { Ok(hyper::body::Frame::data(bytes::Bytes::from(first))) });
    http_body_util::StreamBody::new(once.chain(futures::stream::pending::<Result<_, TransportError>>())).boxed_unsync()
}

struct Wire(Arc<FakeApi>);

impl Transport for Wire {
    fn send(
        &self,
        request: Request,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
        let answer = self.0.answer(&request);
        Box::pin(async move { Ok(answer) })
    }
}

/// Mount operations without effect.
pub struct NoMounts;

impl Mounts for NoMounts {
    fn tmpfs(&self, _: &Path, _: Option<u64>, _: u32) -> std::io::Result<()> {
        Ok(())
    }
    fn huge_pages(&self, _: &Path, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn bind(&self, _: std::os::fd::BorrowedFd<'_>, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn unmount(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn below(&self, _: &Path) -> Vec<std::path::PathBuf> {
        Vec::new()
    }
}

/// Probe outcomes by handler; success by default.
#[derive(Default)]
pub struct FakeProber(pub Mutex<BTreeMap<String, Outcome>>);

#[async_trait]
impl ProbeRunner for FakeProber {
    async fn run(&self, handler: &Handler, _: &Target, _: Duration) -> Outcome {
        let Handler::Exec(e) = handler else { return Outcome::Success };
        let command = e.command.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        self.0.lock().get(&command).cloned().unwrap_or(Outcome::Success)
    }
}

/// A wall clock that tests can change. Timers use the paused clock.
pub struct WallClock {
    steady: TokioClock,
    ahead_s: AtomicI64,
}

impl WallClock {
    /// Moves the clock by this many seconds.
    pub fn jump(&self, seconds: i64) {
        self.ahead_s.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.steady.now() + jiff::SignedDuration::from_secs(self.ahead_s.load(Ordering::SeqCst))
    }
}

/// A network gate that the test opens and closes.
#[derive(Default)]
pub struct FakeGate {
    pub closed: AtomicBool,
    pub addresses: Mutex<Vec<String>>,
}

#[async_trait]
impl NetworkGate for FakeGate {
    async fn pass(&self, _: &Pod, ips: &[String]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        *self.addresses.lock() = ips.to_vec();
        if self.closed.load(Ordering::Relaxed) { Err("policies are not in force".into()) } else { Ok(()) }
    }
}

pub struct World {
    pub tasks: Tasks,
    pub gate: Arc<FakeGate>,
    pub parts: Arc<Parts>,
    pub runtime: Arc<FakeRuntime>,
    pub api: Arc<FakeApi>,
    pub prober: Arc<FakeProber>,
    pub clock: Arc<WallClock>,
    pub dir: tempfile::TempDir,
}

fn steady_clock() -> TokioClock {
    TokioClock::starting_at(Timestamp::from_second(1_800_000_000).expect("time"))
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(steady_clock())
}

pub fn client(api: &Arc<FakeApi>) -> Client {
    Client::new(Arc::new(Wire(Arc::clone(api))), "test")
}

pub fn world() -> World {
    world_with(RuntimeState { answered: true, ..Default::default() })
}

/// Creates an environment whose runtime has this state.
pub fn world_with(runtime_says: RuntimeState) -> World {
    let tasks = Tasks::root("test");
    let wall = Arc::new(WallClock { steady: steady_clock(), ahead_s: AtomicI64::default() });
    let clock: Arc<dyn Clock> = Arc::clone(&wall) as _;
    let runtime = FakeRuntime::new(Arc::clone(&clock));
    let api = Arc::new(FakeApi::default());
    let prober = Arc::new(FakeProber::default());
    let gate = Arc::<FakeGate>::default();
    let dir = tempfile::tempdir().expect("tempdir");
    let client = client(&api);
    let mut config = Config::new("n1", dir.path());
    config.node_ips = vec!["192.0.2.1".parse().expect("ip")];
    let config = Arc::new(config);
    let (facts, node) = watch::channel(Arc::default());
    let (state, runtime_state) = watch::channel(Arc::new(runtime_says));
    // The senders live as long as the process, so nothing changes.
    std::mem::forget((facts, state));
    let recorder = EventRecorder::start_in(&tasks, client.clone(), Arc::clone(&clock), "kubelet", "n1");
    let events = EventReporter::new(recorder.clone(), "n1");
    let images = Images::open(&config, client.clone(), recorder, Arc::clone(&clock), &kelson_metrics::Registry::new())
        .expect("records");
    let objects = Objects::new(&tasks, client.clone(), |_| {});
    let counted = Arc::new(DeviceMetrics::new(&kelson_metrics::Registry::new()));
    let csi = CsiVolumes::new(client.clone(), "n", Drivers::default(), InUse::default());
    let registry = kelson_metrics::Registry::new();
    let drivers = DraDrivers::new(Arc::new(ClaimMetrics::new(&registry)), tasks.clone());
    let parts = Arc::new(Parts {
        tasks: tasks.clone(),
        dirs: config.dirs(),
        effects: PodEffects {
            runtime: Arc::clone(&runtime) as Arc<dyn Runtime>,
            prober: Arc::clone(&prober) as Arc<dyn ProbeRunner>,
            events: events.clone(),
            clock: Arc::clone(&clock),
            metrics: Arc::new(Metrics::new("n1")),
            spans: Spans::default(),
            network_gate: Some(Arc::clone(&gate) as _),
        },
        volumes: Volumes {
            dirs: config.dirs(),
            objects: objects.clone(),
            tokens: Tokens::new(client.clone(), Arc::clone(&clock)),
            claims: Claims::new(client.clone()),
            local_volumes: None,
            csi: csi.clone(),
            growth: VolumeGrowth::new(client.clone(), Arc::clone(&clock), config.dirs(), csi, events.clone()),
            usages: VolumeUsages::default(),
            metrics: Arc::new(StorageMetrics::new(&registry)),
            mounts: Arc::new(NoMounts),
            node: node.clone(),
            clock: Arc::clone(&clock),
            cluster_domain: "cluster.local".into(),
        },
        environment: Environment {
            objects,
            services: Informer::<ServiceView>::new(client.clone(), InformerConfig::default()).start_in(&tasks),
            node: node.clone(),
            events,
        },
        images,
        devices: Devices::with(Table::default(), config.device_plugins_dir.clone(), counted),
        claims: DynamicResources::with(client.clone(), drivers, dir.path().to_owned(), KnownClaims::default()),
        placement: Placement::none(dir.path(), Arc::new(PlacementMetrics::new(&registry))),
        cgroups: Cgroups::none(),
        swap: SwapRules::default(),
        memory: MemoryRules::default(),
        user_namespaces: UserNamespaces::open(config.dirs(), config.max_pods, config.ids_per_pod),
        statuses: StatusWriter::start(client.clone(), &tasks, Arc::new(Metrics::new("n1"))),
        node,
        runtime_state,
        host_dns: HostDns::new("/nowhere/resolv.conf".into()),
        runtime_name: "fake".into(),
        client,
        config,
    });
    World { tasks, gate, parts, runtime, api, prober, clock: wall, dir }
}
