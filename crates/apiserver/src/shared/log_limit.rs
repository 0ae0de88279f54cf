//! Rate limit for log lines that clients can cause without credentials. Each written line has the number of suppressed ones.
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines per window.
const LINES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Limits the rate of log lines.
#[derive(Default)]
pub struct LogLimit(Mutex<Option<Window>>);

struct Window {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    /// The number of lines suppressed since the last one, if a line may be written now.
    pub fn allow(&self) -> Option<u64> {
        let now = Instant::now();
        let mut window = self.0.lock();
        let window = window.get_or_insert(Window { since: now, lines: 0, left_out: 0 });
        if now.duration_since(window.since) >= WINDOW {
            (window.since, window.lines) = (now, 0);
        }
        if window.lines == LINES_MAX {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_suppressed_and_counted() {
        let limit = LogLimit::default();
        let written = (0..1000).filter_map(|_| limit.allow()).count();
        assert_eq!(written, LINES_MAX as usize);
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.allow(), Some(990));
        assert_eq!(limit.allow(), Some(0));
    }
}
