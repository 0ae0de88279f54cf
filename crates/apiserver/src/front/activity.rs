//! Activity of a connection. A connection without a request is closed after a while, even if its peer answers pings: keeping it
//! would cost the peer nothing and the server memory and a descriptor.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::front::heads::HeadMeter;

/// The open requests of one connection.
pub struct Activity {
    state: Mutex<ActivityState>,
    ended: Notify,
    heads: Arc<HeadMeter>,
}

struct ActivityState {
    open: usize,
    /// When the last open request ended, or the connection was made.
    since: Instant,
}

impl Activity {
    /// A connection that has just been made. `heads` counts the bytes of its requests' heads.
    pub fn new(heads: Arc<HeadMeter>) -> Arc<Self> {
        let state = ActivityState { open: 0, since: Instant::now() };
        Arc::new(Self { state: Mutex::new(state), ended: Notify::new(), heads })
    }

    /// Begins a request, whose head is complete. It is open until the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> OpenRequest {
        let mut state = self.state.lock();
        state.open += 1;
        self.heads.end_head();
        drop(state);
        OpenRequest(Arc::clone(self))
    }

    /// Switches the connection to another protocol than HTTP.
    pub fn upgrade(&self) {
        self.heads.end_heads();
    }

    /// Resolves when no request has been open for `limit`.
    pub async fn idle_for(&self, limit: Duration) {
        loop {
            let since = {
                let state = self.state.lock();
                (state.open == 0).then_some(state.since)
            };
            match since {
                None => self.ended.notified().await,
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => tokio::time::sleep_until(since + limit).await,
            }
        }
    }
}

/// An open request; dropping it ends the request.
pub struct OpenRequest(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.open -= 1;
        if state.open == 0 {
            state.since = Instant::now();
            self.0.heads.begin_head();
            self.0.ended.notify_one();
        }
    }
}

/// A response body that keeps its request open until the body has been sent.
pub struct TrackedBody<B> {
    body: B,
    _open: OpenRequest,
}

impl<B> TrackedBody<B> {
    /// Wraps the body of the response to `open`.
    pub fn new(body: B, open: OpenRequest) -> Self {
        Self { body, _open: open }
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::heads::HeadBudget;

    const LIMIT: Duration = Duration::from_secs(90);

    #[tokio::test(start_paused = true)]
    async fn idle_is_since_the_last_request_ended() {
        let begun = Instant::now();
        let activity = Activity::new(HeadMeter::new(&HeadBudget::new(0)));
        activity.idle_for(LIMIT).await;
        assert_eq!(begun.elapsed(), LIMIT, "a connection without a request");

        let (one, two) = (activity.begin(), activity.begin());
        let activity_of = Arc::clone(&activity);
        let idle = tokio::spawn(async move {
            activity_of.idle_for(LIMIT).await;
            Instant::now()
        });
        let hour = Duration::from_secs(3600);
        tokio::time::sleep(hour).await;
        drop(one);
        tokio::time::sleep(hour).await;
        assert!(!idle.is_finished(), "one request is open");
        let ended = Instant::now();
        drop(two);
        assert_eq!(idle.await.unwrap() - ended, LIMIT);
    }
}
