//! Runtime calls that complete although their pod must end. Interrupting a start half-way would leave a container with exit code 128 and
//! reason `StartError`, although its program did nothing wrong.
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Maximum wait for a running call. Then it is interrupted anyway, because the runtime may hang.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Flight {
    /// Number of running calls.
    calls: usize,
    /// Whether further calls are blocked.
    stopping: bool,
}

/// Running calls of one execution. Clones share the same count.
#[derive(Clone, Debug)]
pub struct InFlight(Arc<watch::Sender<Flight>>);

/// Counts a call as ended when it is dropped.
struct RunningCall<'a>(&'a InFlight);

impl Drop for RunningCall<'_> {
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
    /// Runs a call that [`InFlight::stop`] does not interrupt. After `stop`, `call` never returns; the task that awaits
    /// [`InFlight::stopped`] drops the caller.
    pub async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        let may_begin = self.0.send_if_modified(|f| {
            f.calls += usize::from(!f.stopping);
            !f.stopping
        });
        if !may_begin {
            return std::future::pending().await;
        }
        let _counted = RunningCall(self);
        call.await
    }

    /// Blocks further calls.
    pub fn stop(&self) {
        self.0.send_modify(|f| f.stopping = true);
    }

    /// Returns when [`InFlight::stop`] was called and no call is running, or a call has taken too long since.
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
    async fn a_running_call_completes_and_no_other_starts() {
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
