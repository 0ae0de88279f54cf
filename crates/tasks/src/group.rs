//! Groups of tasks that end together.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::caught::{Boxed, Caught, boxed_result};
use crate::scoped::Scoped;
use crate::stats::Watch;

/// The pause before a panicked task restarts: the first pause, and the maximum after repeated panics.
const RESTART_AFTER_MIN: Duration = Duration::from_secs(1);
const RESTART_AFTER_MAX: Duration = Duration::from_secs(60);
/// A task that ran this long before its panic restarts after the shortest pause.
const HEALTHY_AFTER: Duration = Duration::from_secs(300);

/// The effect of a panic besides its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnPanic {
    /// Only this task ends. It belongs to one request, pod or connection.
    Contain,
    /// The process must end and be restarted, because nothing works without this task. [`Tasks::failed`] of the group
    /// and of its parents resolves with the task's name.
    EndProcess,
}

/// A group of tasks with a common end. Every task in Kelson belongs to a group and has a name. Groups nest: shutting
/// down a group cancels its tasks and those of its children, and waits for them. A clone is another handle to the same
/// group.
#[derive(Debug, Clone)]
pub struct Tasks(Arc<Group>);

#[derive(Debug)]
struct Group {
    name: &'static str,
    stop: CancellationToken,
    tracker: TaskTracker,
    failed: watch::Sender<Option<String>>,
    parent: Option<Tasks>,
}

impl Tasks {
    /// Creates a root group for a process or a test.
    pub fn root(name: &'static str) -> Self {
        Self::with(name, CancellationToken::new(), None)
    }

    fn with(name: &'static str, stop: CancellationToken, parent: Option<Tasks>) -> Self {
        Self(Arc::new(Group { name, stop, tracker: TaskTracker::new(), failed: watch::Sender::new(None), parent }))
    }

    /// Creates a group within this one. It can end by itself, and ends with this group. Waiting for this group waits
    /// for both.
    pub fn child(&self, name: &'static str) -> Self {
        Self::with(name, self.0.stop.child_token(), Some(self.clone()))
    }

