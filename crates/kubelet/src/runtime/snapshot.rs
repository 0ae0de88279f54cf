//! State of one pod in the runtime (sandboxes and containers, newest first), read through CRI. A status that can no longer change is read
//! only once.
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_cri::proto as cri;
use kelson_cri::{CriResult, Runtime};
use kelson_meta::Clock;
use kelson_tasks::FILES;
use tokio::time::Instant;

use super::labels;
use crate::cgroups::resources::Limits;

/// State of a container in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Created but not started.
    Created,
    /// Its process is running.
    Running,
    /// It has ended.
    Exited,
    /// The runtime reports an unknown state.
    Unknown,
}

/// Converts the runtime's nanoseconds since the epoch to a timestamp.
pub fn timestamp(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// One sandbox in the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// The runtime's ID of the sandbox.
    pub id: String,
    /// Number of earlier sandboxes of the pod.
    pub attempt: u32,
    /// Whether containers can run in it.
    pub ready: bool,
    /// Creation time in nanoseconds since the epoch.
    pub created_at: i64,
    /// Addresses, the primary one first; empty on the host network.
    pub ips: Vec<String>,
}

/// One instance of a container in the runtime, running or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The runtime's ID of the container.
    pub id: String,
    /// Name of the container in the pod.
    pub name: String,
    /// ID of its sandbox.
    pub sandbox_id: String,
    /// State of its process.
    pub state: State,
    /// Number of earlier instances of the container.
    pub restart_count: i32,
    /// Hash of the spec from which it was created.
    pub hash: String,
    /// Image as named in the spec.
    pub image: String,
    /// Digest reference of the image.
    pub image_id: String,
    /// Creation time in nanoseconds since the epoch.
    pub created_at: i64,
    /// Start time in nanoseconds since the epoch; 0 if not started.
    pub started_at: i64,
    /// End time in nanoseconds since the epoch; 0 if not ended.
    pub finished_at: i64,
    /// End time by the monotonic clock, from which delays count; `None` if not ended.
    pub ended: Option<Instant>,
    /// Exit code; 0 while it runs.
    pub exit_code: i32,
    /// The runtime's reason, for example `OOMKilled`.
    pub reason: String,
    /// The termination message, or the runtime's message.
    pub message: String,
    /// Path of its log file.
    pub log_path: String,
    /// Host path of the termination message file; empty without one.
    pub termination_file: String,
    /// Paths in the container that are mounted recursively read-only.
    pub recursive_read_only: Vec<String>,
    /// Annotations that were set at creation.
    pub annotations: BTreeMap<String, String>,
    /// User and groups of its first process; `None` if the runtime does not report them (containerd before 2.1).
    pub user: Option<cri::LinuxContainerUser>,
    /// Its current limits. `None` if unknown: another kubelet created it and the runtime does not report limits.
    pub limits: Option<Limits>,
}

/// State of one pod in the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimePod {
    /// Name of the pod, from labels.
    pub name: String,
    /// Namespace of the pod, from labels.
    pub namespace: String,
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Containers; instances of each name are ordered newest first.
    pub containers: Vec<Arc<Instance>>,
}

impl RuntimePod {
    /// Sorts the newest first: by attempt count before creation time, because the wall clock may have been changed.
    fn sort(&mut self) {
        self.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        self.containers.sort_by_key(|c| std::cmp::Reverse((c.restart_count, c.created_at)));
    }
    /// Returns the newest instance of a container in any sandbox.
    pub fn latest(&self, name: &str) -> Option<&Arc<Instance>> {
        self.containers.iter().find(|c| c.name == name)
    }
    /// Returns the newest instance of a container in a sandbox.
    pub fn latest_in(&self, sandbox: &str, name: &str) -> Option<&Arc<Instance>> {
        self.containers.iter().find(|c| c.name == name && c.sandbox_id == sandbox)
    }
    /// Returns the newest sandbox if it is ready.
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }
    /// Returns whether any container is running or any sandbox is ready.
    pub fn is_running(&self) -> bool {
        self.containers.iter().any(|c| c.state == State::Running) || self.sandboxes.iter().any(|s| s.ready)
    }
    /// Returns whether the runtime has nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// Reads snapshots of one pod and caches what can no longer change.
pub struct SnapshotReader {
    clock: Arc<dyn Clock>,
    prefers_ipv6: bool,
    sandboxes: HashMap<String, (i32, Sandbox)>,
    containers: HashMap<String, (i32, Arc<Instance>)>,
    /// Limits that were set after a container was created.
    resized: HashMap<String, Limits>,
}

