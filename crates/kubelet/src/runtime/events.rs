//! Detects changes in the runtime. It uses event streams (CRI's, or containerd's own) and compares lists of all pods: often while there are
//! no events, rarely while there are (upstream: `pkg/kubelet/pleg`).
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::uri::PathAndQuery;
use kelson_cri::{CriResult, Runtime};
use kelson_tasks::Tasks;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic_prost::ProstCodec;

use super::labels;

/// Interval of lists without an event stream, and so the maximum delay until the end of a container is noticed.
const PERIOD_BLIND: Duration = Duration::from_secs(1);
/// Interval of lists with an event stream, or without any pod.
const PERIOD_QUIET: Duration = Duration::from_secs(10);
/// Delays of the lists after an event. The runtime's state lags behind its events: containerd shows a container as running until its shim
/// has been deleted, which takes some tens of milliseconds, more on a loaded machine.
const AFTER_EVENT: [Duration; 8] = [
    Duration::from_millis(10),
    Duration::from_millis(15),
    Duration::from_millis(25),
    Duration::from_millis(40),
    Duration::from_millis(60),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(1000),
];
/// Capacity of the event channel. Further events can be dropped, because a pending event already triggers a list.
const EVENTS_MAX: usize = 64;
/// Delay before an event stream is opened again.
const STREAM_RETRY: Duration = Duration::from_secs(5);

/// A pod in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// UID of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
}

/// Compares consecutive lists of all pods.
#[derive(Debug, Default)]
pub struct Relist {
    known: HashMap<String, BTreeMap<String, i32>>,
}

impl Relist {
    /// Lists all pods. Returns the current pods by UID, and the UIDs of those that differ from the previous list.
    pub async fn once(&mut self, runtime: &dyn Runtime) -> CriResult<(HashMap<String, RunningPod>, HashSet<String>)> {
        let sandboxes = runtime.list_pod_sandbox(None).await?;
        let containers = runtime.list_containers(None).await?;
        let mut now: HashMap<String, BTreeMap<String, i32>> = HashMap::new();
        let mut there: HashMap<String, RunningPod> = HashMap::new();
        let sandbox = sandboxes.into_iter().map(|s| (s.id, s.state, s.labels));
        let container = containers.into_iter().map(|c| (c.id, c.state, c.labels));
        for (id, state, labels) in sandbox.chain(container) {
            let get = |key: &str| labels.get(key).cloned().unwrap_or_default();
            let uid = get(labels::POD_UID);
            if uid.is_empty() {
                // Sandboxes without the label were not created by a kubelet.
                continue;
            }
            there.entry(uid.clone()).or_insert_with(|| RunningPod {
                uid: uid.clone(),
                name: get(labels::POD_NAME),
                namespace: get(labels::POD_NAMESPACE),
            });
            now.entry(uid).or_default().insert(id, state);
        }
        let changed = now.iter().filter(|(uid, m)| self.known.get(*uid) != Some(*m)).map(|(uid, _)| uid.clone());
        let gone = self.known.keys().filter(|uid| !now.contains_key(*uid)).cloned();
        let changed = changed.chain(gone).collect();
        self.known = now;
        Ok((there, changed))
    }

