//! Takes back what containerd and its shims made on the host.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_tasks::FILES;
use tokio::time::Instant;

use super::config::find_program;
use super::supervisor::adopt_or_start;
use super::{ContainerdConfig, ContainerdError, shims};
use crate::{CriClient, Limits, Runtime as _};

/// How long containers that are being started have to come to an end, and between looks whether they have.
const STARTS_MAX: Duration = Duration::from_secs(30);
const STARTS_PAUSE: Duration = Duration::from_secs(1);

/// Removes every pod of this data directory with its containers and network (so it goes before `kelson_net::cleanup`,
/// which takes the plugin away), ends containerd and the shims it no longer knows of, and unmounts what is left mounted
/// below. Goes on past errors and returns them all as sentences; empty means clean. Files are left, but for containerd's
/// state, which describes what runs.
pub async fn cleanup(data_dir: &Path) -> Vec<String> {
    let mut errors = Vec::new();
    let config = match ContainerdConfig::new(data_dir) {
        Ok(config) => config,
        Err(e) => return vec![e.to_string()],
    };
    // Never used, or cleaned before.
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

async fn remove_pods(config: &ContainerdConfig, errors: &mut Vec<String>) -> Result<(), ContainerdError> {
    let found = FILES.run(|| find_program("containerd", "containerd")).await;
    let program = found.map_err(ContainerdError::lane("look for containerd"))??;
    let mut process = adopt_or_start(config, &program, false).await?;
    let client = CriClient::new(&config.endpoint(), Limits::default()).map_err(ContainerdError::call("connect"))?;
    match client.list_pod_sandbox(None).await {
        Ok(pods) => {
            let remove = async |id: &str| {
                let stopped = client.stop_pod_sandbox(id).await;
                client.remove_pod_sandbox(id).await?;
                stopped
            };
            let ids = pods.into_iter().map(|pod| pod.id).collect();
            errors.extend(removed(ids, remove).await);
        }
        Err(e) => errors.push(format!("list sandboxes: {e}")),
    }
    process.stop().await;
    Ok(())
}

/// Removes all of these. A container that was being started when its node ended cannot be removed before its start has come to an
/// end; what could not be removed is tried again for a while, and what fails at last is told.
async fn removed<E: std::fmt::Display>(
    mut ids: Vec<String>,
    remove: impl AsyncFn(&str) -> Result<(), E>,
) -> Vec<String> {
    let end = Instant::now() + STARTS_MAX;
    loop {
        let (mut left, mut errors) = (Vec::new(), Vec::new());
        for id in ids {
            if let Err(e) = remove(&id).await {
                errors.push(format!("sandbox {id}: {e}"));
                left.push(id);
            }
        }
        if left.is_empty() || Instant::now() + STARTS_PAUSE > end {
            return errors;
        }
        tokio::time::sleep(STARTS_PAUSE).await;
        ids = left;
    }
}

fn unmount_below(dir: &Path) -> Vec<String> {
    let unmount = |target: PathBuf| {
        let done = rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH);
        done.err().map(|e| format!("unmount {}: {e}", target.display()))
    };
    crate::mounts::below(dir).into_iter().filter_map(unmount).collect()
}

/// Bundles of shims that were ended would make the next containerd look for them.
fn remove_state(state: PathBuf) -> Option<String> {
    // What could not be unmounted must not be emptied.
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
        assert_eq!(begun.elapsed(), STARTS_MAX);
    }
}
