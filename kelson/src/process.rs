//! What the whole process is to the operating system: runtime, signals, open files, core dumps, panics; and its end.
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context as _;
use kelson_platform::process as system;
use kelson_platform::signals::EndSignals;
use kelson_tasks::Tasks;

use crate::service::Service;
use crate::{logging, parent, program, rest};

/// Stack of a worker thread. Deep recursion is bounded everywhere, and idle threads should cost little.
const STACK_BYTES: usize = 2 << 20;
/// How long tasks that nobody waited for by name may take to end.
const TASKS_END_MAX: Duration = Duration::from_secs(5);
/// How long blocking work may hold the process after everything else has ended.
const BLOCKING_END_MAX: Duration = Duration::from_secs(2);
/// File descriptors that a server wants: connections of clients, watches, the store, the node. With fewer it says so.
const OPEN_FILES_WANTED: u64 = 16 * 1024;

/// A running process: the group of all its tasks, and the signals that end it.
pub struct Process {
    /// Every component's tasks are children of this group.
    pub tasks: Tasks,
    /// What hears that the process is ready.
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

    /// Waits for the end: `Ok` when somebody asked for it, an error when a task failed without which nothing works.
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

/// Runs something short on a runtime of one thread.
pub fn small(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    logging::init("warn")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?.block_on(work)
}

/// Runs a component until it ends, and then what is left of its tasks.
///
/// # Errors
/// What `work` failed of.
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

/// Waits for one part's shutdown, and goes on without it after `limit`: the next part must get its turn before whoever
/// asked for the end loses patience and kills the process.
pub async fn within(limit: Duration, part: &str, shutdown: impl Future<Output = ()>) {
    if tokio::time::timeout(limit, shutdown).await.is_err() {
        tracing::warn!(part, ?limit, "shutdown timed out; continuing");
    }
}

/// Logs every panic where it happens. What it means for the task is the task's owner's to say (`kelson_tasks`).
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

/// Keys and tokens are in this process's memory: no core file is written of it, and no other process of its user reads it.
fn keep_memory_private() {
    if let Err(e) = system::keep_memory_private() {
        tracing::warn!(error = %e, "disabling core dumps failed; a core dump may contain secrets");
    }
}

/// Raises the limit of open files as far as it goes without privileges. Many systems begin with 1024, for programs that still
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

/// How many files may be open.
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
        // What metrics and the CNI plugin's path need can still be read.
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
