//! Ends containers and pods: preStop hooks, grace periods, sidecars last, then the sandboxes. Removes the remains of a pod (upstream:
//! `kuberuntime_container.go` killContainer, `kubelet.go` SyncTerminatingPod).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{LifecycleHandler, Pod};
use kelson_client::EventType;
use kelson_cri::CriResult;
use kelson_tasks::FILES;
use kelson_traces::Span;

use super::logging;
use super::parts::Parts;
use crate::effects::PodEffects;
use crate::pod::{self, Role};
use crate::probes::{Handler, Target};
use crate::runtime::labels;
use crate::runtime::snapshot::{Instance, RuntimePod, State};

/// Minimum grace period of a container, whatever its pod has, also after the preStop hook used up the grace period (upstream:
/// `minimumGracePeriodInSeconds`).
pub const GRACE_MIN: Duration = Duration::from_secs(2);

/// The end of one container.
pub struct Kill<'a> {
    /// Runtime, hooks, events and clock.
    pub effects: &'a PodEffects,
    /// The pod of the container.
    pub pod: &'a Pod,
    /// The runtime's ID of the container.
    pub id: &'a str,
    /// Name of the container in the pod.
    pub name: &'a str,
    /// Whether the container runs, so that a hook makes sense.
    pub running: bool,
    /// The preStop handler from the container's annotation, for a pod whose object is gone.
    pub made_with: Option<&'a str>,
    /// Grace period, including the hook.
    pub grace: Duration,
}

impl<'a> Kill<'a> {
    /// Creates it from the runtime's instance.
    pub fn of(effects: &'a PodEffects, pod: &'a Pod, instance: &'a Instance, grace: Duration) -> Self {
        let running = instance.state == State::Running;
        let made_with = instance.annotations.get(labels::PRE_STOP).map(String::as_str);
        Self { effects, pod, id: &instance.id, name: &instance.name, running, made_with, grace }
    }

    /// Runs the hook and stops the container. `message` is the message of the event.
    pub async fn run(&self, message: Option<String>) {
        let left = self.announce(message).await;
        self.stop(left).await;
    }

    /// Records the event and runs the preStop hook. Returns the remaining grace period.
    pub async fn announce(&self, message: Option<String>) -> Duration {
        let role = pod::member(self.pod, self.name).map_or(Role::App, |m| m.role);
        let message = message.unwrap_or_else(|| format!("Stopping container {}", self.name));
        if self.running {
            self.effects.events.container(self.pod, role, self.name, EventType::Normal, "Killing", message);
        }
        let began = tokio::time::Instant::now();
        if self.running
            && !self.grace.is_zero()
            && let Some(hook) = self.pre_stop()
        {
            self.hook(role, &hook).await;
            return self.grace.saturating_sub(began.elapsed());
        }
        self.grace
    }

    /// Stops the container within `left`, or within the minimum grace period.
    pub async fn stop(&self, left: Duration) {
        let left = left.max(GRACE_MIN);
        if let Err(e) = self.effects.runtime.stop_container(self.id, left).await
            && !e.is_not_found()
        {
            tracing::warn!(container = %self.name, id = %self.id, error = %e, "cannot stop the container; retrying at the next sync");
        }
    }

    /// Returns the handler from the spec, or from the container's annotation if the pod's object is gone.
    fn pre_stop(&self) -> Option<Handler> {
        if let Some(m) = pod::member(self.pod, self.name) {
            return m.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()).and_then(Handler::of_hook);
        }
        let hook: LifecycleHandler = serde_json::from_str(self.made_with?).ok()?;
        Handler::of_hook(&hook)
    }

    async fn hook(&self, role: Role, handler: &Handler) {
        let ip = self.pod.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
        let target = pod::member(self.pod, self.name).map_or_else(
            || Target { container_id: self.id.to_owned(), pod_ip: ip.clone(), ports: Vec::new() },
            |m| Target::new(&m.container, self.id, &ip),
        );
        let run = self.effects.hook(self.pod, handler, &target, self.grace);
        match tokio::time::timeout(self.grace, run).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                tracing::info!(container = %self.name, why, "preStop hook failed");
                let (kind, reason, message) = (EventType::Warning, "FailedPreStopHook", "PreStopHook failed");
                self.effects.events.container(self.pod, role, self.name, kind, reason, message);
            }
            Err(_) => tracing::info!(container = %self.name, "preStop hook not completed in grace period"),
        }
    }
}

/// Ends all containers and sandboxes of a pod. What cannot be ended now is retried at the worker's next sync.
pub async fn pod(effects: PodEffects, pod: Arc<Pod>, runtime: Arc<RuntimePod>, grace: Duration) {
    let begun = tokio::time::Instant::now();
    let alive = |c: &&Arc<Instance>| matches!(c.state, State::Running | State::Created | State::Unknown);
    let role = |c: &Instance| pod::member(&pod, &c.name).map(|m| m.role);
    let (sidecars, others): (Vec<_>, Vec<_>) =
        runtime.containers.iter().filter(alive).partition(|c| role(c) == Some(Role::Sidecar));
    // All hooks start at once: sidecars run their hooks with the others but stop after them.
    let mains = others.iter().map(|c| async { Kill::of(&effects, &pod, c, grace).run(None).await });
    let announced = sidecars.iter().map(|c| async {
        let _ = Kill::of(&effects, &pod, c, grace).announce(None).await;
    });
    futures::future::join(futures::future::join_all(mains), futures::future::join_all(announced)).await;
    // Sidecars stop in reverse order within the remaining grace period.
    let order: Vec<String> =
        pod::members(&pod).filter(|m| m.role == Role::Sidecar).map(|m| m.container.name.clone()).collect();
    for name in order.iter().rev() {
        for c in sidecars.iter().filter(|c| c.name == *name) {
            let left = grace.saturating_sub(begun.elapsed());
            Kill::of(&effects, &pod, c, grace).stop(left).await;
        }
    }
    for s in runtime.sandboxes.iter().filter(|s| s.ready) {
        if let Err(e) = effects.runtime.stop_pod_sandbox(&s.id).await
            && !e.is_not_found()
        {
            tracing::warn!(sandbox = %s.id, error = %e, "cannot stop the pod sandbox; retrying at the next sync");
        }
    }
}

