//! What happens to pods on this node: the events of one pod's worker, the steps of its executor, and what a worker starts
//! with. Sources do not queue events but leave the newest state in a [`WorkerInbox`], so that nothing here grows with how
//! often something changes.
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

/// Steps of one executor that its worker has not taken yet; the executor waits when it is this far ahead.
pub const STEPS_MAX: usize = 16;

/// How far the executor of a plan has come.
#[derive(Debug)]
pub enum Step {
    /// Directories, cgroup and volumes are there.
    Prepared(PodVolumes),
    /// They are not; the whole pod waits.
    NotPrepared(String),
    /// The node cannot give the pod what it wants to itself; it ends.
    Refused(PlacementRefusal),
    /// A sandbox could not be made.
    SandboxFailed(String),
    /// Something changed in the runtime.
    Changed,
    /// A container was removed for a new start of its pod.
    Removed {
        /// The container's name in the pod.
        name: String,
        /// Its end, where its rule led to the new start.
        ended: Option<Instant>,
    },
    /// A container was started.
    Started {
        /// The container's name in the pod.
        name: String,
        /// The end of the instance before.
        restarted_after: Option<Instant>,
    },
    /// A container could not be started.
    StartFailed {
        /// The container's name in the pod.
        name: String,
        /// Why it could not be started.
        error: StartError,
        /// The end of the instance before.
        restarted_after: Option<Instant>,
    },
    /// The pod and these containers (by ID) are held to what the pod was granted, or the resize failed after some of them.
    Resized {
        /// Containers that are held to other bounds now, and to which.
        held: Vec<(String, Limits)>,
        /// Why it failed.
        error: Option<String>,
    },
}

/// What a worker starts with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The pod, with the resources it was granted.
    pub pod: Arc<Pod>,
    /// Why it does not have the resources its spec wants now.
    pub deferred: Option<ResizePending>,
    /// A rejection by admission.
    pub rejected: Option<Rejection>,
    /// The object is already gone from the API.
    pub gone: bool,
    /// The pod was evicted before.
    pub evicted: Option<Eviction>,
}

impl Start {
    /// Of a pod that is welcome.
    pub fn of(pod: Arc<Pod>) -> Self {
        Self { pod, deferred: None, rejected: None, gone: false, evicted: None }
    }
}

/// A pod must go because the node is short of something, goes down itself, or has to take a pod that the system depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// `status.reason`: `Evicted`, `Terminated` or `Preempting`.
    pub reason: &'static str,
    /// The text of status and event.
    pub message: String,
    /// What its containers get to end.
    pub grace: Duration,
}

/// Everything that happened to a pod since its worker last looked.
#[derive(Debug, Default)]
pub struct Events {
    /// The API's newest state, with the resources it was granted.
    pub pod: Option<Granted>,
    /// The object is gone from the API.
    pub gone: bool,
    /// Something changed in the runtime.
    pub runtime: bool,
    /// A config map or secret it refers to changed.
    pub objects: bool,
    /// The newest result of each probe, by container ID. There are as many as running containers have probes.
    pub probes: HashMap<(String, ProbeKind), bool>,
    /// The pod is evicted.
    pub evicted: Option<Eviction>,
}

/// Where a pod's events wait for its worker; cheap to clone.
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

    /// The API has this state of the pod, and it was granted these resources.
    pub fn pod(&self, pod: Granted) {
        self.put(|e| e.pod = Some(pod));
    }
    /// The pod is gone from the API.
    pub fn gone(&self) {
        self.put(|e| e.gone = true);
    }
    /// Something changed in the runtime.
    pub fn runtime(&self) {
        self.put(|e| e.runtime = true);
    }
    /// A config map or secret of the pod changed.
    pub fn objects(&self) {
        self.put(|e| e.objects = true);
    }
    /// A device of the pod may be in another state: its status is put together again.
    pub fn health(&self) {
        self.put(|_| ());
    }
    /// A probe has this result now.
    pub fn probe(&self, container_id: &str, kind: ProbeKind, ok: bool) {
        self.put(|e| {
            e.probes.insert((container_id.to_owned(), kind), ok);
        });
    }
    /// The pod must go.
    pub fn evict(&self, eviction: Eviction) {
        self.put(|e| e.evicted = Some(eviction));
    }

    /// Takes what has happened.
    pub fn take(&self) -> Events {
        std::mem::take(&mut *self.0.events.lock())
    }
    /// Waits until something has happened since the last call.
    pub async fn changed(&self) {
        self.0.wake.notified().await;
    }
}
