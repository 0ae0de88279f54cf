//! Runs named tests against one subject and prints what `cargo test` prints. A test whose needs the subject or machine
//! does not meet is printed as ignored with the reason, never as passed.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::reference::{Known, Record};
use crate::{Outcome, Subject, SubjectKind};

/// What a test needs beyond an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: an API server is enough.
    Api,
    /// A node that runs containers.
    Node,
    /// Published definitions of operators, whose directory the environment names.
    Operators,
    /// Programs on other people's client libraries, which `make clients` builds.
    Clients,
    /// A process of its own, and the reference's API server to share an etcd with, whose file the environment names.
    Reference,
    /// A process of its own that the test may kill: only where the subject is started by us.
    OwnServer,
    /// The same, with a node that runs containers.
    OwnNode,
    /// Our node agent and a containerd on this machine, beside whatever the subject is.
    OwnAgent,
}

/// A test and what it needs.
pub struct Test {
    /// Its area and what holds, as `area::what`.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// What it does; the subject is up by then.
    pub run: fn(&Subject) -> Outcome,
}

/// Runs the tests whose names contain one of the arguments (all without arguments); returns the process's exit code.
pub fn run(tests: &[Test]) -> i32 {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Test> =
        tests.iter().filter(|t| filters.is_empty() || filters.iter().any(|f| t.name.contains(f.as_str()))).collect();
    if std::env::args().any(|a| a == "--list") {
        chosen.iter().for_each(|t| println!("{}: test", t.name));
        return 0;
    }
    let names: Vec<&str> = tests.iter().map(|t| t.name).collect();
    let record = match Record::read().map(|r| (r.unknown(&names), r)) {
        Ok((unknown, record)) if unknown.is_empty() => record,
        Ok((unknown, _)) => {
            println!("tests/reference.txt names tests that there are not: {unknown:?}");
            return 1;
        }
        Err(e) => {
            println!("{e}");
            return 1;
        }
    };
    println!("\nrunning {} tests", chosen.len());
    let wants_node = chosen.iter().any(|t| matches!(t.needs, Needs::Node | Needs::OwnNode));
    let subject = match Subject::start(wants_node) {
        Ok(s) => s,
        Err(e) => {
            println!("the subject did not start: {e:#}\n\ntest result: FAILED. 0 passed; {} failed", chosen.len());
            return 1;
        }
    };
    let reference = matches!(subject.kind, SubjectKind::Kubeconfig(_));
    let (mut passed, mut failed, mut ignored) = (0, Vec::new(), 0);
    let mut times = Vec::new();
    for test in &chosen {
        if let Some(why) = subject.lacks(test.needs) {
            println!("test {} ... ignored, {why}", test.name);
            ignored += 1;
            continue;
        }
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| (test.run)(&subject)));
        let took = started.elapsed().as_secs_f64();
        times.push((took, test.name));
        let error = match result {
            Ok(Ok(())) => {
                println!("test {} ... ok ({took:.1}s)", test.name);
                if reference && !matches!(record.of(test.name), Some(Known::Seen(_))) {
                    println!("record: {} seen {}", test.name, subject.version());
                }
                passed += 1;
                continue;
            }
            Ok(Err(e)) => format!("{e:#}"),
            Err(p) => p
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| p.downcast_ref::<&str>().map_or_else(|| "panicked".to_owned(), |s| (*s).to_owned())),
        };
        if let (true, Some(Known::Differs(why))) = (reference, record.of(test.name)) {
            println!("test {} ... ignored, the reference differs as recorded: {why}", test.name);
            ignored += 1;
            continue;
        }
        println!("test {} ... FAILED ({took:.1}s)\n---- {} ----\n{error}\n", test.name, test.name);
        failed.push(test.name);
    }
    let seen = chosen.iter().filter(|t| matches!(record.of(t.name), Some(Known::Seen(_)))).count();
    println!("\n{seen} of these {} tests were seen to hold on a reference (tests/reference.txt)", chosen.len());
    println!("{}", slowest(times));
    let ended = subject.stop(!failed.is_empty());
    if let Err(e) = &ended {
        println!("test subject::stop ... FAILED\n{e:#}");
        failed.push("subject::stop");
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {ignored} ignored; 0 measured; 0 filtered out",
        failed.len()
    );
    i32::from(!failed.is_empty())
}

/// How many tests [`slowest`] names.
const SLOWEST: usize = 20;

/// The tests that took longest, and how much of the whole time they are.
fn slowest(mut times: Vec<(f64, &str)>) -> String {
    let all: f64 = times.iter().map(|(took, _)| took).sum();
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    times.truncate(SLOWEST);
    let part: f64 = times.iter().map(|(took, _)| took).sum();
    let lines: String = times.iter().map(|(took, name)| format!("\n  {took:>6.1}s {name}")).collect();
    format!("\nthe {} slowest tests, {part:.0}s of {all:.0}s:{lines}", times.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_come_first() {
        let text = slowest(vec![(1.0, "a::x"), (30.04, "b::y"), (2.0, "c::z")]);
        assert_eq!(text, "\nthe 3 slowest tests, 33s of 33s:\n    30.0s b::y\n     2.0s c::z\n     1.0s a::x");
        let many = (0..100).map(|n| (f64::from(n), "t")).collect();
        assert_eq!(slowest(many).lines().count(), 2 + SLOWEST);
    }
}
