//! A bound on lines of the log that anybody can cause without credentials: so many a second, and the number of those that
//! were left out with the next one.
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines a second.
const LINES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// Says which lines are written.
#[derive(Default)]
pub struct LogLimit(Mutex<Option<Window>>);

struct Window {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    /// How many lines were left out before this one, if it may be written.
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
    async fn a_flood_is_counted_and_not_written() {
        let limit = LogLimit::default();
        let written = (0..1000).filter_map(|_| limit.allow()).count();
        assert_eq!(written, LINES_MAX as usize);
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.allow(), Some(990));
        assert_eq!(limit.allow(), Some(0));
    }
}
