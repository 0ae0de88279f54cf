//! The shutdown's actions on a real node: logind, the pod manager, the runtime.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventType;
use kelson_cri::{Runtime, proto as cri};
use kelson_tasks::FILES;

use super::kept::{self, ShutdownTimes};
use super::{MESSAGE, Machine, ShutdownPods};
use crate::config::PodDirs;
use crate::config::shutdown::TERMINATED;
use crate::effects::EventReporter;
use crate::metrics::ShutdownMetrics;
use crate::pod;
use crate::pods::event::Eviction;
use crate::pods::inbox::ManagerInbox;
use crate::pods::known::PodRegistry;
use crate::runtime::labels;
use crate::status::writer::StatusWriter;
use crate::systemd::logind::{Logind, ShutdownLock};

/// The pods of this node.
pub struct NodePods {
    /// List of the pods.
    pub known: PodRegistry,
    /// Receives the requests to end pods.
    pub manager: ManagerInbox,
    /// Client of the runtime, to check whether pods have ended.
    pub runtime: Arc<dyn Runtime>,
    /// Writer of the pods' statuses.
    pub statuses: StatusWriter,
    /// Paths of pods' volumes.
    pub dirs: PodDirs,
    /// The kubelet's root directory, for the record of the shutdown.
    pub root_dir: PathBuf,
    /// Records events about the node.
    pub events: EventReporter,
    /// Metrics of the shutdown.
    pub metrics: ShutdownMetrics,
}

#[async_trait]
impl ShutdownPods for NodePods {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.known.list().into_iter().filter(|p| !pod::is_terminal(p)).collect()
    }

    fn end(&self, pod: &Arc<Pod>, grace: Duration) {
        self.manager.evict(pod::uid(pod), Eviction { reason: TERMINATED, message: MESSAGE.to_owned(), grace });
    }

    async fn remain(&self, pods: &[Arc<Pod>]) -> bool {
        let ready = cri::PodSandboxStateValue { state: cri::PodSandboxState::SandboxReady as i32 };
        let filter = cri::PodSandboxFilter { state: Some(ready), ..Default::default() };
        // If the runtime does not respond, the pods may still be running.
        let Ok(sandboxes) = self.runtime.list_pod_sandbox(Some(filter)).await else { return true };
        let runs = |p: &Pod| sandboxes.iter().any(|s| s.labels.get(labels::POD_UID).is_some_and(|u| u == pod::uid(p)));
        if pods.iter().any(|p| runs(p)) {
            return true;
        }
        let dirs: Vec<PathBuf> = pods.iter().map(|p| self.dirs.pod(pod::uid(p)).join("volumes")).collect();
        FILES.run(move || dirs.iter().any(|d| d.exists())).await.unwrap_or(false)
    }

    fn is_reported(&self, pods: &[Arc<Pod>]) -> bool {
        pods.iter().all(|p| self.statuses.has_ended(pod::uid(p)))
    }

    fn say(&self, what: &str) {
        self.events.node(EventType::Normal, "NodeShutdown", what);
    }

    async fn keep(&self, times: ShutdownTimes) {
        self.metrics.show(times.began, times.ended);
        let dir = self.root_dir.clone();
        if let Ok(Err(e)) = FILES.run(move || kept::write(&dir, times)).await {
            tracing::warn!(error = %e, "cannot write the record of the shutdown");
        }
    }
}

/// Connection to logind over D-Bus.
pub struct LogindMachine {
    /// Path of the bus socket.
    pub socket: PathBuf,
    logind: Option<Logind>,
    lock: Option<ShutdownLock>,
}

impl LogindMachine {
    /// Creates it without connecting.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, logind: None, lock: None }
    }
}

#[async_trait]
impl Machine for LogindMachine {
    async fn hold(&mut self, wanted: Duration) -> Result<(), String> {
        let logind = match self.logind.as_mut() {
            Some(logind) => logind,
            None => self.logind.insert(Logind::connect(&self.socket).await.map_err(|e| e.to_string())?),
        };
        logind.allow_delay(wanted).await.map_err(|e| e.to_string())?;
        self.lock = Some(logind.lock().await.map_err(|e| e.to_string())?);
        Ok(())
    }

    fn release(&mut self) {
        self.lock = None;
    }

    async fn next(&mut self) -> Result<bool, String> {
        match self.logind.as_mut() {
            Some(logind) => logind.shutdown().await.map_err(|e| e.to_string()),
            None => Err("not connected".to_owned()),
        }
    }
}
