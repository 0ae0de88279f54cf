//! Removes what containerd and its shims created on the host.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use kelson_tasks::FILES;
use tokio::time::Instant;

use super::programs::find_program;
use super::supervisor::adopt_or_start;
use super::{ContainerdConfig, ContainerdError, shims};
use crate::proto::PodSandbox;
use crate::{CriClient, Limits, Runtime as _};

/// The time for which containerd has to remove pods: containers that are being started are ready by then. The pause is between
/// attempts.
const WILLING_MAX: Duration = Duration::from_secs(30);
const WILLING_PAUSE: Duration = Duration::from_secs(1);
/// The time limit for one pod. containerd waits for a container that does not end as long as its caller does.
const POD_MAX: Duration = Duration::from_secs(15);
/// The number of pods removed concurrently.
const PODS_AT_ONCE: usize = 4;

/// Removes every pod of this data directory with its containers and network (so it runs before `kelson_net::cleanup`,
/// which removes the plugin), stops containerd and the shims it no longer knows, and unmounts what is still mounted
/// below. Continues after errors and returns them as sentences; empty means success. Files are kept, except
/// containerd's state, which describes running processes.
pub async fn cleanup(data_dir: &Path) -> Vec<String> {
    let mut errors = Vec::new();
    let config = match ContainerdConfig::new(data_dir) {
        Ok(config) => config,
        Err(e) => return vec![e.to_string()],
    };
    // Never used, or cleaned up before.
    if config.file().exists()
        && let Err(e) = remove_pods(&config, &mut errors).await
    {
        errors.push(e.to_string());
    }
    errors.extend(shims::end_all(&config).await);
    let dir = config.dir();
    let rest = FILES.run(move || {
        let mut errors = unmount_below(&dir);
        errors.extend(remove_state(dir.join("state")));
        errors
    });
    errors.extend(rest.await.unwrap_or_else(|e| vec![e.to_string()]));
    errors
}

/// Removes the pods for which `is_own` is true from a runtime that this program did not start, and no others. Continues
/// after errors and returns them as sentences; empty means success.
pub async fn remove_from_runtime(endpoint: &str, is_own: impl Fn(&PodSandbox) -> bool) -> Vec<String> {
    let fail = |e: &dyn std::fmt::Display| {
        vec![format!(
            "container runtime {endpoint}: {e}; its pods are not removed; give another endpoint with --container-runtime-endpoint"
        )]
    };
    let client = match CriClient::new(endpoint, Limits { request: POD_MAX }) {
        Ok(client) => client,
        Err(e) => return fail(&e),
    };
    match client.list_pod_sandbox(None).await {
        Ok(pods) => {
            let own = pods.into_iter().filter(|pod| is_own(pod)).map(|pod| pod.id).collect();
            remove_all(&client, own).await
        }
        Err(e) => fail(&e),
    }
}

async fn remove_pods(config: &ContainerdConfig, errors: &mut Vec<String>) -> Result<(), ContainerdError> {
    let found = FILES.run(|| find_program("containerd", "containerd")).await;
    let program = found.map_err(ContainerdError::lane("look for containerd"))??;
    let by_containerd = async || remove_listed(config, &program).await;
    errors.extend(willing_then_forced(by_containerd, async || shims::end_all(config).await).await?);
    Ok(())
}

/// Removes the remaining pods. Those that cannot be removed are killed and tried once more: a containerd that starts
/// and finds a pod without its shim only has records and the network to remove. Returns the pods that remain.
async fn willing_then_forced<E>(
    remove: impl AsyncFn() -> Result<Vec<String>, E>,
    end: impl AsyncFn() -> Vec<String>,
) -> Result<Vec<String>, E> {
    let left = remove().await?;
    if left.is_empty() {
        return Ok(left);
    }
    for error in left {
        tracing::warn!(error, "containerd failed to remove a pod; killing its processes");
    }
    // Remaining processes are reported by the search for shims at the end.
    end().await;
    remove().await
}

/// Removes all pods that containerd knows, and stops it; returns which remain.
async fn remove_listed(config: &ContainerdConfig, program: &Path) -> Result<Vec<String>, ContainerdError> {
    let mut process = adopt_or_start(config, program, false).await?;
    let limits = Limits { request: POD_MAX };
    let client = CriClient::new(&config.endpoint(), limits).map_err(ContainerdError::call("connect"))?;
    let left = match client.list_pod_sandbox(None).await {
        Ok(pods) => remove_all(&client, pods.into_iter().map(|pod| pod.id).collect()).await,
        Err(e) => vec![format!("list sandboxes: {e}")],
    };
    process.stop().await;
    Ok(left)
}

