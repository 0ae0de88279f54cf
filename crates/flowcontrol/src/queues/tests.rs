//! Tests of fair queuing with tables and random histories.
use std::cell::Cell;

use super::*;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn shape(queues: usize, hand: usize, length_max: usize) -> Shape {
    Shape::Queue { queues, hand, length_max }
}

/// Serves flows that each send a new request when one is answered, `width` at once. Returns the service of each flow.
fn serve(set: &mut QueueSet<usize>, flows: &[(u64, usize, Work, Duration)], until: Duration) -> Vec<f64> {
    let mut seat_seconds = vec![0.0; flows.len()];
    let mut running: Vec<(Duration, usize, Running)> = Vec::new();
    let mut now = Duration::ZERO;
    let mut waiting = vec![0usize; flows.len()];
    loop {
        for (i, (hash, width, work, takes)) in flows.iter().enumerate() {
            while running.iter().filter(|r| r.1 == i).count() + waiting[i] < *width {
                match set.start(now, *work, *hash, || i) {
                    Started::Run(r) => running.push((now + *takes, i, r)),
                    Started::Wait(..) => waiting[i] += 1,
                    Started::Refused(_) => break,
                }
            }
        }
        for (i, r) in set.dispatch() {
            waiting[i] -= 1;
            running.push((now + flows[i].3, i, r));
        }
        let Some(at) = (0..running.len()).min_by_key(|at| running[*at].0) else { panic!("nothing runs") };
        let (end, i, r) = running.swap_remove(at);
        now = end;
        if now > until {
            return seat_seconds;
        }
        seat_seconds[i] += f64::from(r.work.seats) * flows[i].3.as_secs_f64();
        for (i, r) in set.finish(now, r).1 {
            waiting[i] -= 1;
            running.push((now + flows[i].3, i, r));
        }
    }
}

#[test]
fn a_flood_gets_no_more_than_its_part() {
    let mut set = QueueSet::new(shape(8, 1, 200), 4, |_| {});
    let (one, wide) = (Work::ONE, Work { seats: 2, ..Work::ONE });
    let flows = [(0, 100, one, ms(10)), (1, 4, one, ms(10)), (2, 4, one, ms(50)), (3, 4, wide, ms(10))];
    let served = serve(&mut set, &flows, Duration::from_secs(20));
    let all: f64 = served.iter().sum();
    for (i, part) in served.iter().map(|s| s / all).enumerate() {
        assert!((0.2..0.3).contains(&part), "flow {i} has {part} of the seats: {served:?}");
    }
    assert!(all > 4.0 * 20.0 * 0.9, "seats stay empty: {all}");
}

#[test]
fn one_that_asks_for_little_is_served_at_once() {
    let mut set = QueueSet::new(shape(16, 2, 50), 2, |_| {});
    let mut flood = Vec::new();
    for _ in 0..30 {
        if let Started::Run(r) = set.start(Duration::ZERO, Work::ONE, 7, || 0) {
            flood.push(r);
        }
    }
    assert_eq!((flood.len(), set.counts().0), (2, 28));
    assert!(matches!(set.start(ms(1), Work::ONE, 100, || 1), Started::Wait(..)));
    let (_, next) = set.finish(ms(100), flood.remove(0));
    assert_eq!(next.iter().map(|n| n.0).collect::<Vec<_>>(), [1], "before all of the flood");
}

#[test]
fn who_is_refused_and_why() {
    let mut set = QueueSet::new(shape(1, 1, 1), 1, |_| {});
    let start = |set: &mut QueueSet<()>| match set.start(Duration::ZERO, Work::ONE, 0, || ()) {
        Started::Run(_) => "runs".to_owned(),
        Started::Wait(_, length) => format!("waits {length}"),
        Started::Refused(why) => format!("{why:?}"),
    };
    assert_eq!([start(&mut set), start(&mut set), start(&mut set)], ["runs", "waits 1", "QueueFull"]);
    let mut set = QueueSet::new(Shape::Reject, 1, |_| {});
    assert_eq!([start(&mut set), start(&mut set)], ["runs", "ConcurrencyLimit"]);
    let mut set = QueueSet::new(Shape::Exempt, 0, |_| {});
    assert_eq!([start(&mut set), start(&mut set)], ["runs", "runs"]);
    assert_eq!(set.totals, Totals { dispatched: 2, ..Totals::default() });
}

#[test]
fn one_that_is_too_wide_waits_until_it_is_alone_and_is_not_passed() {
    let held_up = Cell::new(0);
    let mut set = QueueSet::new(shape(4, 1, 10), 4, |times: &&Cell<u32>| times.set(times.get() + 1));
    let Started::Run(small) = set.start(Duration::ZERO, Work::ONE, 0, || &held_up) else { panic!("runs") };
    let wide = Work { seats: 9, ..Work::ONE };
    assert!(matches!(set.start(Duration::ZERO, wide, 1, || &held_up), Started::Wait(..)));
    assert!(set.dispatch().is_empty());
    assert_eq!((held_up.get(), set.last_turn), (1, LastTurn::default()));
    let (_, next) = set.finish(ms(1), small);
    assert_eq!((next.len(), held_up.get()), (1, 1));
    let turn = set.last_turn;
    assert!(
        turn.progress_s > 0.0 && turn.bounds_s == [turn.next_at_s; 2] && turn.discounted_s == turn.bounds_s,
        "{turn:?}"
    );
    assert_eq!(set.counts(), (0, 1, 9, 0));
}

