//! Carries out a schedule of faults.
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cluster::{Cluster, Station};
use super::faults::{Fault, Step, Target};
use super::record::Recorder;

/// The time between two looks at the schedule, and the length of one beat of what flaps.
const BEAT: Duration = Duration::from_millis(150);
/// A slow disk takes writes in one of so many beats, and a flapping network has so many beats of each kind.
const SLOW_BEATS: u32 = 3;
const FLAP_BEATS: u32 = 2;

/// A fault that has begun.
struct Active {
    step: Step,
    machine: usize,
    beats: u32,
}

/// Carries out a schedule and ends all faults. The cluster may need some time afterwards.
pub fn run(cluster: &mut Cluster, steps: &[Step], record: &Recorder) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut waiting = steps.iter().copied().peekable();
    let mut active: Vec<Active> = Vec::new();
    while waiting.peek().is_some() || !active.is_empty() {
        let now = begun.elapsed();
        let (ended, going): (Vec<Active>, Vec<Active>) =
            active.into_iter().partition(|a| a.step.at + a.step.length <= now);
        active = going;
        let mut rewire = ended.iter().any(|a| cuts(a, cluster.stations.len()).is_some());
        for one in &ended {
            end(cluster, one)?;
            record.note(format!("end {:?} on {}", one.step.fault, one.machine));
        }
        while let Some(step) = waiting.next_if(|step| step.at <= now) {
            let machine = match step.target {
                Target::Machine(machine) => machine,
                Target::Leader(otherwise) => cluster.leader().unwrap_or(otherwise),
            };
            // The leader may be where another fault is.
            if active.iter().any(|a| a.machine == machine) {
                continue;
            }
            record.note(format!("begin {:?} on {machine} for {:?}", step.fault, step.length));
            begin(cluster, step.fault, machine)?;
            active.push(Active { step, machine, beats: 0 });
            rewire = true;
        }
        for one in &mut active {
            one.beats += 1;
            rewire |= one.step.fault == Fault::Flap;
            beat(&cluster.stations[one.machine], one)?;
        }
        if rewire {
            cluster.network.mend()?;
            for (from, to) in active.iter().filter_map(|a| cuts(a, cluster.stations.len())).flatten() {
                cluster.network.cut(from, to)?;
            }
        }
        std::thread::sleep(BEAT);
    }
    cluster.heal()
}

/// Returns the directions in which a fault cuts the network; `None` for others.
fn cuts(active: &Active, machines: usize) -> Option<Vec<(usize, usize)>> {
    let machine = active.machine;
    let others = || (0..machines).filter(move |other| *other != machine);
    let from = || others().map(move |other| (machine, other));
    let to = || others().map(move |other| (other, machine));
    Some(match active.step.fault {
        Fault::Flap if active.beats / FLAP_BEATS % 2 == 1 => Vec::new(),
        Fault::Isolate | Fault::Flap => from().chain(to()).collect(),
        Fault::Deaf => to().collect(),
        Fault::Mute => from().collect(),
        Fault::CutPair => {
            let other = (machine + 1) % machines;
            vec![(machine, other), (other, machine)]
        }
        _ => return None,
    })
}

fn begin(cluster: &mut Cluster, fault: Fault, machine: usize) -> anyhow::Result<()> {
    if fault == Fault::LoseData {
        return cluster.replace_member(machine);
    }
    let station = &mut cluster.stations[machine];
    match fault {
        Fault::KillEtcd => station.kill_etcd(),
        Fault::KillServer => station.server.kill(),
        Fault::KillBoth => {
            station.kill_etcd();
            station.server.kill();
        }
        Fault::PauseEtcd => station.signal_etcd(Signal::STOP),
        Fault::PauseServer => station.server.signal(Signal::STOP),
        Fault::Clock(shift_s) => station.set_clock(shift_s)?,
        Fault::FullDisk => station.disk.as_ref().map_or(Ok(()), super::disk::Disk::fill)?,
        Fault::StuckDisk => station.disk.as_ref().map_or(Ok(()), super::disk::Disk::freeze)?,
        _ => {}
    }
    Ok(())
}

/// Repeats the action of a fault.
fn beat(station: &Station, active: &Active) -> anyhow::Result<()> {
    let (Fault::SlowDisk, Some(disk)) = (active.step.fault, &station.disk) else { return Ok(()) };
    match active.beats % SLOW_BEATS {
        0 => disk.thaw(),
        1 => disk.freeze()?,
        _ => {}
    }
    Ok(())
}

fn end(cluster: &mut Cluster, active: &Active) -> anyhow::Result<()> {
    let station = &mut cluster.stations[active.machine];
    match active.step.fault {
        Fault::Clock(_) => station.set_clock(0)?,
        Fault::SlowDisk | Fault::StuckDisk | Fault::FullDisk => station.heal_disk(),
        Fault::PauseEtcd => station.signal_etcd(Signal::CONT),
        Fault::PauseServer => station.server.signal(Signal::CONT),
        _ => {}
    }
    // A full disk may have ended either of them too. Its own administrator would start it again.
    station.start_etcd()?;
    station.server.start()
}