async fn remove_all(client: &CriClient, ids: Vec<String>) -> Vec<String> {
    let remove = async |id: &str| {
        let stopped = client.stop_pod_sandbox(id).await;
        client.remove_pod_sandbox(id).await?;
        stopped
    };
    removed(ids, remove).await
}

/// Removes all of these pods. A container that was being started when its node ended cannot be removed before its start
/// has completed; failures are retried for a while, and the last ones are returned.
async fn removed<E: std::fmt::Display>(
    mut ids: Vec<String>,
    remove: impl AsyncFn(&str) -> Result<(), E>,
) -> Vec<String> {
    let end = Instant::now() + WILLING_MAX;
    let one = async |id: &str| {
        let limit = end.min(Instant::now() + POD_MAX);
        match tokio::time::timeout_at(limit, remove(id)).await {
            Ok(done) => done.map_err(|e| format!("sandbox {id}: {e}")),
            Err(_) => Err(format!("sandbox {id}: timed out removing it")),
        }
    };
    loop {
        let tries = futures::stream::iter(ids).map(|id| {
            let one = &one;
            async move { one(&id).await.map_err(|e| (id, e)) }
        });
        let tried: Vec<_> = tries.buffered(PODS_AT_ONCE).collect().await;
        let (left, errors): (Vec<_>, Vec<_>) = tried.into_iter().filter_map(Result::err).unzip();
        if left.is_empty() || Instant::now() + WILLING_PAUSE > end {
            return errors;
        }
        tokio::time::sleep(WILLING_PAUSE).await;
        ids = left;
    }
}

fn unmount_below(dir: &Path) -> Vec<String> {
    let unmount = |target: PathBuf| {
        // A part of the path that was replaced by a link must not lead to another mount.
        let flags = rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::NOFOLLOW;
        let done = rustix::mount::unmount(&target, flags);
        done.err().map(|e| format!("unmount {}: {e}", target.display()))
    };
    crate::mounts::below(dir).into_iter().filter_map(unmount).collect()
}

/// Removes containerd's state: the next containerd would search for shims that were killed.
fn remove_state(state: PathBuf) -> Option<String> {
    // A directory with a mount must not be emptied.
    if !crate::mounts::below(&state).is_empty() {
        return None;
    }
    match std::fs::remove_dir_all(&state) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Some(format!("remove {}: {e}", state.display())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test(start_paused = true)]
    async fn what_is_being_started_is_waited_for() {
        let tries = Mutex::new(Vec::new());
        let remove = async |id: &str| {
            let mut tries = tries.lock().expect("lock");
            tries.push(id.to_owned());
            let starting = match id {
                "a" => tries.iter().filter(|t| *t == "a").count() < 3,
                id => id == "c",
            };
            if starting { Err("container is in starting state") } else { Ok(()) }
        };
        assert_eq!(removed(vec!["a".into(), "b".into()], remove).await, Vec::<String>::new());
        assert_eq!(tries.lock().expect("lock").concat(), "abaa");
        let begun = Instant::now();
        assert_eq!(removed(vec!["c".into()], remove).await, ["sandbox c: container is in starting state"]);
        assert_eq!(begun.elapsed(), WILLING_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_never_ends_does_not_delay_others() {
        let gone = Mutex::new(Vec::new());
        let remove = async |id: &str| {
            if id.starts_with("stuck") {
                std::future::pending::<()>().await;
            }
            gone.lock().expect("lock").push(id.to_owned());
            Ok::<_, String>(())
        };
        let ids = ["stuck1", "stuck2", "stuck3", "stuck4", "a", "b"].map(str::to_owned).to_vec();
        let begun = Instant::now();
        let errors = removed(ids, remove).await;
        assert_eq!(begun.elapsed(), WILLING_MAX, "bounded, however many of them there are");
        assert_eq!(errors, [1, 2, 3, 4].map(|n| format!("sandbox stuck{n}: timed out removing it")));
        assert_eq!(*gone.lock().expect("lock"), ["a", "b"]);
    }

    #[tokio::test]
    async fn what_does_not_go_is_ended_by_force_and_tried_once_more() {
        for (rounds, forced, left) in
            [(&[&[][..]][..], 0, &[][..]), (&[&["a"], &[]], 1, &[]), (&[&["a", "b"], &["b"]], 1, &["b"])]
        {
            let (round, force) = (Mutex::new(0), Mutex::new(0));
            let remove = async || {
                let mut round = round.lock().expect("lock");
                *round += 1;
                Ok::<_, String>(rounds[*round - 1].iter().map(|s| (*s).to_owned()).collect())
            };
            let end = async || {
                *force.lock().expect("lock") += 1;
                Vec::new()
            };
            assert_eq!(willing_then_forced(remove, end).await.expect("no fault of its own"), left);
            assert_eq!((*round.lock().expect("lock"), *force.lock().expect("lock")), (rounds.len(), forced));
        }
    }
}
