//! A wall clock for tests on a paused tokio runtime.
use jiff::Timestamp;
use kelson_meta::Clock;

/// A wall clock that starts at a given time and advances with tokio's timer, which a test can pause.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: Timestamp,
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// Creates a clock that starts at `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, origin: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.start + self.origin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn advances_with_the_runtime() {
        let clock = TokioClock::starting_at(Timestamp::UNIX_EPOCH);
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert_eq!(clock.now().as_second(), 60);
    }
}