impl SnapshotReader {
    /// Creates a reader with an empty cache. `clock` is used to convert end times. The first address of each pod is of the same IP family
    /// as `node`, the node's primary address.
    pub fn new(clock: Arc<dyn Clock>, node: Option<IpAddr>) -> Self {
        Self {
            clock,
            prefers_ipv6: node.is_some_and(|ip| ip.is_ipv6()),
            sandboxes: HashMap::new(),
            containers: HashMap::new(),
            resized: HashMap::new(),
        }
    }
    /// Records new limits of a container, because its state does not show that they changed. The container is read again the next time; if
    /// the runtime does not report limits, these are used.
    pub fn resized(&mut self, id: &str, limits: Limits) {
        self.containers.remove(id);
        self.resized.insert(id.to_owned(), limits);
    }
    /// Reads the state of the pod with this UID.
    pub async fn read(&mut self, runtime: &dyn Runtime, uid: &str) -> CriResult<RuntimePod> {
        let selector: BTreeMap<String, String> = [(labels::POD_UID.to_owned(), uid.to_owned())].into();
        let filter = cri::PodSandboxFilter { label_selector: selector.clone(), ..Default::default() };
        let sandboxes = runtime.list_pod_sandbox(Some(filter)).await?;
        let filter = cri::ContainerFilter { label_selector: selector, ..Default::default() };
        let containers = runtime.list_containers(Some(filter)).await?;
        self.resolve(runtime, sandboxes, containers).await
    }

    async fn resolve(
        &mut self,
        runtime: &dyn Runtime,
        sandboxes: Vec<cri::PodSandbox>,
        containers: Vec<cri::Container>,
    ) -> CriResult<RuntimePod> {
        let mut pod = RuntimePod::default();
        for s in &sandboxes {
            pod.name = s.labels.get(labels::POD_NAME).cloned().unwrap_or_default();
            pod.namespace = s.labels.get(labels::POD_NAMESPACE).cloned().unwrap_or_default();
            match self.sandboxes.get(&s.id).filter(|(state, _)| *state == s.state) {
                Some((_, known)) => pod.sandboxes.push(known.clone()),
                None => match runtime.pod_sandbox_status(&s.id, false).await {
                    Ok(answer) => {
                        let read = sandbox(s, answer.status.unwrap_or_default(), self.prefers_ipv6);
                        self.sandboxes.insert(s.id.clone(), (s.state, read.clone()));
                        pod.sandboxes.push(read);
                    }
                    // The sandbox was removed after the list was read.
                    Err(e) if e.is_not_found() => {}
                    Err(e) => return Err(e),
                },
            }
        }
        for c in &containers {
            match self.containers.get(&c.id).filter(|(state, _)| *state == c.state) {
                Some((_, known)) => pod.containers.push(Arc::clone(known)),
                None => match runtime.container_status(&c.id, false).await {
                    Ok(answer) => {
                        let status = answer.status.unwrap_or_default();
                        let state = status.state;
                        let mut read = instance(&c.pod_sandbox_id, status).await;
                        read.ended = (read.state == State::Exited).then(|| ended(read.finished_at, self.clock.now()));
                        read.limits =
                            read.limits.or_else(|| self.resized.get(&c.id).copied()).or_else(|| as_made(&read));
                        let read = Arc::new(read);
                        self.containers.insert(c.id.clone(), (state, Arc::clone(&read)));
                        pod.containers.push(read);
                    }
                    Err(e) if e.is_not_found() => {}
                    Err(e) => return Err(e),
                },
            }
        }
        self.sandboxes.retain(|id, _| sandboxes.iter().any(|s| s.id == *id));
        self.containers.retain(|id, _| containers.iter().any(|c| c.id == *id));
        self.resized.retain(|id, _| self.containers.contains_key(id));
        pod.sort();
        Ok(pod)
    }
}

/// Converts an end time to the monotonic clock. Called once, when the end is first seen, because the wall clock may be changed later.
fn ended(finished_at: i64, now: Timestamp) -> Instant {
    let ago = Duration::try_from(now.duration_since(timestamp(finished_at))).unwrap_or_default();
    let now = Instant::now();
    now.checked_sub(ago).unwrap_or(now)
}

fn sandbox(listed: &cri::PodSandbox, status: cri::PodSandboxStatus, prefers_ipv6: bool) -> Sandbox {
    let network = status.network.unwrap_or_default();
    let additional = network.additional_ips.iter().map(|i| i.ip.as_str());
    let ips = of_both_families(std::iter::once(network.ip.as_str()).chain(additional), prefers_ipv6);
    Sandbox {
        id: listed.id.clone(),
        attempt: listed.metadata.as_ref().map_or(0, |m| m.attempt),
        ready: status.state == cri::PodSandboxState::SandboxReady as i32,
        created_at: listed.created_at,
        ips,
    }
}

/// Returns the first address of each IP family in canonical form (upstream: `sortPodIPs`).
fn of_both_families<'a>(reported: impl Iterator<Item = &'a str>, prefers_ipv6: bool) -> Vec<String> {
    let known: Vec<IpAddr> = reported.filter_map(|ip| ip.parse().ok()).map(|ip: IpAddr| ip.to_canonical()).collect();
    let first = |ipv6: bool| known.iter().find(|ip| ip.is_ipv6() == ipv6);
    [first(prefers_ipv6), first(!prefers_ipv6)].into_iter().flatten().map(ToString::to_string).collect()
}

