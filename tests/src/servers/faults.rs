//! Schedules of faults. A seed and a length decide a schedule; which member is the leader when a fault begins is not known to it.
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// A fault of a machine or of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Etcd is killed, and started again at the end.
    KillEtcd,
    /// The server is killed, and started again at the end.
    KillServer,
    /// Both are killed, as by a power cut, and started again at the end.
    KillBoth,
    /// Etcd is stopped, as by a machine that swaps.
    PauseEtcd,
    /// The server is stopped.
    PauseServer,
    /// No packet reaches the other machines, or comes from them.
    Isolate,
    /// Packets of other machines do not arrive, its own do.
    Deaf,
    /// Its packets do not arrive at other machines, theirs do.
    Mute,
    /// It and the next machine do not reach each other. A third one reaches both.
    CutPair,
    /// It is isolated and reachable in turns.
    Flap,
    /// Writes to its disk wait most of the time.
    SlowDisk,
    /// Writes to its disk wait until the end.
    StuckDisk,
    /// Its disk has no room.
    FullDisk,
    /// The wall clock of its server jumps by seconds, and back at the end.
    Clock(i32),
    /// Its etcd loses its data, and the member is replaced.
    LoseData,
}

/// The machine of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The one with this number.
    Machine(usize),
    /// The one whose etcd leads when the fault begins; the number is for the case that none does.
    Leader(usize),
}

/// A fault at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time from the beginning of the round.
    pub at: Duration,
    /// The duration of the fault.
    pub length: Duration,
    /// The machine with the fault.
    pub target: Target,
    /// The fault of this step.
    pub fault: Fault,
}

/// The faults of a schedule, each as often as it is likely.
const FAULTS: [Fault; 20] = [
    Fault::KillEtcd,
    Fault::KillEtcd,
    Fault::KillServer,
    Fault::KillServer,
    Fault::KillBoth,
    Fault::PauseEtcd,
    Fault::PauseEtcd,
    Fault::PauseServer,
    Fault::Isolate,
    Fault::Isolate,
    Fault::Deaf,
    Fault::Mute,
    Fault::CutPair,
    Fault::Flap,
    Fault::SlowDisk,
    Fault::StuckDisk,
    Fault::FullDisk,
    Fault::Clock(90),
    Fault::Clock(-90),
    Fault::LoseData,
];
/// The shortest and the longest fault, and the pause between two, in milliseconds.
const LENGTH_MS: std::ops::Range<u64> = 400..2500;
const PAUSE_MS: std::ops::Range<u64> = 100..800;
/// One in so many faults is joined by another one on another machine.
const JOINED: u32 = 4;

/// Returns the faults of a round of this length on so many machines. All of them end before it.
pub fn schedule(seed: u64, length: Duration, machines: usize) -> Vec<Step> {
    let mut dice = StdRng::seed_from_u64(seed);
    let (mut steps, mut now) = (Vec::new(), Duration::from_millis(dice.random_range(PAUSE_MS)));
    loop {
        let first = step(&mut dice, now, machines);
        if first.at + first.length > length {
            return steps;
        }
        now += first.length + Duration::from_millis(dice.random_range(PAUSE_MS));
        steps.push(first);
        let mut second = step(&mut dice, first.at, machines);
        let apart = matches!((first.target, second.target), (Target::Machine(a), Target::Machine(b)) if a != b);
        // A member is replaced while the others are well, as an administrator would.
        let alone = [first.fault, second.fault].contains(&Fault::LoseData);
        if dice.random_ratio(1, JOINED) && apart && !alone {
            second.length = second.length.min(first.length);
            steps.push(second);
        }
    }
}

fn step(dice: &mut StdRng, at: Duration, machines: usize) -> Step {
    let fault = FAULTS[dice.random_range(0..FAULTS.len())];
    let length = Duration::from_millis(dice.random_range(LENGTH_MS));
    let machine = dice.random_range(0..machines);
    let leader = dice.random_ratio(1, 3) && fault != Fault::LoseData;
    let target = if leader { Target::Leader(machine) } else { Target::Machine(machine) };
    Step { at, length, target, fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_secs(20);

    #[test]
    fn a_seed_decides_a_schedule() {
        assert_eq!(schedule(7, ROUND, 3), schedule(7, ROUND, 3));
        assert_ne!(schedule(7, ROUND, 3), schedule(8, ROUND, 3));
    }

    #[test]
    fn faults_end_within_their_round_and_every_kind_occurs() {
        let mut all = Vec::new();
        for seed in 0..100 {
            let steps = schedule(seed, ROUND, 3);
            assert!(steps.iter().all(|step| step.at + step.length <= ROUND), "{seed}");
            assert!(!steps.is_empty(), "{seed}");
            all.extend(steps.into_iter().map(|step| step.fault));
        }
        assert!(FAULTS.iter().all(|fault| all.contains(fault)));
    }
}