    /// Returns whether the runtime has no pod.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// A notification about pods in the runtime.
#[derive(Debug)]
pub enum RuntimeNotice {
    /// All pods, sent once at start.
    Initial(Vec<RunningPod>),
    /// This pod changed; its state in the runtime, or `None` if it is gone.
    Changed(String, Option<RunningPod>),
}

/// Watches until the task is aborted. `relisted` receives the duration of each list.
pub async fn watch(
    tasks: Tasks,
    runtime: Arc<dyn Runtime>,
    endpoint: String,
    mut relisted: impl FnMut(Duration) + Send,
    mut notify: impl FnMut(RuntimeNotice) + Send,
) {
    let (to, mut events) = mpsc::channel::<StreamEvent>(EVENTS_MAX);
    let _stream = tasks.scoped("runtime-events", stream(Arc::clone(&runtime), endpoint, to));
    let mut relist = Relist::default();
    let mut first = true;
    let mut streams = false;
    let mut after: &[Duration] = &[];
    loop {
        let began = tokio::time::Instant::now();
        match relist.once(&*runtime).await {
            Ok((there, changed)) => {
                relisted(began.elapsed());
                if std::mem::take(&mut first) {
                    notify(RuntimeNotice::Initial(there.values().cloned().collect()));
                }
                for uid in changed {
                    let now = there.get(&uid).cloned();
                    notify(RuntimeNotice::Changed(uid, now));
                }
            }
            Err(e) => tracing::warn!(error = %e, "listing the runtime's pods failed; retrying"),
        }
        let pause = match after.split_first() {
            Some((next, rest)) => {
                after = rest;
                *next
            }
            None if streams || relist.is_empty() => PERIOD_QUIET,
            None => PERIOD_BLIND,
        };
        match tokio::time::timeout(pause, events.recv()).await {
            Ok(Some(StreamEvent::Changed)) => {
                // Wait for the rest of a burst of events.
                tokio::time::sleep(AFTER_EVENT[0]).await;
                while let Ok(n) = events.try_recv() {
                    streams = !matches!(n, StreamEvent::Lost);
                }
                after = &AFTER_EVENT[1..];
            }
            Ok(Some(StreamEvent::Connected)) => streams = true,
            Ok(Some(StreamEvent::Lost)) => streams = false,
            Ok(None) => {
                streams = false;
                tokio::time::sleep(pause).await;
            }
            Err(_) => {}
        }
    }
}

#[derive(Debug)]
enum StreamEvent {
    Connected,
    Changed,
    Lost,
}

async fn stream(runtime: Arc<dyn Runtime>, endpoint: String, to: mpsc::Sender<StreamEvent>) {
    loop {
        match runtime.container_events().await {
            Ok(mut events) => {
                let _ = to.send(StreamEvent::Connected).await;
                while let Some(Ok(_)) = events.next().await {
                    // If the channel is full, it already has a pending change.
                    let _ = to.try_send(StreamEvent::Changed);
                }
            }
            Err(e) => {
                tracing::debug!(error = %e, "the runtime has no CRI event stream; trying containerd's events");
                if !endpoint.is_empty()
                    && let Err(e) = containerd(&endpoint, &to).await
                {
                    tracing::debug!(error = %e, "the runtime has no containerd event stream; polling");
                }
            }
        }
        if to.send(StreamEvent::Lost).await.is_err() {
            return;
        }
        tokio::time::sleep(STREAM_RETRY).await;
    }
}

/// `containerd.services.events.v1.SubscribeRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

/// `containerd.services.events.v1.Envelope`, without its timestamp.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    topic: String,
    #[prost(message, optional, tag = "4")]
    event: Option<AnyEvent>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyEvent {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The first fields of `containerd.events.TaskExit`.
#[derive(Clone, PartialEq, prost::Message)]
struct TaskExit {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    id: String,
}

/// Subscribes to containerd's own events: containerd before 1.7 has no CRI events.
async fn containerd(endpoint: &str, to: &mpsc::Sender<StreamEvent>) -> Result<(), String> {
    let path = endpoint.trim_start_matches("unix://");
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{path}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|e| e.to_string())?;
    let filters =
        ["/tasks/start", "/tasks/exit", "/tasks/oom"].map(|t| format!("namespace==k8s.io,topic==\"{t}\"")).to_vec();
    let path = PathAndQuery::from_static("/containerd.services.events.v1.Events/Subscribe");
    let codec = ProstCodec::<SubscribeRequest, Envelope>::default();
    let answer = grpc.server_streaming(tonic::Request::new(SubscribeRequest { filters }), path, codec).await;
    let mut events = answer.map_err(|s| s.to_string())?.into_inner();
    let _ = to.send(StreamEvent::Connected).await;
    while let Some(event) = events.next().await {
        let event = event.map_err(|s| s.to_string())?;
        if !is_exec(&event) {
            let _ = to.try_send(StreamEvent::Changed);
        }
    }
    Ok(())
}

/// Returns whether the event is about an exec process and not the container itself; each exec probe creates such events.
fn is_exec(event: &Envelope) -> bool {
    let Some(any) = event.event.as_ref().filter(|_| event.topic == "/tasks/exit") else { return false };
    TaskExit::decode(any.value.as_slice()).is_ok_and(|e| !e.id.is_empty() && e.id != e.container_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_exits_are_not_pod_changes() {
        let event = |id: &str| Envelope {
            namespace: "k8s.io".into(),
            topic: "/tasks/exit".into(),
            event: Some(AnyEvent {
                type_url: "containerd.events.TaskExit".into(),
                value: TaskExit { container_id: "c".into(), id: id.into() }.encode_to_vec(),
            }),
        };
        assert!(is_exec(&event("x")) && !is_exec(&event("c")));
    }
}