/// Maximum length of a termination message in bytes, as in upstream.
const MESSAGE_MAX: usize = 4096;
/// Lines and bytes of the log that are used as a termination message.
const FALLBACK: (u64, u64) = (80, 2048);

/// Returns the termination message of an ended container: the content of its file, or the end of its log if the policy says so.
fn termination_message(i: &Instance) -> Option<String> {
    use std::io::Read as _;
    let mut text = Vec::new();
    if !i.termination_file.is_empty() {
        let file = crate::logs::read::open(Path::new(&i.termination_file)).ok();
        // The container wrote the file, so read no more than the maximum.
        file.and_then(|f| f.take(MESSAGE_MAX as u64).read_to_end(&mut text).ok());
    }
    let falls_back = i.annotations.get(labels::TERMINATION_POLICY).is_some_and(|p| p == "FallbackToLogsOnError");
    if text.is_empty() && falls_back && i.exit_code != 0 {
        return crate::logs::read::tail(Path::new(&i.log_path), FALLBACK.0, FALLBACK.1).ok();
    }
    Some(String::from_utf8_lossy(&text).into_owned()).filter(|t| !t.is_empty())
}

/// Returns the limits at creation. After a restart of the kubelet they may be outdated and are then applied once more.
fn as_made(i: &Instance) -> Option<Limits> {
    i.annotations.get(labels::LIMITS).and_then(|text| serde_json::from_str(text).ok())
}

async fn instance(sandbox_id: &str, s: cri::ContainerStatus) -> Instance {
    let mut out = bare(sandbox_id, s);
    if out.state == State::Exited {
        let ended = out.clone();
        if let Ok(Some(message)) = FILES.run(move || termination_message(&ended)).await {
            out.message = message;
        }
    }
    out
}

fn bare(sandbox_id: &str, s: cri::ContainerStatus) -> Instance {
    let state = match cri::ContainerState::try_from(s.state) {
        Ok(cri::ContainerState::ContainerCreated) => State::Created,
        Ok(cri::ContainerState::ContainerRunning) => State::Running,
        Ok(cri::ContainerState::ContainerExited) => State::Exited,
        _ => State::Unknown,
    };
    let annotation = |key: &str| s.annotations.get(key).cloned().unwrap_or_default();
    let restart_count = annotation(labels::RESTART_COUNT).parse().ok();
    let attempt = s.metadata.as_ref().map_or(0, |m| i32::try_from(m.attempt).unwrap_or(i32::MAX));
    let path = annotation(labels::TERMINATION_PATH);
    let path = if path.is_empty() { "/dev/termination-log" } else { &path };
    let mount = s.mounts.iter().find(|m| m.container_path == path);
    let recursive = s.mounts.iter().filter(|m| m.recursive_read_only);
    Instance {
        name: s.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
        sandbox_id: sandbox_id.to_owned(),
        state,
        restart_count: restart_count.unwrap_or(attempt),
        hash: annotation(labels::HASH),
        image: s.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
        image_id: s.image_ref.clone(),
        created_at: s.created_at,
        started_at: s.started_at,
        finished_at: s.finished_at,
        ended: None,
        exit_code: s.exit_code,
        reason: s.reason.clone(),
        message: s.message.clone(),
        log_path: s.log_path.clone(),
        termination_file: mount.map(|m| m.host_path.clone()).unwrap_or_default(),
        recursive_read_only: recursive.map(|m| m.container_path.clone()).collect(),
        annotations: s.annotations.clone(),
        user: s.user.and_then(|u| u.linux),
        limits: s.resources.as_ref().and_then(|r| r.linux.as_ref()).map(Limits::from_runtime),
        id: s.id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_nodes_family_is_the_first() {
        let reported = ["10.0.0.5", "", "FD00::5", "10.0.0.6", "fd00::6"];
        assert_eq!(of_both_families(reported.into_iter(), false), ["10.0.0.5", "fd00::5"]);
        assert_eq!(of_both_families(reported.into_iter(), true), ["fd00::5", "10.0.0.5"]);
        assert_eq!(of_both_families(["::ffff:10.0.0.7"].into_iter(), true), ["10.0.0.7"], "one is better than none");
        assert!(of_both_families([""].into_iter(), false).is_empty(), "a sandbox without a network");
    }

    #[test]
    fn instances_are_ordered_correctly_after_the_clock_was_set_back() {
        let of = |attempt: u32, created_at: i64| {
            let metadata = Some(cri::ContainerMetadata { name: "c".into(), attempt });
            let labels = BTreeMap::from([(labels::CONTAINER_NAME.to_owned(), "c".to_owned())]);
            Arc::new(bare("s", cri::ContainerStatus { metadata, labels, created_at, ..Default::default() }))
        };
        let mut pod = RuntimePod { containers: vec![of(0, 7200), of(1, 3600), of(2, 3600)], ..RuntimePod::default() };
        pod.sort();
        assert_eq!(pod.latest("c").map(|c| c.restart_count), Some(2));
    }
}
