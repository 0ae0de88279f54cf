//! A runtime in memory and an API that answers everything and remembers it: what a pod worker needs to live.
#![allow(dead_code, reason = "each test file uses a part of it")]
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use kelson_client::{
    Body, Client, EventRecorder, Informer, InformerConfig, Request, Response, Transport, TransportError, full_body,
};
use kelson_cri::proto as cri;
use kelson_cri::{Code, CriError, CriResult, EventStream, ExecOutput, Runtime};
use kelson_kubelet::cgroups::Cgroups;
use kelson_kubelet::config::Config;
use kelson_kubelet::effects::{PodEffects, Tell};
use kelson_kubelet::env::resolve::Environment;
use kelson_kubelet::env::services::ServiceView;
use kelson_kubelet::images::Images;
use kelson_kubelet::node::runtime::RuntimeState;
use kelson_kubelet::objects::Objects;
use kelson_kubelet::objects::tokens::Tokens;
use kelson_kubelet::pods::parts::Parts;
use kelson_kubelet::probes::{Handler, Outcome, ProbeRunner, Target};
use kelson_kubelet::runtime::dns::HostDns;
use kelson_kubelet::runtime::userns::UserNamespaces;
use kelson_kubelet::status::writer::StatusWriter;
use kelson_kubelet::volumes::Volumes;
use kelson_kubelet::volumes::mounts::Mounts;
use kelson_meta::{Clock, TokioClock};
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Default)]
struct State {
    sandboxes: Vec<(cri::PodSandbox, cri::PodSandboxConfig)>,
    containers: Vec<(cri::ContainerStatus, String)>,
    next: u32,
}

/// The runtime.
pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Images that cannot be pulled.
    pub missing: Mutex<Vec<String>>,
    /// Called when something changed.
    pub changed: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    /// The grace of each stop, seconds.
    pub stops: Mutex<Vec<u64>>,
    /// How many sandboxes were asked for while none could be made; `None`: they can.
    pub refused: Mutex<Option<u32>>,
    /// The next so many calls of a name panic.
    pub panics: Mutex<HashMap<&'static str, u32>>,
    /// How often a call that may panic was made.
    pub calls: Mutex<HashMap<&'static str, u32>>,
    /// Configurations that sandboxes were made with.
    pub made: Mutex<Vec<cri::PodSandboxConfig>>,
}

const RUNNING: i32 = cri::ContainerState::ContainerRunning as i32;
const EXITED: i32 = cri::ContainerState::ContainerExited as i32;

impl FakeRuntime {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::default(),
            missing: Mutex::default(),
            changed: Mutex::default(),
            stops: Mutex::default(),
            refused: Mutex::default(),
            panics: Mutex::default(),
            calls: Mutex::default(),
            made: Mutex::default(),
        })
    }
    fn nanos(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanosecond()).expect("this century")
    }
    /// Counts a call, which panics if it is to.
    fn called(&self, name: &'static str) {
        *self.calls.lock().entry(name).or_default() += 1;
        let panics = self.panics.lock().get_mut(name).is_some_and(|n| std::mem::replace(n, n.saturating_sub(1)) > 0);
        assert!(!panics, "{name} panics as it was told to");
    }
    fn tell(&self) {
        if let Some(f) = &*self.changed.lock() {
            f();
        }
    }
    /// The container of this name that runs ends.
    pub fn exit(&self, name: &str, code: i32) {
        let now = self.nanos();
        for (c, _) in &mut self.state.lock().containers {
            if c.metadata.as_ref().expect("metadata").name == name && c.state == RUNNING {
                (c.state, c.exit_code, c.finished_at) = (EXITED, code, now);
            }
        }
        self.tell();
    }
    /// Names of containers that run.
    pub fn running(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .containers
            .iter()
            .filter(|(c, _)| c.state == RUNNING)
            .map(|(c, _)| c.metadata.as_ref().expect("m").name.clone())
            .collect()
    }
    /// How many sandboxes and containers there are.
    pub fn counts(&self) -> (usize, usize) {
        let s = self.state.lock();
        (s.sandboxes.len(), s.containers.len())
    }
}

