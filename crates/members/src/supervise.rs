//! Keeps one etcd running: restarts it with a back-off when it ends, and stops it on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kelson_meta::Backoff;
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::MemberError;
use crate::layout::Layout;
use crate::log::Sign;
use crate::process::{End, Process, arguments};
use crate::program::Program;
use crate::settings::Settings;

/// The back-off of restarts.
const RESTARTS: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// The back-off is reset for an etcd that ran this long.
const STEADY: Duration = Duration::from_secs(60);
/// Ends in a row after which a first start fails.
const START_ENDS_MAX: u32 = 3;

/// The settings of a member, shared with the tasks that measure what they should be.
pub(crate) type SharedSettings = Arc<Mutex<Settings>>;

/// The report of the supervision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Restarts so far.
    pub restarts: u64,
    /// Ends since the last steady run.
    pub ends: u32,
    /// The last end.
    pub last: Option<End>,
    /// Whether the supervision is over.
    pub is_over: bool,
}

impl Report {
    /// Returns why the member cannot run, if a restart does not change that.
    pub fn failure(&self, layout: &Layout) -> Option<MemberError> {
        let last = self.last.as_ref()?;
        match last.sign {
            Some(Sign::Removed) => Some(MemberError::Removed { dir: layout.dir().to_owned() }),
            Some(Sign::StaleCluster) => Some(MemberError::StaleCluster),
            None => None,
        }
    }

    /// Returns why a first start has failed: as [`Report::failure`], or it ended several times in a row.
    pub fn start_failure(&self, layout: &Layout) -> Option<MemberError> {
        let ended = || {
            let last = self.last.clone().filter(|_| self.ends >= START_ENDS_MAX || self.is_over)?;
            Some(MemberError::Ended { what: last.how, tail: last.tail })
        };
        self.failure(layout).or_else(ended)
    }
}

/// A supervised etcd.
pub(crate) struct Supervised {
    stop: watch::Sender<bool>,
    /// Whether the start is over. Before that its caller gets a failure, and may try again; later one ends the process.
    is_started: Arc<AtomicBool>,
    report: watch::Receiver<Report>,
}

impl Supervised {
    /// Starts etcd and its supervision. Each start takes the settings of that moment.
    ///
    /// # Errors
    /// The program cannot be started.
    pub async fn start(
        program: Program,
        layout: &Layout,
        settings: &SharedSettings,
        quota_bytes: u64,
        tasks: &Tasks,
    ) -> Result<Self, MemberError> {
        let (stop, stopped) = watch::channel(false);
        let (reported, report) = watch::channel(Report::default());
        let (layout, settings) = (layout.clone(), Arc::clone(settings));
        let is_started = Arc::new(AtomicBool::new(false));
        let watcher =
            Watcher { program, layout, settings, quota_bytes, stopped, is_started: Arc::clone(&is_started), reported };
        let process = watcher.spawn().await?;
        // It ends when it is asked to, not with the group: the store, which is in another one, needs the member to the end.
        let group = tasks.clone();
        tasks.spawn_graceful("etcd-supervise", OnPanic::EndProcess, async move { watcher.run(process, &group).await });
        Ok(Self { stop, is_started, report })
    }

    /// Ends the start: a failure from now on ends the process.
    ///
    /// # Errors
    /// The member has failed already.
    pub fn started(&self, layout: &Layout) -> Result<(), MemberError> {
        self.is_started.store(true, Ordering::SeqCst);
        self.report.borrow().failure(layout).map_or(Ok(()), Err)
    }

    /// Returns the reports of the supervision.
    pub fn reports(&self) -> watch::Receiver<Report> {
        self.report.clone()
    }

    /// Stops etcd and waits for its end.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let mut report = self.report.clone();
        // An error is the end of the supervision as well.
        let _ = report.wait_for(|report| report.is_over).await;
    }
}

struct Watcher {
    program: Program,
    layout: Layout,
    settings: SharedSettings,
    quota_bytes: u64,
    stopped: watch::Receiver<bool>,
    is_started: Arc<AtomicBool>,
    reported: watch::Sender<Report>,
}

impl Watcher {
    async fn spawn(&self) -> Result<Process, MemberError> {
        let arguments = arguments(&self.layout, &self.settings.lock(), self.quota_bytes);
        Process::start(&self.program, &self.layout, &arguments).await
    }

    async fn run(mut self, process: Process, tasks: &Tasks) {
        let mut next = Some(process);
        let mut pause = RESTARTS.base;
        while let Some(mut process) = next.take() {
            let since = Instant::now();
            let end = tokio::select! {
                end = process.ended() => end,
                () = requested(&mut self.stopped) => {
                    process.stop().await;
                    break;
                }
            };
            if since.elapsed() >= STEADY {
                pause = RESTARTS.base;
                self.reported.send_modify(|report| report.ends = 0);
            }
            self.reported.send_modify(|report| {
                report.ends += 1;
                report.last = Some(end.clone());
            });
            let failure = self.reported.borrow().failure(&self.layout);
            if let Some(failure) = failure {
                if self.is_started.load(Ordering::SeqCst) {
                    tasks.fail(&failure.to_string());
                }
                break;
            }
            tracing::error!(how = end.how, errors = end.tail, retry_in = ?pause, "etcd exited; restarting it");
            next = self.restart(&mut pause).await;
        }
        self.reported.send_modify(|report| report.is_over = true);
    }

    /// Starts etcd again after the pause, which grows; `None` when the supervision ends.
    async fn restart(&mut self, pause: &mut Duration) -> Option<Process> {
        loop {
            tokio::select! {
                () = tokio::time::sleep(*pause) => {}
                () = requested(&mut self.stopped) => return None,
            }
            *pause = RESTARTS.after(Some(*pause));
            match self.spawn().await {
                Ok(process) => {
                    self.reported.send_modify(|report| report.restarts += 1);
                    tracing::info!(pid = process.pid(), "restarted etcd");
                    return Some(process);
                }
                Err(e) => tracing::error!(error = %e, retry_in = ?pause, "restarting etcd failed; retrying"),
            }
        }
    }
}

/// Waits until the supervision should end: by request, or because its owner is gone.
async fn requested(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_start_fails_after_several_ends() {
        let layout = Layout::new(std::path::Path::new("/d"));
        let end = |sign| Some(End { how: "ended (exit status: 1)".to_owned(), tail: "no space".to_owned(), sign });
        let report = |ends, last| Report { ends, last, ..Report::default() };
        assert!(report(1, end(None)).start_failure(&layout).is_none());
        let failure = report(START_ENDS_MAX, end(None)).start_failure(&layout).unwrap().to_string();
        assert_eq!(failure, "etcd ended (exit status: 1); its last errors: no space");
        let removed = report(1, end(Some(Sign::Removed))).failure(&layout).unwrap().to_string();
        assert!(removed.contains("/d/etcd") && removed.contains("--token"), "{removed}");
        assert!(matches!(
            report(1, end(Some(Sign::StaleCluster))).start_failure(&layout),
            Some(MemberError::StaleCluster)
        ));
    }
}
