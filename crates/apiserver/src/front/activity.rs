//! Whether anything goes on on a connection. One without a request for a while is closed, even if its peer answers pings:
//! keeping it costs that peer nothing and the server memory and a descriptor.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Requests of one connection.
pub struct Activity {
    state: Mutex<ActivityState>,
    ended: Notify,
}

struct ActivityState {
    open: usize,
    /// Requests that have begun, ever.
    begun: usize,
    /// Since when none has been open.
    since: Instant,
    /// The connection speaks another protocol than HTTP now.
    upgraded: bool,
}

impl Activity {
    /// A connection that has just been made.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(ActivityState { open: 0, begun: 0, since: Instant::now(), upgraded: false }),
            ended: Notify::new(),
        })
    }

    /// A request begins; it is open until what is returned is dropped.
    pub fn begin(self: &Arc<Self>) -> OpenRequest {
        let mut state = self.state.lock();
        state.open += 1;
        state.begun += 1;
        drop(state);
        OpenRequest(Arc::clone(self))
    }

    /// How many requests have begun, and whether bytes that come belong to one: to its body, or to the protocol that it
    /// switched the connection to.
    pub fn begun(&self) -> (usize, bool) {
        let state = self.state.lock();
        (state.begun, state.open > 0 || state.upgraded)
    }

    /// The connection switches to another protocol: no head of a request comes any more.
    pub fn upgrade(&self) {
        self.state.lock().upgraded = true;
    }

    /// Resolves when no request has been open for so long.
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

/// An open request.
pub struct OpenRequest(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.open -= 1;
        if state.open == 0 {
            state.since = Instant::now();
            self.0.ended.notify_one();
        }
    }
}

/// An answer's body that keeps its request open until it is sent.
pub struct Answering<B> {
    body: B,
    _open: OpenRequest,
}

impl<B> Answering<B> {
    /// A body and the request that it answers.
    pub fn new(body: B, open: OpenRequest) -> Self {
        Self { body, _open: open }
    }
}

impl<B: Body + Unpin> Body for Answering<B> {
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

    const LIMIT: Duration = Duration::from_secs(90);

    #[tokio::test(start_paused = true)]
    async fn idle_is_since_the_last_request_ended() {
        let begun = Instant::now();
        let activity = Activity::new();
        activity.idle_for(LIMIT).await;
        assert_eq!(begun.elapsed(), LIMIT, "a connection that never asks");

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