fn no<T>(call: &'static str) -> CriResult<T> {
    Err(CriError::new(call, Code::Unimplemented, "not in this fake"))
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> CriResult<cri::VersionResponse> {
        Ok(cri::VersionResponse { runtime_name: "fake".into(), ..Default::default() })
    }
    async fn status(&self, _: bool) -> CriResult<cri::StatusResponse> {
        no("Status")
    }
    async fn update_runtime_config(&self, _: cri::RuntimeConfig) -> CriResult<()> {
        no("UpdateRuntimeConfig")
    }
    async fn runtime_config(&self) -> CriResult<cri::RuntimeConfigResponse> {
        no("RuntimeConfig")
    }
    async fn run_pod_sandbox(&self, config: cri::PodSandboxConfig, _: &str) -> CriResult<String> {
        self.called("run_pod_sandbox");
        self.made.lock().push(config.clone());
        if let Some(n) = self.refused.lock().as_mut() {
            *n += 1;
            return Err(CriError::new("RunPodSandbox", Code::Unknown, "no cgroup"));
        }
        let mut s = self.state.lock();
        s.next += 1;
        let id = format!("sandbox-{}", s.next);
        let sandbox = cri::PodSandbox {
            id: id.clone(),
            metadata: config.metadata.clone(),
            state: cri::PodSandboxState::SandboxReady as i32,
            created_at: self.nanos(),
            labels: config.labels.clone(),
            ..Default::default()
        };
        s.sandboxes.push((sandbox, config));
        Ok(id)
    }
    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()> {
        for (s, _) in self.state.lock().sandboxes.iter_mut().filter(|(s, _)| s.id == id) {
            s.state = cri::PodSandboxState::SandboxNotready as i32;
        }
        Ok(())
    }
    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()> {
        self.state.lock().sandboxes.retain(|(s, _)| s.id != id);
        Ok(())
    }
    async fn pod_sandbox_status(&self, id: &str, _: bool) -> CriResult<cri::PodSandboxStatusResponse> {
        let s = self.state.lock();
        let (found, _) =
            s.sandboxes.iter().find(|(s, _)| s.id == id).ok_or_else(|| CriError::new("S", Code::NotFound, "gone"))?;
        let network = Some(cri::PodSandboxNetworkStatus { ip: "10.0.0.7".into(), ..Default::default() });
        let status = cri::PodSandboxStatus { id: id.into(), state: found.state, network, ..Default::default() };
        Ok(cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }
    async fn list_pod_sandbox(&self, of: Option<cri::PodSandboxFilter>) -> CriResult<Vec<cri::PodSandbox>> {
        self.called(if of.is_some() { "list_one_pod" } else { "list_all_pods" });
        Ok(self.state.lock().sandboxes.iter().map(|(s, _)| s.clone()).collect())
    }
    async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        _: cri::PodSandboxConfig,
    ) -> CriResult<String> {
        let now = self.nanos();
        let mut s = self.state.lock();
        s.next += 1;
        let id = format!("container-{}", s.next);
        let status = cri::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            image: config.image,
            created_at: now + i64::from(s.next),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        s.containers.push((status, sandbox.to_owned()));
        Ok(id)
    }
    async fn start_container(&self, id: &str) -> CriResult<()> {
        let now = self.nanos();
        for (c, _) in self.state.lock().containers.iter_mut().filter(|(c, _)| c.id == id) {
            (c.state, c.started_at) = (RUNNING, now);
        }
        Ok(())
    }
    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()> {
        self.stops.lock().push(grace.as_secs());
        let now = self.nanos();
        for (c, _) in self.state.lock().containers.iter_mut().filter(|(c, _)| c.id == id && c.state == RUNNING) {
            (c.state, c.exit_code, c.finished_at) = (EXITED, 137, now);
        }
        self.tell();
        Ok(())
    }
    async fn remove_container(&self, id: &str) -> CriResult<()> {
        self.state.lock().containers.retain(|(c, _)| c.id != id);
        Ok(())
    }
    async fn list_containers(&self, _: Option<cri::ContainerFilter>) -> CriResult<Vec<cri::Container>> {
        let s = self.state.lock();
        let one = |(c, sandbox): &(cri::ContainerStatus, String)| cri::Container {
            id: c.id.clone(),
            pod_sandbox_id: sandbox.clone(),
            state: c.state,
            created_at: c.created_at,
            labels: c.labels.clone(),
            ..Default::default()
        };
        Ok(s.containers.iter().map(one).collect())
    }
    async fn container_status(&self, id: &str, _: bool) -> CriResult<cri::ContainerStatusResponse> {
        let s = self.state.lock();
        let found = s.containers.iter().find(|(c, _)| c.id == id).map(|(c, _)| c.clone());
        Ok(cri::ContainerStatusResponse { status: found, ..Default::default() })
    }
    async fn update_container_resources(&self, _: cri::UpdateContainerResourcesRequest) -> CriResult<()> {
        no("UpdateContainerResources")
    }
    async fn reopen_container_log(&self, _: &str) -> CriResult<()> {
        no("ReopenContainerLog")
    }
    async fn exec_sync(&self, _: &str, _: Vec<String>, _: Duration) -> CriResult<ExecOutput> {
        no("ExecSync")
    }
    async fn exec(&self, _: cri::ExecRequest) -> CriResult<String> {
        no("Exec")
    }
    async fn attach(&self, _: cri::AttachRequest) -> CriResult<String> {
        no("Attach")
    }
    async fn port_forward(&self, _: &str, _: Vec<i32>) -> CriResult<String> {
        no("PortForward")
    }
    async fn container_stats(&self, _: &str) -> CriResult<Option<cri::ContainerStats>> {
        no("ContainerStats")
    }
    async fn list_container_stats(&self, _: Option<cri::ContainerStatsFilter>) -> CriResult<Vec<cri::ContainerStats>> {
        no("ListContainerStats")
    }
    async fn pod_sandbox_stats(&self, _: &str) -> CriResult<Option<cri::PodSandboxStats>> {
        no("PodSandboxStats")
    }
    async fn list_pod_sandbox_stats(
        &self,
        _: Option<cri::PodSandboxStatsFilter>,
    ) -> CriResult<Vec<cri::PodSandboxStats>> {
        no("ListPodSandboxStats")
    }
    async fn container_events(&self) -> CriResult<EventStream> {
        no("GetContainerEvents")
    }
    async fn list_images(&self, _: Option<cri::ImageFilter>) -> CriResult<Vec<cri::Image>> {
        Ok(Vec::new())
    }
    async fn image_status(&self, image: cri::ImageSpec) -> CriResult<Option<cri::Image>> {
        let there = !self.missing.lock().contains(&image.image);
        Ok(there.then(|| cri::Image { id: image.image, ..Default::default() }))
    }
    async fn pull_image(
        &self,
        _: cri::ImageSpec,
        _: Option<cri::AuthConfig>,
        _: Option<cri::PodSandboxConfig>,
    ) -> CriResult<String> {
        Err(CriError::new("PullImage", Code::NotFound, "no such image"))
    }
    async fn remove_image(&self, _: cri::ImageSpec) -> CriResult<()> {
        no("RemoveImage")
    }
    async fn image_fs_info(&self) -> CriResult<cri::ImageFsInfoResponse> {
        no("ImageFsInfo")
    }
}

