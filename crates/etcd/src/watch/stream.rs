//! One stream of watches, polled by the reader of its answers: it does nothing while no answer is read.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _};
use rand::Rng as _;
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::watchers::Watchers;
use crate::error::Error;
use crate::mvcc::State;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchRequest, WatchResponse};
use crate::store::{Interest, Shared};

/// Options of watch streams.
#[derive(Clone, Copy, Debug)]
pub struct WatchOptions {
    /// The interval of progress notifications for watches that request them (`--watch-progress-notify-interval`).
    pub progress_every: Duration,
    /// The size in bytes at which answers are split for watches that allow it.
    pub response_bytes_max: usize,
}

/// Answers the requests of a stream. It continues when the client ends its side, until it is dropped or `stop` ends it.
pub fn watch<S>(
    shared: Arc<Shared>,
    requests: S,
    options: WatchOptions,
    stop: CancellationToken,
) -> impl Stream<Item = Result<WatchResponse, Status>> + Send
where
    S: Stream<Item = Result<WatchRequest, Status>> + Send + Unpin + 'static,
{
    let watchers = Watchers::new(shared.header(0), options.response_bytes_max);
    let interest = shared.interest();
    // Streams that were opened together, as after a restart, do not all send at the same time.
    let late = options.progress_every.mul_f64(rand::rng().random_range(0.0..0.1));
    let every = (options.progress_every + late).max(Duration::from_millis(1));
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let requests = Some(requests);
    futures::stream::unfold(Some(Streamed { shared, requests, watchers, interest, tick, stop }), |streamed| async {
        let mut streamed = streamed?;
        match streamed.next().await {
            Ok(answer) => Some((Ok(answer), Some(streamed))),
            Err(status) => Some((Err(status), None)),
        }
    })
}

struct Streamed<S> {
    shared: Arc<Shared>,
    /// `None` when the client has ended its side.
    requests: Option<S>,
    watchers: Watchers,
    interest: Interest,
    tick: Interval,
    stop: CancellationToken,
}

impl<S> Streamed<S>
where
    S: Stream<Item = Result<WatchRequest, Status>> + Send + Unpin + 'static,
{
    async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            if let Some(answer) = self.watchers.out.pop_front() {
                return Ok(answer);
            }
            // Requests must be read even while many events are sent.
            if let Some(request) = self.requests.as_mut().and_then(|requests| requests.next().now_or_never()) {
                self.request(request)?;
                continue;
            }
            let (shared, watchers, interest) = (&self.shared, &mut self.watchers, &self.interest);
            // Marks are set by the committer, which holds the lock of the state meanwhile.
            let more = shared.read(|state| watchers.advance(state, interest.take()));
            self.watchers.take_ended().into_iter().for_each(|id| self.interest.remove(id));
            if !self.watchers.out.is_empty() {
                continue;
            }
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            self.wait().await?;
        }
    }

    /// Waits for a request, a change, or the time of a progress notification.
    async fn wait(&mut self) -> Result<(), Status> {
        let request = async {
            match &mut self.requests {
                Some(requests) => requests.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            request = request => self.request(request)?,
            () = self.interest.marked() => {}
            _ = self.tick.tick() => self.watchers.progress_is_due(),
            () = self.stop.cancelled() => return Err(Error::Stopped.into()),
        }
        Ok(())
    }

    fn request(&mut self, request: Option<Result<WatchRequest, Status>>) -> Result<(), Status> {
        let Some(request) = request else {
            self.requests = None;
            return Ok(());
        };
        let shown = || self.shared.read(State::revision);
        match request?.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                self.watchers.create(create, |id, range| self.interest.add(id, range.clone()), shown);
            }
            Some(RequestUnion::CancelRequest(cancel)) => self.watchers.cancel(cancel.watch_id, shown()),
            Some(RequestUnion::ProgressRequest(_)) => self.watchers.ask_progress(),
            None => {}
        }
        Ok(())
    }
}
