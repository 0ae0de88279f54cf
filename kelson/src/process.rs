//! The process and the operating system: runtime, signals, open files, core dumps, panics, and shutdown.
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context as _;
use kelson_platform::process as system;
use kelson_platform::signals::EndSignals;
use kelson_tasks::Tasks;

use crate::service::Service;
use crate::{logging, parent, program, rest};

/// The stack size of a worker thread. Recursion is bounded everywhere, and idle threads should take little memory.
const STACK_BYTES: usize = 2 << 20;
/// The number of polls of tasks between two looks at the sockets. With tokio's default, 61, a request that arrives while lists are sent
/// waits for as many pieces of them.
const EVENT_INTERVAL: u32 = 8;
/// The timeout for tasks that are not stopped by name.
const TASKS_END_MAX: Duration = Duration::from_secs(5);
/// The timeout for blocking work after everything else has ended.
const BLOCKING_END_MAX: Duration = Duration::from_secs(2);
/// The number of file descriptors a server needs: connections of clients, watches, the store, the node. It logs a
/// warning if it has fewer.
const OPEN_FILES_WANTED: u64 = 16 * 1024;

/// A running process: the group of all its tasks, and the signals that end it.
pub struct Process {
    /// The parent group of every component's tasks.
    pub tasks: Tasks,
    /// The service manager, which is notified when the process is ready.
    pub service: Service,
    signals: EndSignals,
    parent: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Process {
    fn begin() -> anyhow::Result<Self> {
        let tasks = Tasks::root("kelson");
        Ok(Self {
            service: Service::begin(&tasks),
            tasks,
            signals: EndSignals::listen().context("listen for signals")?,
            parent: Box::pin(parent::gone()),
        })
    }

    /// Waits for the end: `Ok` after a signal, an error when a vital task failed.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        let ended = tokio::select! {
            () = self.signals.asked() => Ok(()),
            () = &mut self.parent => Ok(()),
            why = self.tasks.failed() => Err(anyhow::anyhow!("{why}")),
        };
        self.service.stopping();
        ended
    }
}

/// Runs a short future on a runtime with one thread.
pub fn small(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logging::init("warn")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?.block_on(work)
}

/// Runs a component until it ends, and stops its remaining tasks.
///
/// # Errors
/// The error of `work`.
pub fn run<W>(work: W) -> anyhow::Result<()>
where
    W: AsyncFnOnce(&mut Process) -> anyhow::Result<()>,
{
    log_panics();
    keep_memory_private();
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .thread_name("kelson")
        .event_interval(EVENT_INTERVAL)
        .on_thread_unpark(rest::wakes)
        .on_thread_park(rest::sleeps)
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(async {
        let mut process = Process::begin()?;
        program::give_back_pages(&process.tasks);
        let result = tokio::select! {
            result = work(&mut process) => result,
            never = rest::first_thread() => never,
        };
        process.tasks.shutdown(TASKS_END_MAX).await;
        result
    });
    runtime.shutdown_timeout(BLOCKING_END_MAX);
    result
}

/// Waits for the shutdown of one part, and continues after `limit`: the next part must be stopped before the service
/// manager kills the process.
pub async fn within(limit: Duration, part: &str, shutdown: impl Future<Output = ()>) {
    if tokio::time::timeout(limit, shutdown).await.is_err() {
        tracing::warn!(part, ?limit, "shutdown timed out; continuing");
    }
}

/// Logs every panic where it happens. The task's panic policy (`kelson_tasks`) decides about its consequence.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let message = payload.downcast_ref::<&str>().copied();
        let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        tracing::error!(at, thread, "panic: {}", message.unwrap_or("no message"));
    }));
}

/// Disables core dumps and access by other processes of the user, since keys and tokens are in memory.
fn keep_memory_private() {
    if let Err(e) = system::keep_memory_private() {
        tracing::warn!(error = %e, "disabling core dumps failed; a core dump may contain secrets");
    }
}

/// Raises the limit of open files to the maximum without privileges. Many systems start with 1024, for programs that
/// use `select`.
fn raise_open_files() {
    if let Err(e) = system::raise_open_files() {
        tracing::warn!(error = %e, "raising the limit of open files failed");
    }
    let limit = open_files_max();
    if limit < OPEN_FILES_WANTED {
        tracing::warn!(
            limit,
            wanted = OPEN_FILES_WANTED,
            "limit of open files is low; raise the hard limit (ulimit -Hn)"
        );
    }
}

/// Returns the maximum number of open files.
pub fn open_files_max() -> u64 {
    system::open_files_max().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kelson_tasks::OnPanic;

    use super::*;

    #[test]
    fn a_vital_task_that_panics_ends_the_process_with_its_reason() {
        let ended = run(async |process| {
            process.tasks.child("store").spawn("committer", OnPanic::EndProcess, async { panic!("disk gone") });
            process.ended().await
        });
        assert_eq!(ended.unwrap_err().to_string(), "task committer panicked: disk gone");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_soft_limit_of_open_files_is_the_hard_one_and_memory_is_private() {
        use rustix::process::{DumpableBehavior, Resource, Rlimit};
        run(async |_| Ok(())).unwrap();
        let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        // The files that metrics and the CNI plugin need can still be read.
        assert!(std::fs::read_dir("/proc/self/fd").is_ok());
        assert!(std::env::current_exe().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_does_not_end_holds_the_others_only_so_long() {
        let begun = tokio::time::Instant::now();
        within(Duration::from_secs(3), "stubborn", std::future::pending()).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
        within(Duration::from_secs(3), "quick", async {}).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
    }
}