/// The API: keeps the pod's status as patches make it, events and deletions.
#[derive(Default)]
pub struct FakeApi {
    pub status: Mutex<serde_json::Map<String, Value>>,
    pub events: Mutex<Vec<(String, String)>>,
    pub deleted: Mutex<Vec<Value>>,
    /// Asked first; what it does not answer, this API does.
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

/// Conditions as a strategic merge patch changes them.
fn merge_by_type(list: &mut Value, patch: &Value) {
    let list = list.as_array_mut().expect("a list");
    for c in patch.as_array().into_iter().flatten() {
        list.retain(|o| o["type"] != c["type"]);
        list.push(c.clone());
    }
}

/// A body that says one thing and never ends.
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

/// Mounts nothing.
pub struct NoMounts;

impl Mounts for NoMounts {
    fn tmpfs(&self, _: &Path, _: Option<u64>, _: u32) -> std::io::Result<()> {
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

/// Probes answer what is set here; success unless said otherwise.
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

/// Everything a worker runs with.
pub struct World {
    pub tasks: Tasks,
    pub parts: Arc<Parts>,
    pub runtime: Arc<FakeRuntime>,
    pub api: Arc<FakeApi>,
    pub prober: Arc<FakeProber>,
    pub dir: tempfile::TempDir,
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(TokioClock::starting_at(Timestamp::from_second(1_800_000_000).expect("time")))
}

pub fn client(api: &Arc<FakeApi>) -> Client {
    Client::new(Arc::new(Wire(Arc::clone(api))), "test")
}

pub fn world() -> World {
    world_with(RuntimeState { answered: true, ..Default::default() })
}

/// A world whose runtime says this of itself.
pub fn world_with(runtime_says: RuntimeState) -> World {
    let tasks = Tasks::root("test");
    let clock = clock();
    let runtime = FakeRuntime::new(Arc::clone(&clock));
    let api = Arc::new(FakeApi::default());
    let prober = Arc::new(FakeProber::default());
    let dir = tempfile::tempdir().expect("tempdir");
    let client = client(&api);
    let mut config = Config::new("n1", dir.path());
    config.node_ips = vec!["192.0.2.1".parse().expect("ip")];
    let config = Arc::new(config);
    let (facts, node) = watch::channel(Arc::default());
    let (state, runtime_state) = watch::channel(Arc::new(runtime_says));
    // The senders live as long as the process: nothing changes.
    std::mem::forget((facts, state));
    let recorder = EventRecorder::start_in(&tasks, client.clone(), Arc::clone(&clock), "kubelet", "n1");
    let tell = Tell::new(recorder.clone(), "n1");
    let images = Images::open(&config, client.clone(), recorder, Arc::clone(&clock)).expect("records");
    let objects = Objects::new(&tasks, client.clone(), |_| {});
    let parts = Arc::new(Parts {
        tasks: tasks.clone(),
        dirs: config.dirs(),
        effects: PodEffects {
            runtime: Arc::clone(&runtime) as Arc<dyn Runtime>,
            prober: Arc::clone(&prober) as Arc<dyn ProbeRunner>,
            tell: tell.clone(),
            clock: Arc::clone(&clock),
        },
        volumes: Volumes {
            dirs: config.dirs(),
            objects: objects.clone(),
            tokens: Tokens::new(client.clone(), Arc::clone(&clock)),
            mounts: Arc::new(NoMounts),
            node: node.clone(),
            clock,
            cluster_domain: "cluster.local".into(),
        },
        environment: Environment {
            objects,
            services: Informer::<ServiceView>::new(client.clone(), InformerConfig::default()).start_in(&tasks),
            node: node.clone(),
            tell,
        },
        images,
        cgroups: Cgroups::none(),
        user_namespaces: UserNamespaces::open(config.dirs(), config.max_pods),
        statuses: StatusWriter::start(client.clone(), &tasks),
        node,
        runtime_state,
        host_dns: HostDns::new("/nowhere/resolv.conf".into()),
        runtime_name: "fake".into(),
        client,
        config,
    });
    World { tasks, parts, runtime, api, prober, dir }
}