/// Why what is left of an ended pod could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The runtime did not remove a container or sandbox.
    #[error(transparent)]
    Runtime(#[from] kelson_cri::CriError),
    /// A file appeared in a log directory while it was removed: a rotation of the log was still compressing, or the
    /// runtime opened the log again.
    #[error("remove the logs in {}: {source}", dir.display())]
    Logs {
        /// The pod's log directory.
        dir: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Removes an ended pod's containers and sandboxes from the runtime, and its logs.
///
/// # Errors
/// [`RemoveError`]: another attempt can succeed. Log directories that cannot be removed for another reason, such as a
/// file system without writes, are only logged.
pub async fn remove(parts: &Parts, pod: &Pod, runtime: &RuntimePod) -> Result<(), RemoveError> {
    let runtime_calls = &parts.effects.runtime;
    for c in &runtime.containers {
        runtime_calls.remove_container(&c.id).await.or_else(gone)?;
        logging::unlink(parts, pod, (&c.name, &c.id)).await;
    }
    for s in &runtime.sandboxes {
        runtime_calls.stop_pod_sandbox(&s.id).await.or_else(gone)?;
        runtime_calls.remove_pod_sandbox(&s.id).await.or_else(gone)?;
    }
    remove_logs(parts.dirs.pod_logs(pod::namespace(pod), pod::name(pod), pod::uid(pod))).await
}

/// Removes a pod's log directory, if it exists.
///
/// # Errors
/// [`RemoveError::Logs`]. Other failures are only logged.
pub async fn remove_logs(dir: PathBuf) -> Result<(), RemoveError> {
    let removal = FILES.run(move || match std::fs::remove_dir_all(&dir) {
        Err(source) if source.kind() == io::ErrorKind::DirectoryNotEmpty => Err(RemoveError::Logs { dir, source }),
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), error = %e, "cannot remove the pod's logs");
            Ok(())
        }
        _ => Ok(()),
    });
    // Fails only if the process ends, or after a panic that was already reported.
    removal.await.unwrap_or(Ok(()))
}

fn gone(e: kelson_cri::CriError) -> CriResult<()> {
    if e.is_not_found() { Ok(()) } else { Err(e) }
}

/// Removes old instances: all but the newest two of each container, which the status and `logs --previous` need.
pub async fn collect(parts: &Parts, pod: &Pod, runtime: &RuntimePod) {
    let dead = |c: &Arc<Instance>| c.state != State::Running;
    let has_more = runtime.containers.iter().filter(|c| dead(c)).count() > 2 || runtime.sandboxes.len() > 1;
    // Most pods have nothing to collect, which needs no span.
    let span = if has_more { parts.effects.spans.node("Containers/GarbageCollect") } else { Span::default() };
    span.scope(remove_dead(parts, pod, runtime)).await;
}

async fn remove_dead(parts: &Parts, pod: &Pod, runtime: &RuntimePod) {
    let effects = &parts.effects;
    let mut seen: std::collections::HashMap<&str, u32> = std::collections::HashMap::new();
    for c in &runtime.containers {
        let n = seen.entry(c.name.as_str()).or_default();
        *n += 1;
        if *n <= 2 || c.state == State::Running {
            continue;
        }
        if let Err(e) = effects.runtime.remove_container(&c.id).await {
            tracing::debug!(id = %c.id, error = %e, "cannot remove an ended container");
            continue;
        }
        logging::unlink(parts, pod, (&c.name, &c.id)).await;
        let log = c.log_path.clone();
        let _ = FILES.run(move || std::fs::remove_file(log)).await;
    }
    let holds = |id: &str| runtime.containers.iter().any(|c| c.sandbox_id == id);
    for s in runtime.sandboxes.iter().skip(1).filter(|s| !s.ready && !holds(&s.id)) {
        if let Err(e) = effects.runtime.remove_pod_sandbox(&s.id).await {
            tracing::debug!(id = %s.id, error = %e, "cannot remove an ended sandbox");
        }
    }
}

/// Returns whether this process may lower OOM scores of others below its own (CAP_SYS_RESOURCE).
pub fn may_lower_oom() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        const CAP_SYS_RESOURCE: u64 = 24;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
        let bits = line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()).unwrap_or(0);
        bits & (1 << CAP_SYS_RESOURCE) != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn logs_that_appear_during_the_removal_are_removed_by_another_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        let pod = dir.path().join("pod");
        let container = pod.join("main");
        for _ in 0..100 {
            std::fs::create_dir_all(&container).expect("mkdir");
            let files = container.clone();
            // Like a rotation, it makes files and no directories, and comes to an end.
            let rotation = std::thread::spawn(move || {
                for n in 0..100 {
                    let _ = std::fs::write(files.join(format!("0.log.{n}")), "");
                }
            });
            while remove_logs(pod.clone()).await.is_err() {}
            assert!(!pod.exists());
            rotation.join().expect("no panic");
            assert!(!pod.exists());
        }
    }
}
