//! Gives memory back that a thread's allocator keeps for itself: after a burst its heap holds pages of which little is used, and it
//! looks at them again only as it allocates. A node that had a hundred pods and has ten would keep a third of its memory so.
//!
//! The threads of the runtime do it as they go to sleep, each for its own heap, when they have had little to do for a while: a
//! thread with work gets what it freed back from its heap at once, and should not have to ask the system for it.
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a thread is watched before it is said to rest.
const TURN: Duration = Duration::from_secs(30);
/// A thread rests that worked less than this part of a turn.
const REST_PART: u32 = 20;
/// The thread that started the process is none of the runtime's: it starts the components, and waits for their end.
const FIRST_THREAD: Duration = Duration::from_secs(300);
/// By then most of what the start needed is freed.
const AFTER_START: Duration = Duration::from_secs(20);

#[allow(unsafe_code, reason = "a function of the allocator that its crate does not name")]
unsafe extern "C" {
    /// The allocator's: what this thread's heap does not use goes to the system, also what it would keep for a while.
    safe fn mi_collect(force: bool);
}

/// One thread's work in the turn that goes on.
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

    /// Whether the thread, which goes to sleep now, rested for the turn that ends with it.
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

/// The runtime calls it as one of its threads wakes.
pub fn wakes() {
    let mut turn = THIS.get();
    turn.wakes(Instant::now());
    THIS.set(turn);
}

/// The runtime calls it as one of its threads goes to sleep.
pub fn sleeps() {
    let mut turn = THIS.get();
    let rested = turn.sleeps(Instant::now());
    THIS.set(turn);
    if rested {
        mi_collect(true);
    }
}

/// Does the same for the thread on which this is polled, for ever.
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

    /// Wakes and sleeps at these seconds; the seconds at which the thread gave back.
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
        // A long sleep after the work tells that it rests.
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
