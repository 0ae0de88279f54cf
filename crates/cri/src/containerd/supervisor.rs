//! Supervises one containerd: adopts the one that an earlier server left, otherwise starts one, and restarts it with
//! back-off when it ends. Pods are not affected by a restart.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::Backoff;
use kelson_tasks::{FILES, OnPanic, Tasks};
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::{Host, Version, choose_snapshotter, chosen_snapshotter, lacks_sys_resource, render};
use super::handlers;
use super::process::{Process, log_tail, rotate_log};
use super::programs::find_program;
use super::{ContainerdConfig, ContainerdError, ImportedImage, Importer};
use crate::image::pause;
use crate::proto::{PodSandboxFilter, PodSandboxState, PodSandboxStateValue};
use crate::{CriClient, Limits, Runtime as _};

/// The time that containerd may take to answer after its start, since the last line of its log.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that containerd may take to answer, while its log grows: on a slow board it clears many dead shims first.
const READY_MAX: Duration = Duration::from_secs(300);
const READY_INTERVAL: Duration = Duration::from_millis(20);
/// The interval at which the log is checked for growth meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The back-off of restarts.
const RESTARTS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// The back-off is reset for a containerd that ran this long.
const STEADY: Duration = Duration::from_secs(60);
/// The time limit for ending the supervision: SIGTERM, SIGKILL, and some reserve.
const FINISH_MAX: Duration = Duration::from_secs(20);
/// The interval at which the size of the log is checked.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A supervised containerd. Dropping it leaves containerd running; see [`Containerd::shutdown`].
#[derive(Debug)]
pub struct Containerd {
    config: Arc<ContainerdConfig>,
    stop: watch::Sender<Stop>,
    restarts: watch::Receiver<u64>,
    tasks: Tasks,
    importer: Importer,
    kept_images: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    LeaveRunning,
    End,
}

impl Containerd {
    /// Makes containerd run with the current configuration and waits until it answers; imports the pause image and
    /// every `images/*.tar*` of the data directory that CRI does not have yet.
    ///
    /// # Errors
    /// A program is missing, or containerd does not start: then nothing is left running. An archive that cannot be
    /// imported is logged and does not stop the node.
    pub async fn start(config: ContainerdConfig, tasks: &Tasks) -> Result<Self, ContainerdError> {
        let config = Arc::new(config);
        let found = FILES.run(|| {
            find_program("containerd-shim-runc-v2", "containerd")?;
            Ok::<_, ContainerdError>((find_program("containerd", "containerd")?, find_program("runc", "runc")?))
        });
        let (program, runc) = found.await.map_err(ContainerdError::lane("look for programs"))??;
        let (changed, host) = prepare(&config, &program, runc).await?;
        let process = adopt_or_start(&config, &program, changed).await?;
        tracing::info!(
            version = format!("{}.{}", host.version.major, host.version.minor),
            snapshotter = host.snapshotter,
            socket = %config.socket().display(),
            "containerd is ready"
        );
        if host.version < Version::FIRST_WITH_CDI {
            tracing::warn!("this containerd does not support CDI devices of resource claims; use 1.7 or newer");
        }
        let importer = Importer::new(&config.endpoint()).map_err(ContainerdError::call("connect to containerd"))?;
        let (stop, stopped) = watch::channel(Stop::No);
        let (restarted, restarts) = watch::channel(0);
        let tasks = tasks.child("containerd");
        let watcher = Watcher { config: config.clone(), program, stopped, restarted };
        // Ends when it gets the instruction what to do with containerd, or its sender is dropped: not with the group,
        // which a node ends before it checks whether pods still need containerd. Without it the runtime's end would go
        // unnoticed, so a panic ends the process.
        tasks.spawn_graceful("containerd-watch", OnPanic::EndProcess, watcher.run(process));
        let mut this = Self { config, stop, restarts, tasks, importer, kept_images: Vec::new() };
        this.load_images().await?;
        Ok(this)
    }

    /// Returns the endpoint for a CRI client.
    pub fn endpoint(&self) -> String {
        self.config.endpoint()
    }

    /// Returns the names of images that came with Kelson or as archives in the data directory: they cannot be pulled
    /// again.
    pub fn kept_images(&self) -> &[String] {
        &self.kept_images
    }

