//! A container runtime in memory: sandboxes and containers are rows of a table, a stopped one ends at once.
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use kelson_cri::proto as cri;
use kelson_cri::{Code, CriError, CriResult, EventStream, ExecOutput, Runtime};
use kelson_meta::Clock;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::Faults;

/// Events that one slow reader may be behind.
const EVENTS_MAX: usize = 64;

#[derive(Default)]
struct State {
    sandboxes: Vec<(cri::PodSandbox, cri::PodSandboxConfig)>,
    containers: Vec<(cri::ContainerStatus, String)>,
    next: u32,
}

/// The runtime: what a kubelet asks of it, and knobs for the test.
pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Images that cannot be pulled.
    pub missing: Mutex<Vec<String>>,
    /// Called after each change.
    pub changed: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    /// The grace of each stop, seconds.
    pub stops: Mutex<Vec<u64>>,
    /// How many sandboxes were asked for while none could be made; `None`: they can.
    pub refused: Mutex<Option<u32>>,
    /// First bytes of the pods' addresses.
    prefix: [u8; 3],
    /// Decides which calls fail.
    faults: Option<Faults>,
    events: broadcast::Sender<()>,
}

const RUNNING: i32 = cri::ContainerState::ContainerRunning as i32;
const EXITED: i32 = cri::ContainerState::ContainerExited as i32;

impl FakeRuntime {
    /// A runtime without containers, whose calls never fail by themselves and whose pods are in 10.0.0.0/24.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::with(clock, [10, 0, 0], None)
    }

    /// A runtime whose pods have addresses that begin with `prefix`, and whose calls fail as `faults` says.
    pub fn with(clock: Arc<dyn Clock>, prefix: [u8; 3], faults: Option<Faults>) -> Arc<Self> {
        Arc::new(Self {
            prefix,
            faults,
            events: broadcast::Sender::new(EVENTS_MAX),
            clock,
            state: Mutex::default(),
            missing: Mutex::default(),
            changed: Mutex::default(),
            stops: Mutex::default(),
            refused: Mutex::default(),
        })
    }
    fn nanos(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanosecond()).expect("this century")
    }
    fn tell(&self) {
        if let Some(f) = &*self.changed.lock() {
            f();
        }
        // Nobody may be listening.
        let _ = self.events.send(());
    }
    fn may_fail(&self, call: &'static str) -> CriResult<()> {
        match &self.faults {
            Some(f) if f.runtime_fails() => Err(CriError::new(call, Code::Unknown, "simulated: the runtime failed")),
            _ => Ok(()),
        }
    }
    /// Namespace, pod and UID of each running container, in the order in which they were made.
    pub fn running_pods(&self) -> Vec<(String, String, String)> {
        let state = self.state.lock();
        let label = |c: &cri::ContainerStatus, key: &str| {
            c.labels.get(&format!("io.kubernetes.{key}")).cloned().unwrap_or_default()
        };
        let running = state.containers.iter().filter(|(c, _)| c.state == RUNNING);
        running.map(|(c, _)| (label(c, "pod.namespace"), label(c, "pod.name"), label(c, "pod.uid"))).collect()
    }
    /// The `n`th running container ends with this code.
    pub fn exit_nth(&self, n: usize, code: i32) {
        let now = self.nanos();
        let mut state = self.state.lock();
        if let Some((c, _)) = state.containers.iter_mut().filter(|(c, _)| c.state == RUNNING).nth(n) {
            (c.state, c.exit_code, c.finished_at) = (EXITED, code, now);
        }
        drop(state);
        self.tell();
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
        let ready = |kind: &str| cri::RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let status = cri::RuntimeStatus { conditions: ["RuntimeReady", "NetworkReady"].map(ready).into() };
        Ok(cri::StatusResponse { status: Some(status), ..Default::default() })
    }
    async fn update_runtime_config(&self, _: cri::RuntimeConfig) -> CriResult<()> {
        no("UpdateRuntimeConfig")
    }
    async fn runtime_config(&self) -> CriResult<cri::RuntimeConfigResponse> {
        no("RuntimeConfig")
    }
    async fn run_pod_sandbox(&self, config: cri::PodSandboxConfig, _: &str) -> CriResult<String> {
        self.may_fail("RunPodSandbox")?;
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
        self.may_fail("StopPodSandbox")?;
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
        let number: u8 = id.rsplit('-').next().and_then(|n| n.parse::<u32>().ok()).map_or(0, |n| (n % 248) as u8);
        let [a, b, c] = self.prefix;
        let ip = format!("{a}.{b}.{c}.{}", number + 6);
        let network = Some(cri::PodSandboxNetworkStatus { ip, ..Default::default() });
        let status = cri::PodSandboxStatus { id: id.into(), state: found.state, network, ..Default::default() };
        Ok(cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }
    async fn list_pod_sandbox(&self, _: Option<cri::PodSandboxFilter>) -> CriResult<Vec<cri::PodSandbox>> {
        Ok(self.state.lock().sandboxes.iter().map(|(s, _)| s.clone()).collect())
    }
    async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        _: cri::PodSandboxConfig,
    ) -> CriResult<String> {
        self.may_fail("CreateContainer")?;
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
        self.may_fail("StartContainer")?;
        let now = self.nanos();
        for (c, _) in self.state.lock().containers.iter_mut().filter(|(c, _)| c.id == id) {
            (c.state, c.started_at) = (RUNNING, now);
        }
        self.tell();
        Ok(())
    }
    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()> {
        self.may_fail("StopContainer")?;
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
        Ok(None)
    }
    async fn list_container_stats(&self, _: Option<cri::ContainerStatsFilter>) -> CriResult<Vec<cri::ContainerStats>> {
        Ok(Vec::new())
    }
    async fn pod_sandbox_stats(&self, _: &str) -> CriResult<Option<cri::PodSandboxStats>> {
        no("PodSandboxStats")
    }
    async fn list_pod_sandbox_stats(
        &self,
        _: Option<cri::PodSandboxStatsFilter>,
    ) -> CriResult<Vec<cri::PodSandboxStats>> {
        Ok(Vec::new())
    }
    async fn container_events(&self) -> CriResult<EventStream> {
        let next = |mut events: broadcast::Receiver<()>| async move {
            // A reader that fell behind has missed what the next event says as well.
            match events.recv().await {
                Ok(()) | Err(broadcast::error::RecvError::Lagged(_)) => Some((Ok(Default::default()), events)),
                Err(broadcast::error::RecvError::Closed) => None,
            }
        };
        Ok(futures::stream::unfold(self.events.subscribe(), next).boxed())
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
        Ok(())
    }
    async fn image_fs_info(&self) -> CriResult<cri::ImageFsInfoResponse> {
        Ok(cri::ImageFsInfoResponse::default())
    }
}
