//! Notifies the service manager that started this process when it is ready, reloads, stops, and that it its parts
//! work (`sd_notify(3)`). Without a manager nothing is sent, and SIGHUP ends the process like that of a closed terminal.
//! OpenRC receives no notifications, but its service files have a command to reload.
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kelson_platform::service::{self, Notifier};
use kelson_platform::signals::ReloadSignal;
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::logging;

/// Waits until a part of the process has shown that it works. While it hangs, the future does not end.
pub type Check = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Checks begin this often within the watchdog's limit.
const CHECKS_PER_LIMIT: u32 = 4;

/// The environment variable that OpenRC sets for what it starts.
const OPENRC: &str = "RC_SVCNAME";

/// The connection to the manager, if there is one.
#[derive(Clone)]
pub struct Service {
    notifier: Option<Arc<Notifier>>,
    /// The parts that must work, by name. None before the process is ready, and none while it stops.
    parts: Arc<Mutex<Vec<(&'static str, Arc<Check>)>>>,
}

impl Service {
    /// Finds the manager, and starts the tasks for its watchdog and its reload requests.
    pub fn begin(tasks: &Tasks) -> Self {
        let notifier = Notifier::from_env().unwrap_or_else(|e| {
            tracing::warn!(error = %e, "the service manager cannot be reached; it takes this process for one that never gets ready");
            None
        });
        let service = Self { notifier: notifier.map(Arc::new), parts: Arc::default() };
        if let Some(limit) = service::watchdog().filter(|_| service.notifier.is_some()) {
            tasks.spawn("watchdog", OnPanic::Contain, service.clone().lives(limit));
        }
        if service.notifier.is_some() || std::env::var_os(OPENRC).is_some() {
            match ReloadSignal::listen() {
                Ok(signal) => drop(tasks.spawn("reload", OnPanic::Contain, service.clone().reloads(signal))),
                Err(e) => tracing::warn!(error = %e, "cannot handle SIGHUP; a reload ends this process"),
            }
        }
        service
    }

    /// Adds a part to check. The service manager is notified only while all parts work: it restarts the process if a
    /// part hangs.
    pub fn watch(&self, part: &'static str, check: Check) {
        self.parts.lock().push((part, Arc::new(check)));
    }

    /// Reports that the process serves its clients, with this `status`.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the process is stopping. Its parts end one after the other and are not checked any more.
    pub fn stopping(&self) {
        self.parts.lock().clear();
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    fn send(&self, state: &str) {
        if let Some(Err(e)) = self.notifier.as_ref().map(|notifier| notifier.send(state)) {
            tracing::warn!(error = %e, state, "notifying the service manager failed");
        }
    }

    /// Returns the parts that do not answer. They are asked one after the other and have `limit` together, but `least` each.
    async fn hanging(&self, limit: Duration, least: Duration) -> Vec<&'static str> {
        let until = Instant::now() + limit;
        let parts = self.parts.lock().clone();
        let mut hanging = Vec::new();
        for (part, check) in parts {
            if tokio::time::timeout_at(until.max(Instant::now() + least), check()).await.is_err() {
                hanging.push(part);
            }
        }
        hanging
    }

    /// Waits until all parts have worked for `time` without a break. Does not end once the process stops.
    pub async fn steady(&self, time: Duration) {
        // The end of the first check that found all parts working.
        let mut since = None;
        loop {
            tokio::time::sleep(time / CHECKS_PER_LIMIT).await;
            let hangs = !self.hanging(time, time).await.is_empty() || self.parts.lock().is_empty();
            since = if hangs { None } else { since.or_else(|| Some(Instant::now())) };
            if since.is_some_and(|since: Instant| since.elapsed() >= time) {
                return;
            }
        }
    }

