//! Calls to the runtime that run to their end although their pod has to go. A start that is broken off half-way leaves a
//! container that ended with code 128 and reason StartError, which its program had no part in.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The longest wait for a call after which it is broken off all the same: the runtime may hang.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Flight {
    /// Calls that have begun and not ended.
    calls: usize,
    /// Whether no call may begin any more.
    stopping: bool,
}

/// The calls of one execution; cheap to clone.
#[derive(Clone, Debug)]
pub struct InFlight(Arc<watch::Sender<Flight>>);

/// Counts a call as ended when it is dropped.
struct UnderWay<'a>(&'a InFlight);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|f| f.calls -= 1);
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }
}

impl InFlight {
    /// Makes a call that is not broken off by [`InFlight::stop`]. After that it never begins: the caller is dropped by
    /// whoever waits for [`InFlight::stopped`].
    pub async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        let may_begin = self.0.send_if_modified(|f| {
            f.calls += usize::from(!f.stopping);
            !f.stopping
        });
        if !may_begin {
            return std::future::pending().await;
        }
        let _counted = UnderWay(self);
        call.await
    }

    /// Lets no further call begin.
    pub fn stop(&self) {
        self.0.send_modify(|f| f.stopping = true);
    }

    /// Returns once [`InFlight::stop`] was called and no call is under way, or one has taken too long since.
    pub async fn stopped(&self) {
        let mut seen = self.0.subscribe();
        // The sender lives as long as this handle.
        let _ = seen.wait_for(|f| f.stopping).await;
        let _ = tokio::time::timeout(WAIT_MAX, seen.wait_for(|f| f.calls == 0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    async fn work(in_flight: &InFlight, calls: &[u64], done: &parking_lot::Mutex<Vec<u64>>) {
        for seconds in calls {
            in_flight.call(tokio::time::sleep(Duration::from_secs(*seconds))).await;
            done.lock().push(*seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_call_under_way_ends_and_no_other_begins() {
        for (calls, stop_after, expected, ended) in
            [(&[4, 5][..], 1, &[4][..], 4), (&[4, 5], 6, &[4, 5], 9), (&[4, 600], 6, &[4], 36), (&[1], 0, &[1], 1)]
        {
            let (in_flight, done, begun) = (InFlight::default(), parking_lot::Mutex::default(), Instant::now());
            let asked = async {
                tokio::time::sleep(Duration::from_secs(stop_after)).await;
                in_flight.stop();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = in_flight.stopped() => {}
                () = async { work(&in_flight, calls, &done).await; std::future::pending().await } => {}
                () = asked => {}
            }
            assert_eq!(*done.lock(), expected, "{calls:?}");
            assert_eq!(begun.elapsed(), Duration::from_secs(ended), "{calls:?}");
        }
    }
}
