//! Futures whose panic becomes a result.
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future on the heap. Tasks box theirs first: an async block has space for a captured future and again for awaiting
/// it, so each layer around an unboxed future would double the size of a task.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of a task of any type. The code that starts and drives tasks is compiled for this type only, and not
/// once for each future and result type.
pub(crate) type AnyResult = Box<dyn Any + Send>;

/// Boxes a future and its result.
pub(crate) fn boxed_result<F, T>(future: F) -> Boxed<'static, AnyResult>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    Box::pin(async move { Box::new(future.await) as AnyResult })
}

/// Returns the value of a result of this type, or `None` for another type.
pub(crate) fn result_of<T: 'static>(result: AnyResult) -> Option<T> {
    result.downcast().ok().map(|value| *value)
}

/// A future whose panic becomes its result.
pub(crate) struct Caught<'a, T>(pub(crate) Boxed<'a, T>);

impl<T> Future for Caught<'_, T> {
    type Output = std::thread::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The future is not polled again after a panic: it is dropped with the task.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    }
}