    /// Notifies several times within the limit, as long as all parts work. A part that hangs is named in the log each time. A part may take
    /// most of the limit for its answer: on a machine without free CPUs it is slow, and a restart would make it slower.
    async fn lives(self, limit: Duration) {
        let pause = limit / CHECKS_PER_LIMIT;
        let mut turns = tokio::time::interval(pause);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let hanging = self.hanging(limit - pause, pause).await;
            // A process that stops meanwhile is not hanging.
            if hanging.is_empty() || self.parts.lock().is_empty() {
                self.send("WATCHDOG=1");
            } else {
                tracing::error!(
                    ?hanging,
                    ?limit,
                    "a part of the process does not answer; the service manager restarts the process after the limit"
                );
            }
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
    fn service(dir: &std::path::Path) -> (Service, std::os::unix::net::UnixDatagram) {
        let path = dir.join("notify");
        let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let notifier = Some(Arc::new(Notifier::new(path.as_os_str()).unwrap()));
        (Service { notifier, parts: Arc::default() }, manager)
    }

    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn the_manager_hears_that_the_process_is_ready_lives_and_stops() {
        let dir = tempfile::tempdir().unwrap();
        let (service, manager) = service(dir.path());
        service.ready("serves");
        assert_eq!(heard(&manager), "READY=1\nSTATUS=serves");
        let limit = Duration::from_secs(60);
        let alive = tokio::time::timeout(limit + limit / 8, service.clone().lives(limit));
        assert!(alive.await.is_err(), "it never ends");
        for _ in 0..5 {
            assert_eq!(heard(&manager), "WATCHDOG=1");
        }
        service.stopping();
        assert!(heard(&manager).starts_with("STOPPING=1\n"));
        drop(manager);
        service.ready("no manager is there any more");
        Service { notifier: None, parts: Arc::default() }.ready("there never was one");
    }

    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn parts_that_answer_slowly_are_not_hanging() {
        let dir = tempfile::tempdir().unwrap();
        let (service, manager) = service(dir.path());
        manager.set_nonblocking(true).unwrap();
        let limit = Duration::from_secs(60);
        for (part, time) in [("slow", limit / 2), ("slower than most", limit / 8)] {
            service.watch(part, Box::new(move || Box::pin(tokio::time::sleep(time))));
        }
        let alive = kelson_tasks::scoped("watchdog", service.clone().lives(limit));
        for minute in 0..5 {
            tokio::time::sleep(limit).await;
            let notified = std::iter::from_fn(|| manager.recv(&mut [0; 64]).ok()).count();
            assert!(notified > 0, "no notification in minute {minute}");
        }
        drop(alive);
    }

    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn a_part_that_hangs_ends_the_notifications_until_it_works_again() {
        let dir = tempfile::tempdir().unwrap();
        let (service, manager) = service(dir.path());
        manager.set_nonblocking(true).unwrap();
        let notified = || std::iter::from_fn(|| manager.recv(&mut [0; 64]).ok()).count();
        let limit = Duration::from_secs(60);
        let alive = kelson_tasks::scoped("watchdog", service.clone().lives(limit));
        let (hangs, is_hanging) = tokio::sync::watch::channel(false);
        service.watch("answers", Box::new(|| Box::pin(async {})));
        let check: Check = Box::new(move || {
            let mut is_hanging = is_hanging.clone();
            Box::pin(async move {
                let _ = is_hanging.wait_for(|hangs| !hangs).await;
            })
        });
        service.watch("hangs", check);
        tokio::time::sleep(limit + limit / 8).await;
        assert_eq!(notified(), 5);
        hangs.send_replace(true);
        tokio::time::sleep(limit).await;
        assert_eq!(notified(), 0);
        hangs.send_replace(false);
        tokio::time::sleep(limit / 2).await;
        assert!(notified() > 0, "it works again");
        hangs.send_replace(true);
        service.stopping();
        notified();
        tokio::time::sleep(limit).await;
        assert!(notified() > 0, "parts that end are not checked");
        drop(alive);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_steady_when_its_parts_work_without_a_break() {
        let service = Service { notifier: None, parts: Arc::default() };
        let time = Duration::from_secs(10);
        let is_steady = async || tokio::time::timeout(time * 10, service.steady(time)).await.is_ok();
        assert!(!is_steady().await, "nothing has started yet");
        service.watch("answers", Box::new(|| Box::pin(async {})));
        assert!(is_steady().await);
        let begun = Instant::now();
        let check: Check = Box::new(move || Box::pin(tokio::time::sleep_until(begun + time * 3)));
        service.watch("starts slowly", check);
        service.steady(time).await;
        assert!(begun.elapsed() >= time * 4);
        service.stopping();
        assert!(!is_steady().await);
    }
}