    /// Returns the token that ends the group, for tasks that end gracefully.
    pub fn token(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Starts a task that the group's end cancels at its next await.
    ///
    /// Dropping the handle leaves the task running; [`AbortHandle::abort`] ends it early.
    pub fn spawn<F>(&self, name: &'static str, on_panic: OnPanic, future: F) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(name, on_panic, Box::pin(future))
    }

    /// The part of [`Tasks::spawn`] that is compiled only once.
    fn spawn_boxed(&self, name: &'static str, on_panic: OnPanic, future: Boxed<'static, ()>) -> AbortHandle {
        let stop = self.0.stop.clone();
        let until_stopped = async move {
            stop.run_until_cancelled(future).await;
        };
        self.start(name, on_panic, Box::pin(until_stopped))
    }

    /// Starts a task that observes [`Tasks::token`] itself. The group waits for it, so that it can flush, answer or
    /// close something before it ends.
    pub fn spawn_graceful<F>(&self, name: &'static str, on_panic: OnPanic, future: F) -> AbortHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.start(name, on_panic, Box::pin(future))
    }

    /// Starts a supervised task. After a panic it is started again with a back-off, until it ends by itself or the
    /// group ends.
    pub fn supervise<M, F>(&self, name: &'static str, mut make: M) -> AbortHandle
    where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.supervise_boxed(name, Box::new(move || Box::pin(make())))
    }

    /// The part of [`Tasks::supervise`] that is compiled only once.
    fn supervise_boxed(
        &self,
        name: &'static str,
        mut make: Box<dyn FnMut() -> Boxed<'static, ()> + Send>,
    ) -> AbortHandle {
        let stop = self.0.stop.clone();
        // The panics of the parts are caught within, so a panic of this task itself is a fault of `make`.
        let supervised = async move {
            let mut pause = RESTART_AFTER_MIN;
            loop {
                let begun = Instant::now();
                let watch = Watch::start(name);
                let run = stop.run_until_cancelled(Caught(make())).await;
                match run {
                    None | Some(Ok(())) => return,
                    Some(Err(payload)) => drop(watch.panicked(&*payload)),
                }
                drop(watch);
                if begun.elapsed() >= HEALTHY_AFTER {
                    pause = RESTART_AFTER_MIN;
                }
                if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
                pause = (pause * 2).min(RESTART_AFTER_MAX);
            }
        };
        self.start(name, OnPanic::EndProcess, Box::pin(supervised))
    }

    /// Starts a task that belongs to a value. It ends when the handle is dropped or the group ends, and the group
    /// waits for it. Awaiting the handle returns the result, or `None` after a panic (which was reported) and when the
    /// group ended first.
    pub fn scoped<F, T>(&self, name: &'static str, future: F) -> Scoped<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let (stop, counted, future) = (self.0.stop.clone(), self.tokens(), boxed_result(future));
        let until_stopped = async move {
            let _counted = counted;
            stop.run_until_cancelled(future).await
        };
        Scoped::start(name, Box::pin(until_stopped))
    }

    fn start(&self, name: &'static str, on_panic: OnPanic, future: Boxed<'static, ()>) -> AbortHandle {
        let group = self.clone();
        let counted = self.tokens();
        let watch = Watch::start(name);
        #[expect(clippy::disallowed_methods, reason = "the one place where tasks are started")]
        let task = tokio::spawn(async move {
            let _counted = counted;
            if let Err(payload) = Caught(future).await {
                let why = watch.panicked(&*payload);
                if on_panic == OnPanic::EndProcess {
                    group.fail(&format!("task {name} panicked: {why}"));
                }
            }
        });
        task.abort_handle()
    }

    /// Returns a tracker token of this group and of each parent, so that all of them wait for the holder.
    fn tokens(&self) -> Vec<TaskTrackerToken> {
        std::iter::successors(Some(self), |t| t.0.parent.as_ref()).map(|t| t.0.tracker.token()).collect()
    }

    /// Reports that the process cannot continue. The first reason is kept.
    pub fn fail(&self, why: &str) {
        for group in std::iter::successors(Some(self), |t| t.0.parent.as_ref()) {
            group.0.failed.send_if_modified(|failed| {
                let first = failed.is_none();
                failed.get_or_insert_with(|| why.to_owned());
                first
            });
        }
    }

    /// Resolves with the reason once a task of the group reports that the process cannot continue.
    pub async fn failed(&self) -> String {
        let mut failed = self.0.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            // The sender is part of the group, which this handle keeps.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns whether no task of the group is running.
    pub fn is_idle(&self) -> bool {
        self.0.tracker.is_empty()
    }

    /// Ends the group: cancels its token and waits for its tasks until `limit`. Remaining tasks are logged and
    /// continue. Returns whether there were none.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        self.0.stop.cancel();
        self.0.tracker.close();
        let ended = tokio::time::timeout(limit, self.0.tracker.wait()).await.is_ok();
        if !ended {
            let left = self.0.tracker.len();
            tracing::warn!(group = self.0.name, left, "tasks are still running at the end of the shutdown timeout");
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_group_ends_its_tasks_and_those_of_its_children() {
        let root = Tasks::root("test");
        let child = root.child("part");
        root.spawn("forever", OnPanic::Contain, std::future::pending());
        child.spawn("forever", OnPanic::Contain, std::future::pending());
        assert!(!root.is_idle() && !child.is_idle());
        assert!(root.shutdown(Duration::from_secs(1)).await);
        assert!(root.is_idle() && child.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_ends_alone() {
        let root = Tasks::root("test");
        let child = root.child("part");
        root.spawn("forever", OnPanic::Contain, std::future::pending());
        child.spawn("forever", OnPanic::Contain, std::future::pending());
        assert!(child.shutdown(Duration::from_secs(1)).await);
        assert!(!root.is_idle() && !root.token().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_scoped_task_ends_with_its_handle_or_its_group() {
        let root = Tasks::root("test");
        assert_eq!(root.scoped("answer", async { 7 }).await, Some(7));
        assert_eq!(root.scoped("broken", async { panic!("gone") }).await, None::<()>);
        let (first, second) = (root.scoped("kept", std::future::pending::<()>()), root.child("part"));
        let second = second.scoped("kept", std::future::pending::<()>());
        drop(first);
        assert!(!root.is_idle());
        assert!(root.shutdown(Duration::from_secs(1)).await);
        assert_eq!(second.await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_graceful_task_is_waited_for_and_a_stubborn_one_only_so_long() {
        let root = Tasks::root("test");
        let (token, done) = (root.token().clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&done);
        root.spawn_graceful("flush", OnPanic::Contain, async move {
            token.cancelled().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            counted.fetch_add(1, Ordering::SeqCst);
        });
        assert!(root.shutdown(Duration::from_secs(3)).await);
        assert_eq!(done.load(Ordering::SeqCst), 1);
        let stubborn = Tasks::root("stubborn");
        stubborn.spawn_graceful("never", OnPanic::Contain, std::future::pending());
        assert!(!stubborn.shutdown(Duration::from_secs(3)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_contained_or_reported_to_every_outer_group() {
        let root = Tasks::root("test");
        let child = root.child("part");
        child.spawn("contained", OnPanic::Contain, async { panic!("one request") });
        tokio::task::yield_now().await;
        assert!(tokio::time::timeout(Duration::from_secs(1), root.failed()).await.is_err());
        child.spawn("vital", OnPanic::EndProcess, async { panic!("no store") });
        assert_eq!(root.failed().await, "task vital panicked: no store");
        let counted = crate::stats().into_iter().find(|s| s.name == "contained").map(|s| (s.running, s.panicked));
        assert_eq!(counted, Some((0, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_supervised_part_starts_again_after_growing_pauses() {
        let root = Tasks::root("test");
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let begun = Instant::now();
        root.supervise("fragile", move || {
            let run = counted.fetch_add(1, Ordering::SeqCst);
            async move { assert!(run >= 3, "not yet") }
        });
        while !root.is_idle() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(runs.load(Ordering::SeqCst), 4);
        assert!(begun.elapsed() >= Duration::from_secs(1 + 2 + 4));
        assert!(begun.elapsed() < Duration::from_secs(8));
    }
}
