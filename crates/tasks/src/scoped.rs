//! Tasks that belong to a value.
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use crate::caught::{AnyResult, Boxed, Caught, boxed_result, result_of};
use crate::stats::Watch;

/// A task that ends when this handle is dropped. Awaiting it returns the task's result, or `None` after a panic, which
/// was reported.
#[derive(Debug)]
pub struct Scoped<T> {
    task: JoinHandle<Option<AnyResult>>,
    result: PhantomData<fn() -> T>,
}

/// Starts a task that is part of its caller's work: one direction of a connection, one attempt among several.
pub fn scoped<F, T>(name: &'static str, future: F) -> Scoped<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let future = boxed_result(future);
    Scoped::start(name, Box::pin(async move { Some(future.await) }))
}

/// Starts a task whose future may end without a result.
fn start(name: &'static str, future: Boxed<'static, Option<AnyResult>>) -> JoinHandle<Option<AnyResult>> {
    let watch = Watch::start(name);
    #[expect(clippy::disallowed_methods, reason = "the one place where scoped tasks are started")]
    tokio::spawn(async move {
        match Caught(future).await {
            Ok(result) => result,
            Err(payload) => {
                watch.panicked(&*payload);
                None
            }
        }
    })
}

/// Runs a part of a task's work so that its panic does not end the task. A panic is reported and counted under `name`,
/// and the result is `None`.
pub async fn contained<F, T>(name: &'static str, work: F) -> Option<T>
where
    F: Future<Output = T> + Send,
{
    let watch = Watch::start(name);
    match Caught(Box::pin(work)).await {
        Ok(result) => Some(result),
        Err(payload) => {
            watch.panicked(&*payload);
            None
        }
    }
}

impl<T> Scoped<T> {
    /// Starts a task that returns a `T`, or ends without a result.
    pub(crate) fn start(name: &'static str, future: Boxed<'static, Option<AnyResult>>) -> Self {
        Self { task: start(name, future), result: PhantomData }
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Cancels the task at its next await.
    pub fn abort(&self) {
        self.task.abort();
    }
}

impl<T: 'static> Future for Scoped<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        // A join error means that the task was aborted, so there is no result.
        Pin::new(&mut self.task).poll(cx).map(|joined| joined.ok().flatten().and_then(result_of))
    }
}

impl<T> Drop for Scoped<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_contained_panic_leaves_its_task_running() {
        assert_eq!(contained("piece", async { 7 }).await, Some(7));
        assert_eq!(contained("bad piece", async { panic!("one key") }).await, None::<()>);
        let counted = crate::stats().into_iter().find(|s| s.name == "bad piece").map(|s| (s.running, s.panicked));
        assert_eq!(counted, Some((0, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn ends_with_its_owner_and_gives_its_result() {
        assert_eq!(scoped("answer", async { 7 }).await, Some(7));
        assert_eq!(scoped("broken", async { panic!("gone") }).await, None::<()>);
        let (reported, mut hears) = tokio::sync::oneshot::channel::<()>();
        let owner = scoped("owned", async move {
            let _told = reported;
            std::future::pending::<()>().await;
        });
        drop(owner);
        let ended = tokio::time::timeout(Duration::from_secs(1), &mut hears).await;
        assert!(ended.is_ok_and(|closed| closed.is_err()), "the task and what it held are gone");
    }
}
