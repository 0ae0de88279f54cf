//! Notifies the service manager that started this process when it is ready, reloads, stops, and that it is alive
//! (`sd_notify(3)`). Without a manager nothing is sent, and SIGHUP ends the process like that of a closed terminal.
use std::sync::Arc;
use std::time::Duration;

use kelson_platform::service::{self, Notifier};
use kelson_platform::signals::ReloadSignal;
use kelson_tasks::{OnPanic, Tasks};

use crate::logging;

/// The connection to the manager, if there is one.
#[derive(Clone, Debug)]
pub struct Service(Option<Arc<Notifier>>);

impl Service {
    /// Finds the manager, and starts the tasks for its watchdog and its reload requests.
    pub fn begin(tasks: &Tasks) -> Self {
        let notifier = Notifier::from_env().unwrap_or_else(|e| {
            tracing::warn!(error = %e, "the service manager cannot be reached; it takes this process for one that never gets ready");
            None
        });
        let service = Self(notifier.map(Arc::new));
        if service.0.is_some() {
            if let Some(limit) = service::watchdog() {
                tasks.spawn("watchdog", OnPanic::Contain, service.clone().lives(limit));
            }
            match ReloadSignal::listen() {
                Ok(signal) => drop(tasks.spawn("reload", OnPanic::Contain, service.clone().reloads(signal))),
                Err(e) => tracing::warn!(error = %e, "cannot handle SIGHUP; a reload ends this process"),
            }
        }
        service
    }

    /// Reports that the process serves its clients, with `status` as the text.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the process is stopping.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    fn send(&self, state: &str) {
        if let Some(Err(e)) = self.0.as_ref().map(|notifier| notifier.send(state)) {
            tracing::warn!(error = %e, state, "notifying the service manager failed");
        }
    }

    /// Notifies twice as often as requested, so that only a task that is late by the whole limit counts as dead.
    async fn lives(self, limit: Duration) {
        let mut turns = tokio::time::interval(limit / 2);
        loop {
            turns.tick().await;
            self.send("WATCHDOG=1");
        }
    }

    /// Files with rules, keys and certificates are reloaded automatically. A reload resets the log to its settings at
    /// the start.
    async fn reloads(self, mut signal: ReloadSignal) {
        loop {
            signal.asked().await;
            self.send("RELOADING=1");
            match logging::restore() {
                Ok(()) => tracing::info!("reloaded: the log level is the one of the start; flags need a restart"),
                Err(e) => tracing::warn!(error = %e, "reloading the log level failed; keeping the current one"),
            }
            self.send("READY=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn heard(manager: &std::os::unix::net::UnixDatagram) -> String {
        let mut read = [0; 256];
        let length = manager.recv(&mut read).unwrap();
        String::from_utf8_lossy(&read[..length]).into_owned()
    }

    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn the_manager_hears_that_the_process_is_ready_lives_and_stops() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let service = Service(Some(Arc::new(Notifier::new(path.as_os_str()).unwrap())));
        service.ready("serves");
        assert_eq!(heard(&manager), "READY=1\nSTATUS=serves");
        let limit = Duration::from_secs(60);
        let alive = tokio::time::timeout(limit * 2 + limit / 4, service.clone().lives(limit));
        assert!(alive.await.is_err(), "it never ends");
        for _ in 0..5 {
            assert_eq!(heard(&manager), "WATCHDOG=1");
        }
        service.stopping();
        assert!(heard(&manager).starts_with("STOPPING=1\n"));
        drop(manager);
        service.ready("no manager is there any more");
        Service(None).ready("there never was one");
    }
}
