//! Rotates container logs by size: renames the current file, lets the runtime open a new one, and compresses older ones (upstream:
//! `pkg/kubelet/logs/container_log_manager.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kelson_cri::{Runtime, proto as cri};
use kelson_meta::Clock;
use kelson_tasks::FILES;

/// Configuration and dependencies of log rotation.
#[derive(Clone)]
pub struct LogRotation {
    /// Client of the container runtime (CRI).
    pub runtime: Arc<dyn Runtime>,
    /// Wall clock for the names of rotated files.
    pub clock: Arc<dyn Clock>,
    /// Directory of all pods' logs (`podLogsDir`).
    pub dir: PathBuf,
    /// `--container-log-max-size` in bytes.
    pub bytes_max: u64,
    /// `--container-log-max-files`: files per container, including the current one.
    pub files_max: u32,
    /// Interval at which sizes are checked (`containerLogMonitorInterval`).
    pub look_every: Duration,
    /// Maximum number of concurrent rotations (`containerLogMaxWorkers`).
    pub workers: usize,
}

impl LogRotation {
    /// Checks periodically until the task is aborted.
    pub async fn run(self) {
        loop {
            tokio::time::sleep(self.look_every).await;
            let (dir, max) = (self.dir.clone(), self.bytes_max);
            let large = FILES.run(move || large(&dir, max)).await.unwrap_or_default();
            let me = &self;
            let rotate = |path: PathBuf| async move {
                if let Err(e) = me.rotate(&path).await {
                    tracing::warn!(log = %path.display(), error = %e, "rotating a container log failed; retrying");
                }
            };
            futures::stream::iter(large).for_each_concurrent(self.workers.max(1), rotate).await;
        }
    }

    async fn rotate(&self, path: &Path) -> Result<(), String> {
        // Finds the container of this file, because the runtime reopens the log of one container.
        let containers = self.runtime.list_containers(None).await.map_err(|e| e.to_string())?;
        let mut writer = None;
        for c in containers.iter().filter(|c| c.state == cri::ContainerState::ContainerRunning as i32) {
            let name = c.metadata.as_ref().map(|m| m.name.as_str()).unwrap_or_default();
            if !path.parent().is_some_and(|d| d.ends_with(name)) {
                continue;
            }
            let status = self.runtime.container_status(&c.id, false).await.map_err(|e| e.to_string())?;
            if status.status.is_some_and(|s| Path::new(&s.log_path) == path) {
                writer = Some(c.id.clone());
            }
        }
        let Some(id) = writer else { return Ok(()) };
        let now = self.clock.now().strftime("%Y%m%d-%H%M%S").to_string();
        let aside = PathBuf::from(format!("{}.{now}", path.display()));
        rename(path, &aside).await?;
        if let Err(e) = self.runtime.reopen_container_log(&id).await {
            // Rename it back, because the runtime still writes to it.
            let _ = rename(&aside, path).await;
            return Err(e.to_string());
        }
        let path = path.to_owned();
        let keep = self.files_max.max(2) as usize;
        let tidied = FILES.run(move || tidy(&path, keep)).await;
        tidied.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }
}

async fn rename(from: &Path, to: &Path) -> Result<(), String> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let renamed = FILES.run(move || std::fs::rename(from, to)).await;
    renamed.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Returns the files `POD/CONTAINER/N.log` larger than the limit.
fn large(root: &Path, max: u64) -> Vec<PathBuf> {
    let children =
        |d: &Path| -> Vec<PathBuf> { std::fs::read_dir(d).into_iter().flatten().flatten().map(|e| e.path()).collect() };
    let containers = children(root).into_iter().flat_map(|pod| children(&pod));
    let logs = containers.flat_map(|c| children(&c)).filter(|p| p.extension().is_some_and(|e| e == "log"));
    logs.filter(|p| std::fs::symlink_metadata(p).is_ok_and(|m| m.is_file() && m.len() > max)).collect()
}

/// Compresses all rotated files except the newest, and removes the oldest beyond `keep` files, including the current one.
fn tidy(path: &Path, keep: usize) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let prefix = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut rotated: Vec<PathBuf> = std::fs::read_dir(dir)?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
        .collect();
    // Removes incomplete files of an interrupted run.
    rotated.retain(|p| p.extension().is_none_or(|e| e != "tmp") || std::fs::remove_file(p).is_err());
    rotated.sort();
    let surplus = rotated.len().saturating_sub(keep - 1);
    for old in rotated.drain(..surplus) {
        std::fs::remove_file(old)?;
    }
    rotated.pop();
    for plain in rotated.into_iter().filter(|p| p.extension().is_none_or(|e| e != "gz")) {
        let tmp = PathBuf::from(format!("{}.tmp", plain.display()));
        // A symbolic link is neither followed nor written through; it is removed.
        let Ok(mut from) = super::read::open(&plain) else {
            std::fs::remove_file(plain)?;
            continue;
        };
        let mut to = flate2::write::GzEncoder::new(File::create_new(&tmp)?, flate2::Compression::default());
        io::copy(&mut from, &mut to)?;
        to.finish()?;
        std::fs::rename(&tmp, format!("{}.gz", plain.display()))?;
        std::fs::remove_file(plain)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_some_and_compresses_the_older() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("0.log");
        for name in ["0.log", "0.log.1", "0.log.2", "0.log.3", "0.log.4", "0.log.5.tmp"] {
            std::fs::write(dir.path().join(name), "x").expect("write");
        }
        tidy(&path, 3).expect("tidy");
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .expect("dir")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["0.log", "0.log.3.gz", "0.log.4"]);
        assert_eq!(large(dir.path().parent().expect("parent"), u64::MAX), Vec::<PathBuf>::new());
    }

    #[test]
    fn links_among_logs_are_not_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let container = dir.path().join("pod/c");
        std::fs::create_dir_all(&container).expect("mkdir");
        let (path, secret) = (container.join("0.log"), dir.path().join("secret"));
        std::fs::write(&secret, "secret").expect("write");
        for name in ["0.log.1", "0.log.2.tmp", "0.log.3"] {
            std::os::unix::fs::symlink(&secret, container.join(name)).expect("a link");
        }
        std::os::unix::fs::symlink(&secret, &path).expect("a link");
        assert_eq!(large(dir.path(), 1), Vec::<PathBuf>::new(), "the size of a link does not count");
        tidy(&path, 5).expect("tidy");
        let left: Vec<_> = std::fs::read_dir(&container).expect("dir").flatten().map(|e| e.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".gz")), "{left:?}");
        assert_eq!(std::fs::read_to_string(&secret).expect("it is there"), "secret");
    }
}
