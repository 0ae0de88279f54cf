//! Futures whose panic is a result instead of being propagated.
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future on the heap. Tasks take theirs there before anything else: a block of async keeps room for a future that it
/// captures and once more for where it awaits it, so that each layer around a future as such would double what a task holds.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of a task, whatever its type. What starts and drives tasks is compiled for this type alone: tokio's part
/// would otherwise be in the program once for each future and each type of result.
pub(crate) type AnyResult = Box<dyn Any + Send>;

/// A future on the heap, with its result there too.
pub(crate) fn boxed_result<F, T>(future: F) -> Boxed<'static, AnyResult>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    Box::pin(async move { Box::new(future.await) as AnyResult })
}

/// The value of a result that was made from this type; `None` for another type.
pub(crate) fn result_of<T: 'static>(result: AnyResult) -> Option<T> {
    result.downcast().ok().map(|value| *value)
}

/// A future whose panic is its result.
pub(crate) struct Caught<'a, T>(pub(crate) Boxed<'a, T>);

impl<T> Future for Caught<'_, T> {
    type Output = std::thread::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Nothing looks at the future again after a panic: it is dropped with the task.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    }
}
