//! Removes what is left of pods that the API and the manifests do not have: containers, directories, and logs.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kelson_meta::Backoff;
use kelson_tasks::{FILES, OnPanic};

use super::PodManager;
use crate::logs::directories;
use crate::pods::event::WorkerStart;
use crate::pods::known::PodRegistry;
use crate::pods::parts::Parts;
use crate::pods::terminate;
use crate::runtime::events::RunningPod;

/// The pauses before the directory of an unknown pod is removed again, for example because its CSI driver has not
/// registered yet.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));

impl PodManager {
    pub(super) fn end_orphan(&mut self, p: RunningPod) {
        tracing::info!(pod = %p.name, namespace = %p.namespace, uid = %p.uid, "ending a pod that the API does not know");
        self.parts.effects.metrics.lives().orphaned();
        let mut pod = Pod::default();
        pod.metadata.name = Some(p.name);
        pod.metadata.namespace = Some(p.namespace);
        pod.metadata.uid = Some(p.uid);
        pod.spec = Some(PodSpec::default());
        self.start(WorkerStart { gone: true, ..WorkerStart::of(Arc::new(pod)) }, None);
    }

    /// Ends pods that the runtime has and the API does not know, and removes directories of unknown pods.
    pub(super) async fn orphans(&mut self) {
        if !self.complete() {
            return;
        }
        let Some(found) = self.found.as_ref() else { return };
        let orphans: Vec<RunningPod> = found.values().filter(|p| !self.workers.contains_key(&p.uid)).cloned().collect();
        orphans.into_iter().for_each(|p| self.end_orphan(p));
        self.parts.claims.complete();
        self.parts.devices.retain(|uid| self.workers.contains_key(uid)).await;
        self.parts.placement.retain(|uid| self.workers.contains_key(uid)).await;
        let (pods, logs) = (self.parts.dirs.pods(), self.parts.config.pod_logs_dir.clone());
        let there = FILES.run(move || (names(&pods), directories::of_pods(&logs))).await;
        let (pods, logs) = there.unwrap_or_default();
        for uid in pods.into_iter().filter(|uid| !self.workers.contains_key(uid)) {
            if !self.leaving.insert(uid.clone()) {
                continue;
            }
            // In a separate task, so that the manager continues with other pods meanwhile.
            let removal = remove(Arc::clone(&self.parts), uid, self.known.clone());
            self.parts.tasks.spawn("orphan-removal", OnPanic::Contain, removal);
        }
        let logs = logs.into_iter().filter(|(_, uid)| !self.workers.contains_key(uid));
        let logs: Vec<PathBuf> = logs.map(|(dir, _)| dir).collect();
        if !logs.is_empty() {
            self.parts.tasks.spawn("orphan-logs", OnPanic::Contain, async move {
                for dir in logs {
                    if let Err(error) = terminate::remove_logs(dir).await {
                        tracing::warn!(%error, "cannot remove the logs of an unknown pod");
                    }
                }
            });
        }
    }
}

/// Removes the directory of an unknown pod, its cgroup and its range of user IDs. It stops when a static pod with the
/// same UID starts.
async fn remove(parts: Arc<Parts>, uid: String, known: PodRegistry) {
    let mut pause = None;
    while !known.has(&uid) {
        let Err(error) = parts.volumes.tear_down(&uid).await else {
            parts.cgroups.remove(&uid).await;
            parts.user_namespaces.forget(&uid);
            return;
        };
        tracing::warn!(uid, %error, "cannot remove the directory of an unknown pod; retrying");
        let next = RETRY.after(pause);
        pause = Some(next);
        tokio::time::sleep(next).await;
    }
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_directories_of_pods_are_log_directories() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in ["ns_pod_uid-1", "other", "a_b_c_d"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        std::fs::write(dir.path().join("ns_file_uid-2"), "").expect("write");
        std::os::unix::fs::symlink(dir.path().join("other"), dir.path().join("ns_link_uid-3")).expect("a link");
        assert_eq!(directories::of_pods(dir.path()), [(dir.path().join("ns_pod_uid-1"), "uid-1".to_owned())]);
        for name in ["ns_pod_uid-1", "ns_gone_uid-4"] {
            terminate::remove_logs(dir.path().join(name)).await.expect("nothing appears meanwhile");
        }
        assert!(directories::of_pods(dir.path()).is_empty() && dir.path().join("other").exists());
    }
}
