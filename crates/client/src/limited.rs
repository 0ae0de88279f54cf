//! How many requests a component may make, as client-go limits its clients: so many at once, then so many a second.
use std::sync::Arc;
use std::time::Duration;

use kelson_transport::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Request, Response, Transport, TransportError};

/// A limit that several clients may share.
#[derive(Debug)]
pub struct RateLimit {
    per_second: f64,
    burst: f64,
    /// Requests that may go at once, and when that was; below zero while some wait for their turn.
    room: Mutex<(f64, Instant)>,
}

impl RateLimit {
    /// `burst` requests at once, and `per_second` after that.
    pub fn new(per_second: f64, burst: u32) -> Arc<Self> {
        let burst = f64::from(burst.max(1));
        Arc::new(Self { per_second, burst, room: Mutex::new((burst, Instant::now())) })
    }

    /// Takes the next turn; gives how long it is until then.
    fn turn(&self) -> Duration {
        let now = Instant::now();
        let mut room = self.room.lock();
        let filled = room.0 + now.duration_since(room.1).as_secs_f64() * self.per_second;
        *room = (filled.min(self.burst) - 1.0, now);
        Duration::try_from_secs_f64(-room.0 / self.per_second).unwrap_or_default()
    }

    /// Returns the transport with the rate limit applied.
    pub fn over(self: &Arc<Self>, transport: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(LimitedTransport { limit: Arc::clone(self), transport })
    }
}

struct LimitedTransport {
    limit: Arc<RateLimit>,
    transport: Arc<dyn Transport>,
}

impl Transport for LimitedTransport {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let (wait, transport) = (self.limit.turn(), Arc::clone(&self.transport));
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            transport.send(request).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_at_once_and_then_one_after_the_other() {
        let limit = RateLimit::new(2.0, 3);
        let waits: Vec<u128> = (0..5).map(|_| limit.turn().as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000]);
        // What was promised is kept in mind, and no more than the burst is saved up.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(limit.turn().as_millis(), 500);
        tokio::time::advance(Duration::from_secs(60)).await;
        let waits: Vec<u128> = (0..4).map(|_| limit.turn().as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 500]);
    }
}
