//! The whole cluster on one paused clock and one seed: API server in memory, controllers, scheduler, and two kubelets
//! with a container runtime in memory. A script of user and administrator actions runs while requests, watches and
//! runtime calls fail and components are restarted; then the faults end, and the cluster must converge to what its
//! objects say.
//!
//! By default it runs a few seeds, a process each, and the first of them twice: both runs must have the same trace.
//! `KELSON_SEED=n cargo test -p kelson-simulation --test whole` runs that seed, `KELSON_SEEDS=a..b` all from `a` to
//! `b`, and `KELSON_SEEDS=n` this number of seeds from a random one on.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cluster;
mod invariants;
mod scaled;
mod script;
mod watched;
mod workloads;

use std::collections::{BTreeMap, VecDeque};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_simulation::{Trace, run_seeded};
use parking_lot::Mutex;

/// The maximum real time of a seed's run.
const RUN_MAX: Duration = Duration::from_secs(300);
/// The seeds that run by default.
const SEEDS: [u64; 3] = [1, 2, 5];
/// The number of trace lines that a failure prints, unless `KELSON_TRACE` sets it.
const TRACE_SHOWN: usize = 150;

fn main() -> ExitCode {
    // Arguments of the test harness: `cargo test NAME` for another test, and lists for tools.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "--list") {
        println!("whole: test");
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|a| !a.starts_with('-') && !"whole".contains(a.as_str())) {
        return ExitCode::SUCCESS;
    }
    if let Some(seed) = number("KELSON_SEED") {
        return one(seed);
    }
    match std::env::var("KELSON_SEEDS") {
        Ok(text) => several(&seeds(&text)),
        Err(_) => several(&SEEDS),
    }
}

/// Parses `a..b`, both included, or a number of new seeds.
fn seeds(text: &str) -> Vec<u64> {
    let number = |text: &str| -> u64 { text.parse().unwrap_or_else(|_| panic!("KELSON_SEEDS={text}: not a number")) };
    match text.split_once("..") {
        Some((from, to)) => (number(from)..=number(to)).collect(),
        None => {
            let from: u64 = rand::random_range(1..1_000_000_000);
            (from..from.saturating_add(number(text))).collect()
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: not a number")))
}

/// Runs one seed in this process.
fn one(seed: u64) -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KELSON_LOG").unwrap_or_else(|_| "off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let trace = Arc::new(OnceLock::new());
    let (to, seen) = (Arc::clone(&trace), Arc::clone(&trace));
    watchdog(seed, seen);
    let result = run_seeded(seed, move || script::run(seed, to));
    let Some(trace) = trace.get() else { return ExitCode::FAILURE };
    match result {
        Ok(()) => {
            println!("seed {seed}: {}", trace.digest());
            ExitCode::SUCCESS
        }
        Err(why) => {
            let shown = number("KELSON_TRACE").and_then(|n| usize::try_from(n).ok()).unwrap_or(TRACE_SHOWN);
            eprintln!("{}", trace.tail(shown));
            println!("seed {seed}: FAILED: {why}");
            println!("again: KELSON_SEED={seed} cargo test -p kelson-simulation --test whole");
            ExitCode::FAILURE
        }
    }
}

/// Ends a run that does not end by itself: then the paused clock does not advance any more, or too much happens.
fn watchdog(seed: u64, trace: Arc<OnceLock<Trace>>) {
    let watch = move || {
        std::thread::sleep(RUN_MAX);
        eprintln!("{}", trace.get().map(|t| t.tail(TRACE_SHOWN)).unwrap_or_default());
        println!("seed {seed}: FAILED: still runs after {RUN_MAX:?}");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread");
}

/// Runs each seed in a separate process, since a process has state that the first run would leave to the second; as
/// many at a time as there are CPUs. The first seed runs twice.
fn several(seeds: &[u64]) -> ExitCode {
    let queue = Mutex::new(seeds.iter().take(1).chain(seeds).copied().collect::<VecDeque<u64>>());
    let (said, failed) = (Mutex::new(BTreeMap::<u64, String>::new()), AtomicBool::new(false));
    let work = || {
        loop {
            let Some(seed) = queue.lock().pop_front() else { return };
            let (ok, text) = child(seed);
            print!("{text}");
            let before = said.lock().insert(seed, text.clone());
            let differs = before.is_some_and(|before| before != text);
            if differs {
                println!("seed {seed}: FAILED: two runs differ");
            }
            failed.fetch_or(!ok || differs, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            scope.spawn(work);
        }
    });
    if failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn child(seed: u64) -> (bool, String) {
    let me = std::env::current_exe().expect("the path of this program");
    let run = Command::new(me).env("KELSON_SEED", seed.to_string()).stderr(Stdio::inherit()).output();
    let run = run.expect("this program again");
    (run.status.success(), String::from_utf8_lossy(&run.stdout).into_owned())
}
