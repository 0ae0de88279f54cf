//! The delay after which a rejected client should retry. It grows while rejections continue, and shrinks when they
//! end.
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum delay in seconds.
const RETRY_AFTER_MAX_S: u64 = 32;

/// The recent rejections by second.
#[derive(Debug, Clone)]
pub struct Refusals {
    retry_after_s: u64,
    changed_at_s: u64,
    current: (u64, u64),
    /// The rejections in each of the past seconds, up to the maximum delay.
    past: VecDeque<(u64, u64)>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { retry_after_s: 1, changed_at_s: 0, current: (0, 0), past: VecDeque::new() }
    }
}

impl Refusals {
    /// Records a rejection and returns the seconds for `Retry-After`.
    pub fn note(&mut self, now: Duration) -> u64 {
        let now_s = now.as_secs();
        if self.current.0 == now_s {
            self.current.1 += 1;
            return self.retry_after_s;
        }
        if self.current.1 > 0 {
            self.past.push_back(self.current);
        }
        let keep_s = (2 * self.retry_after_s).min(RETRY_AFTER_MAX_S);
        while self.past.front().is_some_and(|(at, _)| now_s - at > keep_s) {
            self.past.pop_front();
        }
        self.current = (now_s, 1);
        self.adjust(now_s);
        self.retry_after_s
    }

    fn adjust(&mut self, now_s: u64) {
        let after = self.retry_after_s;
        let recent = self.past.iter().filter(|(at, _)| now_s - at <= after && *at < now_s);
        let refused: u64 = recent.map(|(_, n)| n).sum();
        if now_s - self.changed_at_s >= after && refused >= 3 * after {
            self.retry_after_s = (after * 2).min(RETRY_AFTER_MAX_S);
            self.changed_at_s = now_s;
        } else if refused < after && after > 1 {
            self.retry_after_s -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_refusals() {
        let mut refusals = Refusals::default();
        let mut after =
            |at_s: u64, refused: usize| (0..refused).fold(0, |_, _| refusals.note(Duration::from_secs(at_s)));
        assert_eq!(after(10, 5), 1);
        assert_eq!(after(11, 5), 2, "five in the second before");
        assert_eq!(after(12, 5), 2, "it was changed just now");
        assert_eq!(after(13, 5), 4);
        let far = (14..80).fold(0, |_, at| after(at, 100));
        assert_eq!(far, RETRY_AFTER_MAX_S);
        assert_eq!(after(200, 1), RETRY_AFTER_MAX_S - 1, "none for long");
    }
}
