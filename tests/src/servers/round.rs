//! One round: a load, faults, their end, and the checks of what clients saw.
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kelson_history::{Answer, Call, Checked, History, Line, Registers};
use serde_json::Value;

use super::cluster::{Cluster, PATIENCE};
use super::faults::schedule;
use super::load::{Holder, LAST, REGISTERS, Writer, registers, version};
use super::nemesis;
use super::pods::{self, PODS, PodRecord};
use super::record::Recorder;
use super::watcher::Watcher;

/// The clients of each server.
const WRITERS: usize = 2;
const HOLDERS: usize = 3;
/// The number of the watcher that goes from server to server.
const ROAMING: u64 = 100;

/// The result of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// The faults of its schedule.
    pub faults: usize,
    /// The checked data.
    pub checked: Checked,
    /// The pods that were made beside those of its beginning.
    pub pods: usize,
    /// The time from the end of the faults until every server answered a write.
    pub recovery: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (faults, checked, pods) = (self.faults, self.checked, self.pods);
        write!(
            f,
            "{faults} faults, {} operations, {} events, {} unknown writes found, {pods} pods made, recovered in {:.1}s",
            checked.operations,
            checked.events,
            checked.recovered,
            self.recovery.as_secs_f64()
        )
    }
}

/// Runs a round of this seed and length. An error names the seed and the file in `kept` with the round's history.
pub fn round(cluster: &mut Cluster, seed: u64, length: Duration, kept: &Path) -> anyhow::Result<Report> {
    let record = Recorder::new();
    record.note(format!("seed {seed}, {length:?}"));
    let outcome = faulty(cluster, seed, length, &record);
    let outcome = outcome.and_then(|report| match record.faults() {
        faults if faults.is_empty() => Ok(report),
        faults => bail!("{}", faults.join("\n")),
    });
    outcome.or_else(|why| {
        std::fs::create_dir_all(kept)?;
        let (file, logs) = (kept.join(format!("history-{seed}.txt")), kept.join(format!("logs-{seed}.txt")));
        record.note(format!("{why:#}"));
        record.save(&file)?;
        std::fs::write(&logs, cluster.logs())?;
        Err(why.context(format!("seed {seed} failed: {} and {}", file.display(), logs.display())))
    })
}

/// The initial state of a round.
struct Start {
    registers: Registers,
    revision: u64,
}

fn faulty(cluster: &mut Cluster, seed: u64, length: Duration, record: &Recorder) -> anyhow::Result<Report> {
    let all: Vec<usize> = (0..cluster.stations.len()).collect();
    let mut clients: Vec<_> = all.iter().map(|n| cluster.client(*n)).collect();
    pods::prepare(&mut clients[0])?;
    let (before, revision) = registers(&mut clients[0])?;
    let start = Start { registers: before, revision };
    let (pods, pods_from) = PodRecord::new(record, &mut clients[0])?;
    let mut holders: Vec<Holder> =
        (0..HOLDERS).map(|n| Holder::new(cluster, &format!("l{n}"), seed)).collect::<Result<_, _>>()?;
    let steps = schedule(seed, length, all.len());
    let (last_register, last_pod) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut watchers = watchers(cluster, record, &all, start.revision);
    let mut pod_watcher = Watcher::new(cluster, record, PODS, &all, pods_from, |kind, pod| pods.event(kind, pod));
    let mut writers: Vec<Writer<'_>> = Vec::new();
    for n in 0..WRITERS * all.len() {
        writers.push(Writer::new(cluster, record, seed, n as u64, n % all.len()));
    }
    let nodes = pods::watch_nodes(cluster);
    let mut deleters: Vec<_> = all.iter().map(|n| cluster.client(*n)).collect();
    std::thread::scope(|scope| {
        for watcher in &mut watchers {
            scope.spawn(|| watcher.run(|| known(&last_register), PATIENCE));
        }
        scope.spawn(|| pod_watcher.run(|| known(&last_pod), PATIENCE));
        let mut load = Vec::new();
        load.extend(writers.iter_mut().map(|writer| scope.spawn(|| writer.run())));
        load.extend(holders.iter_mut().map(|holder| scope.spawn(|| holder.run(record))));
        load.push(scope.spawn(|| pods.delete_some(&mut deleters, seed)));
        load.push(scope.spawn(|| nodes(record)));
        let done = nemesis::run(cluster, &steps, record).and_then(|()| recovered(cluster, record));
        record.end_load();
        for thread in load {
            thread.join().ok();
        }
        // Each watcher waits for an event of the resource that it watches, because a bookmark may come a minute later. Also after a
        // fault the watchers must end.
        let register = finish(&mut Writer::new(cluster, record, seed, u64::from(u32::MAX), 0));
        last_register.store(*register.as_ref().unwrap_or(&1), Ordering::SeqCst);
        let pod = pods::mark_one(&mut cluster.client(0), seed);
        last_pod.store(*pod.as_ref().unwrap_or(&1), Ordering::SeqCst);
        register.and(pod).and(done)
    })
    .map(|recovery| (recovery, steps.len()))
    .and_then(|(recovery, faults)| {
        drop((watchers, pod_watcher));
        // Connections from before the faults may be dead.
        let mut clients: Vec<_> = all.iter().map(|n| cluster.client(*n)).collect();
        let checked = check(&mut clients, &start, record)?;
        for holder in &holders {
            holder.check(&mut clients)?;
        }
        let pods = pods.check(&mut clients[0])?;
        Ok(Report { faults, checked, pods, recovery })
    })
}