    /// Counts containerd's restarts; after a change containers should be listed again.
    pub fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.clone()
    }

    /// Imports one archive; see [`Importer::import`].
    ///
    /// # Errors
    /// The archive is invalid or containerd rejects it.
    pub async fn import(&self, path: &Path) -> Result<Vec<ImportedImage>, ContainerdError> {
        self.importer.import(path).await
    }

    /// Ends the supervision. While pods run, containerd keeps running, because their output passes through it; the next
    /// [`Containerd::start`] adopts it. Without pods it is stopped.
    pub async fn shutdown(mut self) {
        let stop = match running_pods(&self.config.endpoint()).await {
            Ok(0) => Stop::End,
            // In doubt it is left running, since containers matter more.
            _ => Stop::LeaveRunning,
        };
        self.finish(stop).await;
    }

    /// Stops containerd whether pods run or not.
    pub async fn terminate(mut self) {
        self.finish(Stop::End).await;
    }

    async fn finish(&mut self, stop: Stop) {
        self.stop.send_replace(stop);
        self.tasks.shutdown(FINISH_MAX).await;
    }

    async fn load_images(&mut self) -> Result<(), ContainerdError> {
        let has = self.importer.has(&pause::name()).await.map_err(ContainerdError::call("look for the pause image"))?;
        if !has {
            let bytes = pause::archive().ok_or(ContainerdError::NoPause(std::env::consts::ARCH))?;
            let path = self.config.dir().join("pause.tar");
            let file = path.clone();
            let written = FILES.run(move || std::fs::write(file, bytes)).await;
            let what = format!("write {}", path.display());
            written.map_err(ContainerdError::lane(&what))?.map_err(ContainerdError::io(what))?;
            self.importer.import(&path).await?;
        }
        self.kept_images = super::preload::load(&self.config, &self.importer).await;
        self.kept_images.push(pause::name());
        Ok(())
    }
}

async fn running_pods(endpoint: &str) -> crate::CriResult<usize> {
    let client = CriClient::new(endpoint, Limits { request: Duration::from_secs(5) })?;
    let state = Some(PodSandboxStateValue { state: PodSandboxState::SandboxReady as i32 });
    Ok(client.list_pod_sandbox(Some(PodSandboxFilter { state, ..Default::default() })).await?.len())
}

/// Writes the configuration; returns whether it has changed.
async fn prepare(config: &ContainerdConfig, program: &Path, runc: PathBuf) -> Result<(bool, Host), ContainerdError> {
    let output = tokio::process::Command::new(program).arg("--version").output().await;
    let output = output.map_err(ContainerdError::io(format!("start {}", program.display())))?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    // An unreadable version counts as the oldest that has CRI v1.
    let version = Version::parse(&output).unwrap_or(Version { major: 1, minor: 6 });
    let config = config.clone();
    let written = FILES.run(move || write_config(&config, version, runc)).await;
    written.map_err(ContainerdError::lane("write the configuration"))?
}

fn write_config(config: &ContainerdConfig, version: Version, runc: PathBuf) -> Result<(bool, Host), ContainerdError> {
    for dir in [config.dir(), config.registry_dir(), config.cni_conf_dir.clone(), config.cni_bin_dir.clone()] {
        std::fs::create_dir_all(&dir).map_err(ContainerdError::io(format!("create {}", dir.display())))?;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let restrict_oom_score_adj = lacks_sys_resource(&status);
    if restrict_oom_score_adj {
        tracing::warn!("CAP_SYS_RESOURCE is missing; containers cannot get an oom_score_adj below this process's own");
    }
    let path = config.file();
    let now = std::fs::read_to_string(&path).unwrap_or_default();
    let snapshotter = chosen_snapshotter(&now).unwrap_or_else(|| choose_snapshotter(&config.dir()));
    let handlers = handlers::all(&handlers::own_dir(&config.dir()))?;
    let host = Host { version, runc, snapshotter, restrict_oom_score_adj, handlers };
    forget_earlier_boot(config)?;
    let wanted = render(config, &host);
    if now == wanted {
        return Ok((false, host));
    }
    std::fs::write(&path, wanted).map_err(ContainerdError::io(format!("write {}", path.display())))?;
    Ok((true, host))
}

/// Empties containerd's state directory after a reboot: it describes shims and mounts that are gone. Usually it is on a
/// tmpfs for this reason.
fn forget_earlier_boot(config: &ContainerdConfig) -> Result<(), ContainerdError> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(BOOT_ID).map_err(ContainerdError::io(format!("read {BOOT_ID}")))?;
    let (marker, state) = (config.dir().join("boot_id"), config.dir().join("state"));
    if std::fs::read_to_string(&marker).is_ok_and(|earlier| earlier == boot) {
        return Ok(());
    }
    match std::fs::remove_dir_all(&state) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(ContainerdError::io(format!("remove {}", state.display()))(e));
        }
        _ => {}
    }
    std::fs::write(&marker, boot).map_err(ContainerdError::io(format!("write {}", marker.display())))
}

/// Returns the containerd of an earlier start if it answers and has this exact configuration, else a new one.
pub(super) async fn adopt_or_start(
    config: &ContainerdConfig,
    program: &Path,
    changed: bool,
) -> Result<Process, ContainerdError> {
    let look = config.clone();
    let found =
        FILES.run(move || Process::find(&look)).await.map_err(ContainerdError::lane("look for containerd"))??;
    if let Some(mut found) = found {
        if !changed && wait_ready(config, &mut found).await.is_ok() {
            tracing::info!(pid = found.pid(), "using the running containerd of an earlier start");
            return Ok(found);
        }
        tracing::info!(pid = found.pid(), changed, "replacing the running containerd of an earlier start");
        found.stop().await;
    }
    start(config, program).await
}