#[test]
fn seats_are_held_after_the_answer() {
    let mut set = QueueSet::new(shape(4, 1, 10), 2, |_| {});
    let work = Work { seats: 1, seats_after: 2, after: ms(5) };
    let Started::Run(write) = set.start(Duration::ZERO, work, 0, || ()) else { panic!("runs") };
    let (after, next) = set.finish(ms(1), write);
    assert_eq!((after, next.len(), set.counts().2, set.is_idle()), (Some(ms(5)), 0, 2, false));
    assert!(matches!(set.start(ms(2), Work::ONE, 1, || ()), Started::Wait(..)));
    assert_eq!(set.release(ms(6), write).len(), 1);
}

#[test]
fn fewer_queues_drain_and_one_that_leaves_is_gone() {
    let mut set = QueueSet::new(shape(64, 1, 10), 1, |_| {});
    let Started::Run(first) = set.start(Duration::ZERO, Work::ONE, 63, || 0) else { panic!("runs") };
    let Started::Wait(stays, _) = set.start(Duration::ZERO, Work::ONE, 63, || 1) else { panic!("waits") };
    let Started::Wait(goes, _) = set.start(Duration::ZERO, Work::ONE, 62, || 2) else { panic!("waits") };
    assert!(set.configure(ms(1), shape(2, 1, 10), 1).is_empty());
    assert_eq!(set.look().count(), 64);
    assert!(set.leave(ms(2), goes, true) && !set.leave(ms(2), goes, true));
    let (_, next) = set.finish(ms(3), first);
    assert_eq!(next.iter().map(|n| n.0).collect::<Vec<_>>(), [1]);
    assert!(!set.leave(ms(4), stays, false), "it runs");
    for (_, running) in next {
        set.finish(ms(5), running);
    }
    assert_eq!((set.look().count(), set.is_idle(), set.totals.timed_out), (2, true, 1));
}

/// For random requests in random order, no request is lost, the seat limit holds, and at the end all queues are empty.
#[test]
fn random_histories_end_empty() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut set = QueueSet::new(shape(8, 2, 5), 6, |_| {});
        let (mut now, mut running, mut after, mut waiting) = (Duration::ZERO, Vec::new(), Vec::new(), Vec::new());
        for id in 0..400u32 {
            now += Duration::from_micros(random.random_range(0..3000));
            let mut reported = Vec::new();
            match random.random_range(0..8) {
                0..4 => {
                    let work = match random.random_range(0..3) {
                        0 => Work { seats: random.random_range(1..9), ..Work::ONE },
                        1 => Work { seats: 1, seats_after: 3, after: ms(2) },
                        _ => Work::ONE,
                    };
                    match set.start(now, work, random.random_range(0..20), || id) {
                        Started::Run(r) => running.push(r),
                        Started::Wait(place, _) => waiting.push((id, place)),
                        Started::Refused(_) => {}
                    }
                    reported = set.dispatch();
                }
                4 if !waiting.is_empty() => {
                    let (_, place) = waiting.swap_remove(random.random_range(0..waiting.len()));
                    assert!(set.leave(now, place, false), "seed {seed}");
                    reported = set.dispatch();
                }
                5 => reported = set.configure(now, shape(random.random_range(2..12), 2, 5), random.random_range(1..9)),
                6 if !after.is_empty() => reported = set.release(now, after.swap_remove(0)),
                _ if !running.is_empty() => {
                    let done: Running = running.swap_remove(random.random_range(0..running.len()));
                    let (lasts, next) = set.finish(now, done);
                    if lasts.is_some() {
                        after.push(done);
                    }
                    reported = next;
                }
                _ => {}
            }
            for (id, r) in reported {
                let at = waiting.iter().position(|w| w.0 == id).expect("it waited");
                waiting.swap_remove(at);
                running.push(r);
            }
            assert_eq!(set.counts().0, waiting.len(), "seed {seed}");
            assert_eq!(set.counts().1, running.len(), "seed {seed}");
        }
        loop {
            now += ms(1);
            let next = if let Some(done) = running.pop() {
                let (lasts, next) = set.finish(now, done);
                after.extend(lasts.map(|_| done));
                next
            } else if let Some(done) = after.pop() {
                set.release(now, done)
            } else {
                break;
            };
            running.extend(next.into_iter().map(|n| n.1));
        }
        assert!(set.is_idle() && set.busy == 0 && set.counts() == (0, 0, 0, 0), "seed {seed}: {:?}", set.counts());
    }
}