/// Returns the revision that a watcher must reach, once it is written.
fn known(last: &AtomicU64) -> Option<u64> {
    Some(last.load(Ordering::SeqCst)).filter(|at| *at > 0)
}

/// Returns the watchers of registers: one for each server, and one that goes from server to server.
fn watchers<'a>(cluster: &Cluster, record: &'a Recorder, all: &[usize], from: u64) -> Vec<Watcher<'a>> {
    let each = all.iter().map(|n| (*n as u64, vec![*n]));
    each.chain([(ROAMING, all.to_vec())])
        .map(|(watcher, servers)| {
            record.line(Line::Watch { watcher, from });
            Watcher::new(cluster, record, REGISTERS, &servers, from, move |kind, object| {
                let Some((key, (revision, value))) = version(object) else { return };
                let value = (kind != "DELETED").then_some(value);
                record.line(Line::Event { watcher, revision, key, value });
            })
        })
        .collect()
}

/// Waits until every server answers a write; returns the time it took.
fn recovered(cluster: &Cluster, record: &Recorder) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    record.note("all faults have ended".to_owned());
    for server in 0..cluster.stations.len() {
        cluster.until_ready(server)?;
        let mut client = cluster.client(server);
        crate::eventually(&format!("server {server} takes writes"), PATIENCE, || {
            let (code, answer) =
                client.call("PATCH", "/api/v1/namespaces/faults", &Value::Object(Default::default()))?;
            ensure!(code == 200, "{code} {answer}");
            Ok(())
        })?;
    }
    Ok(begun.elapsed())
}

/// Writes the last register; returns its revision, which every watcher must reach.
fn finish(writer: &mut Writer<'_>) -> anyhow::Result<u64> {
    let at = match writer.operate(0, LAST, Call::Read) {
        Some(Answer::Found(found)) => found.map(|(at, _)| at),
        other => bail!("the last register is {other:?}"),
    };
    match writer.operate(0, LAST, Call::Put(at, String::new())) {
        Some(Answer::Written(at)) => Ok(at),
        other => bail!("the last write is {other:?}"),
    }
}

/// Checks the history, and that all servers have the same registers.
fn check(clients: &mut [super::https::Https], start: &Start, record: &Recorder) -> anyhow::Result<Checked> {
    let (after, _) = registers(&mut clients[0])?;
    for client in &mut clients[1..] {
        let (other, _) = registers(client)?;
        ensure!(other == after, "two servers have other registers: {after:?} and {other:?}");
    }
    let history = History::new(record.history()?);
    history.check(&start.registers, &after).map_err(anyhow::Error::msg).context("the history is not linearizable")
}