async fn start(config: &ContainerdConfig, program: &Path) -> Result<Process, ContainerdError> {
    let mut process = Process::start(program, config)?;
    // Before it starts the first shim, which would stay in this process's unit.
    if let Some(scope) = &config.scope
        && let Err(error) = scope.enter(process.pid()).await
    {
        let pid = process.pid();
        tracing::warn!(pid, %error, "cannot move containerd into a scope of systemd; pods end with this unit unless it has KillMode=process");
    }
    match wait_ready(config, &mut process).await {
        Ok(()) => Ok(process),
        Err(e) => {
            process.stop().await;
            Err(e)
        }
    }
}

/// Waits until CRI answers, or returns why it does not.
async fn wait_ready(config: &ContainerdConfig, process: &mut Process) -> Result<(), ContainerdError> {
    let limits = Limits { request: Duration::from_secs(2) };
    let answers = async {
        loop {
            if config.socket().exists()
                && let Ok(client) = CriClient::new(&config.endpoint(), limits)
            {
                match client.version().await {
                    Ok(_) => return Ok(()),
                    // The socket opens when all plugins are loaded, so CRI will not be served later either.
                    Err(e) if e.is_unimplemented() => return Err("does not serve CRI v1".to_owned()),
                    Err(_) => {}
                }
            }
            tokio::time::sleep(READY_INTERVAL).await;
        }
    };
    let what = tokio::select! {
        answer = answers => match answer {
            Ok(()) => return Ok(()),
            Err(what) => what,
        },
        how = process.ended() => how,
        after = silence(|| log_length(config.log())) => format!("timed out after {} s", after.as_secs()),
    };
    Err(ContainerdError::NotReady { what, log: config.log(), tail: log_tail(&config.log()) })
}

/// Returns the length of a log in bytes; 0 if it cannot be read.
async fn log_length(log: PathBuf) -> u64 {
    FILES.run(move || std::fs::metadata(log).map_or(0, |file| file.len())).await.unwrap_or(0)
}

/// Waits until a log has not grown for [`READY_TIMEOUT`], or [`READY_MAX`] has passed; returns how long that took.
async fn silence<F: Future<Output = u64>>(length: impl Fn() -> F) -> Duration {
    let began = Instant::now();
    let (mut last, mut since) = (length().await, began);
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let now = length().await;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() >= READY_TIMEOUT || began.elapsed() >= READY_MAX {
            return began.elapsed();
        }
    }
}

struct Watcher {
    config: Arc<ContainerdConfig>,
    program: PathBuf,
    stopped: watch::Receiver<Stop>,
    restarted: watch::Sender<u64>,
}

impl Watcher {
    async fn run(mut self, mut process: Process) {
        let mut backoff = RESTARTS.base;
        loop {
            let since = Instant::now();
            let Some(how) = self.watch(&mut process).await else { return };
            if since.elapsed() >= STEADY {
                backoff = RESTARTS.base;
            }
            tracing::error!(pid = process.pid(), how, log = %self.config.log().display(), "containerd exited; restarting it");
            process = loop {
                tokio::select! {
                    () = tokio::time::sleep(backoff) => {}
                    _ = self.stopped.changed() => return,
                }
                backoff = RESTARTS.after(Some(backoff));
                match start(&self.config, &self.program).await {
                    Ok(process) => break process,
                    Err(e) => {
                        tracing::error!(error = %e, retry_in = ?backoff, "restarting containerd failed; retrying")
                    }
                }
            };
            self.restarted.send_modify(|count| *count += 1);
            tracing::info!(pid = process.pid(), "restarted containerd");
        }
    }

    /// Waits until the process ends by itself (how), or the supervision ends (`None`).
    async fn watch(&mut self, process: &mut Process) -> Option<String> {
        let mut look = tokio::time::interval(LOG_INTERVAL);
        loop {
            tokio::select! {
                // The instruction what to do with containerd has precedence over its end.
                biased;
                changed = self.stopped.changed() => {
                    if changed.is_ok() && *self.stopped.borrow() == Stop::End {
                        process.stop().await;
                    }
                    return None;
                }
                how = process.ended() => return Some(how),
                _ = look.tick() => {
                    let log = self.config.log();
                    if let Ok(Err(e)) = FILES.run(move || rotate_log(&log)).await {
                        tracing::warn!(error = %e, "rotating containerd's log failed");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Seconds until the wait ends for a log that grows during the first `grows_s` seconds.
    async fn waited(grows_s: u64) -> u64 {
        let began = Instant::now();
        let length = AtomicU64::new(0);
        let log = || {
            if began.elapsed() <= Duration::from_secs(grows_s) {
                length.fetch_add(80, Ordering::Relaxed);
            }
            std::future::ready(length.load(Ordering::Relaxed))
        };
        silence(log).await.as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_whose_log_grows_is_waited_for() {
        assert_eq!(waited(0).await, 30);
        assert_eq!(waited(60).await, 90);
        assert_eq!(waited(100_000).await, 300, "but not without end");
    }
}
