//! Events of one pod's worker, the steps that its executor reports, and the initial state of a worker. Sources do not queue events: they
//! replace the state in a [`WorkerInbox`], so that memory does not grow with the rate of changes.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::admit::Rejection;
use super::resize::{Granted, ResizePending};
use crate::cgroups::resources::Limits;
use crate::images::error::StartError;
use crate::placement::cpus::PlacementRefusal;
use crate::probes::ProbeKind;
use crate::volumes::PodVolumes;

/// Capacity of the channel from an executor to its worker. The executor waits when the channel is full.
pub const STEPS_MAX: usize = 16;

/// Progress of an executor.
#[derive(Debug)]
pub enum Step {
    /// Directories, cgroups and volumes of the pod are ready.
    Prepared(PodVolumes),
    /// Directories, cgroups or volumes could not be prepared; the whole pod waits. The value is the error.
    NotPrepared(String),
    /// The node cannot assign the exclusive resources or devices of the pod; the pod fails.
    Refused(PlacementRefusal),
    /// The sandbox could not be created. The value is the error.
    SandboxFailed(String),
    /// The state of the runtime changed.
    Changed,
    /// A container was removed to restart its pod.
    Removed {
        /// Name of the container in the pod.
        name: String,
        /// When the container ended, if its restart rule caused the restart.
        ended: Option<Instant>,
    },
    /// A container was started.
    Started {
        /// Name of the container in the pod.
        name: String,
        /// When the previous instance ended.
        restarted_after: Option<Instant>,
    },
    /// A container could not be started.
    StartFailed {
        /// Name of the container in the pod.
        name: String,
        /// The reason and message of the failure.
        error: StartError,
        /// When the previous instance ended.
        restarted_after: Option<Instant>,
    },
    /// The pod and these containers have the granted resources, or the resize failed after some of them.
    Resized {
        /// IDs of the containers that were updated, and their new limits.
        held: Vec<(String, Limits)>,
        /// Why the resize failed, if it did.
        error: Option<String>,
    },
}

/// Initial state of a worker.
#[derive(Clone, Debug)]
pub struct WorkerStart {
    /// The pod, with the granted resources.
    pub pod: Arc<Pod>,
    /// Why the pod does not have the resources that its spec requests.
    pub deferred: Option<ResizePending>,
    /// The rejection by admission, if any.
    pub rejected: Option<Rejection>,
    /// Whether the pod was already deleted from the API.
    pub gone: bool,
    /// An eviction that was requested before the worker started.
    pub evicted: Option<Eviction>,
}

impl WorkerStart {
    /// Creates the state of an admitted pod.
    pub fn of(pod: Arc<Pod>) -> Self {
        Self { pod, deferred: None, rejected: None, gone: false, evicted: None }
    }
}

/// Request to end a pod: the node is short of a resource or shuts down, or the pod is preempted for a critical pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// `status.reason`: `Evicted`, `Terminated` or `Preempting`.
    pub reason: &'static str,
    /// Message of the status and of the event.
    pub message: String,
    /// Grace period of the containers.
    pub grace: Duration,
}

/// Everything that happened to a pod since the worker last took its events.
#[derive(Debug, Default)]
pub struct Events {
    /// Newest state of the API, with the granted resources.
    pub pod: Option<Granted>,
    /// The pod was deleted from the API.
    pub gone: bool,
    /// The state of the runtime changed.
    pub runtime: bool,
    /// A ConfigMap or Secret of the pod changed.
    pub objects: bool,
    /// Newest result of each probe, by container ID. There is one entry per probe of a running container.
    pub probes: HashMap<(String, ProbeKind), bool>,
    /// Request to evict the pod.
    pub evicted: Option<Eviction>,
}

/// Pending events of a pod for its worker. Clones share the same events.
#[derive(Clone, Debug, Default)]
pub struct WorkerInbox(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    events: Mutex<Events>,
    wake: Notify,
}

impl WorkerInbox {
    fn put(&self, put: impl FnOnce(&mut Events)) {
        put(&mut self.0.events.lock());
        self.0.wake.notify_one();
    }

    /// Records the newest state of the pod in the API, with the granted resources.
    pub fn pod(&self, pod: Granted) {
        self.put(|e| e.pod = Some(pod));
    }
    /// Records that the pod was deleted from the API.
    pub fn gone(&self) {
        self.put(|e| e.gone = true);
    }
    /// Records a change in the runtime.
    pub fn runtime(&self) {
        self.put(|e| e.runtime = true);
    }
    /// Records that a ConfigMap or Secret of the pod changed.
    pub fn objects(&self) {
        self.put(|e| e.objects = true);
    }
    /// Records that the health of a device may have changed; the worker computes the status again.
    pub fn health(&self) {
        self.put(|_| ());
    }
    /// Records the result of a probe.
    pub fn probe(&self, container_id: &str, kind: ProbeKind, ok: bool) {
        self.put(|e| {
            e.probes.insert((container_id.to_owned(), kind), ok);
        });
    }
    /// Records a request to evict the pod.
    pub fn evict(&self, eviction: Eviction) {
        self.put(|e| e.evicted = Some(eviction));
    }

    /// Takes all pending events.
    pub fn take(&self) -> Events {
        std::mem::take(&mut *self.0.events.lock())
    }
    /// Waits for an event after the last call.
    pub async fn changed(&self) {
        self.0.wake.notified().await;
    }
}
