//! Releases memory that a thread's allocator keeps: after a burst its heap has pages that are hardly used, which it
//! only inspects while it allocates. A node that had a hundred pods and now has ten would keep a third of its memory.
//!
//! Each thread of the runtime does it for its own heap when it goes to sleep after a period of little work; a busy
//! thread reuses freed memory and should not have to request it from the system again.
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The length of an observation period.
const TURN: Duration = Duration::from_secs(30);
/// A thread is idle if it worked less than this fraction of a period.
const REST_PART: u32 = 20;
/// The interval for the thread that started the process, which is not one of the runtime's: it starts the components,
/// and waits for their end.
const FIRST_THREAD: Duration = Duration::from_secs(300);
/// Time after which most memory of the start is freed.
const AFTER_START: Duration = Duration::from_secs(20);

#[allow(unsafe_code, reason = "a function of the allocator that its crate does not name")]
unsafe extern "C" {
    /// The allocator's function: returns unused memory of this thread's heap to the system; with `force`, also what it
    /// would keep for a while.
    safe fn mi_collect(force: bool);
}

/// The work of one thread in the current period.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    began: Option<Instant>,
    woke: Option<Instant>,
    worked: Duration,
}

impl Turn {
    fn wakes(&mut self, now: Instant) {
        self.woke = Some(now);
    }

    /// Reports whether the thread, which goes to sleep now, was idle in the period that ends with this.
    fn sleeps(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        self.worked += self.woke.take().map_or(Duration::ZERO, |woke| now.saturating_duration_since(woke));
        let took = now.saturating_duration_since(began);
        if took < TURN {
            return false;
        }
        let rested = self.worked * REST_PART < took;
        *self = Self { began: Some(now), ..Self::default() };
        rested
    }
}

thread_local! {
    static THIS: Cell<Turn> = Cell::default();
}

/// Called by the runtime when one of its threads wakes.
pub fn wakes() {
    let mut turn = THIS.get();
    turn.wakes(Instant::now());
    THIS.set(turn);
}

/// Called by the runtime when one of its threads goes to sleep.
pub fn sleeps() {
    let mut turn = THIS.get();
    let rested = turn.sleeps(Instant::now());
    THIS.set(turn);
    if rested {
        mi_collect(true);
    }
}

/// Does the same for the thread on which this is polled; never ends.
pub async fn first_thread() -> ! {
    tokio::time::sleep(AFTER_START).await;
    loop {
        mi_collect(true);
        tokio::time::sleep(FIRST_THREAD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which a thread with these times of waking and sleeping released memory.
    fn given(times: &[(u64, u64)]) -> Vec<u64> {
        let (start, mut turn) = (Instant::now(), Turn::default());
        let at = |s: u64| start + Duration::from_secs(s);
        let mut given = Vec::new();
        for &(wakes, sleeps) in times {
            turn.wakes(at(wakes));
            if turn.sleeps(at(sleeps)) {
                given.push(sleeps);
            }
        }
        given
    }

    #[test]
    fn a_thread_gives_back_after_a_turn_with_little_work() {
        assert_eq!(given(&[(0, 0), (10, 10), (29, 29)]), Vec::<u64>::new(), "the turn goes on");
        assert_eq!(given(&[(0, 0), (10, 10), (30, 30), (59, 59), (60, 61)]), [30, 61]);
    }

    #[test]
    fn a_thread_that_worked_gives_back_after_the_next_turn() {
        assert_eq!(given(&[(0, 0), (1, 31), (62, 62)]), [62]);
        // A long sleep after work shows that it is idle.
        assert_eq!(given(&[(0, 0), (1, 11), (500, 500)]), [500]);
        assert_eq!(given(&[(0, 0), (1, 3), (40, 40)]), Vec::<u64>::new(), "a twentieth of 40 seconds is two");
    }

    #[test]
    fn memory_that_is_used_stays() {
        let kept: Vec<String> = (0..10_000).map(|n| format!("kept {n}")).collect();
        drop((0..10_000).map(|n| vec![n; 100]).collect::<Vec<_>>());
        mi_collect(true);
        assert!(kept.iter().enumerate().all(|(n, text)| *text == format!("kept {n}")));
    }
}
