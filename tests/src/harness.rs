//! Runs named tests with subjects and prints what `cargo test` prints. A test whose needs the subject or machine does
//! not meet is printed as ignored with the reason, never as passed.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use crate::reference::{Record, ReferenceResult};
use crate::{Outcome, Subject, SubjectKind};

/// The requirements of a test besides an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Only an API server.
    Api,
    /// A node that runs containers.
    Node,
    /// Published definitions of operators, in the directory that the environment variable names.
    Operators,
    /// Programs with other client libraries, which `make clients` builds.
    Clients,
    /// A fresh Debian, which is fetched once.
    Installation,
    /// Virtual machines, whose image is made once.
    VirtualMachine,
    /// A separate process, and the reference's API server to share an etcd with, whose file the environment names.
    Reference,
    /// A separate process that the test may kill: only if the suite starts the subject.
    OwnServer,
    /// A separate process with a node that runs containers.
    OwnNode,
    /// Our node agent and a containerd on this machine, with any subject.
    OwnAgent,
}

/// A test and its needs.
pub struct Test {
    /// Its area and what holds, as `area::what`.
    pub name: &'static str,
    /// The requirements of the test.
    pub needs: Needs,
    /// The test; the subject is running by then.
    pub run: fn(&Subject) -> Outcome,
}

/// The environment variable with the number of workers, instead of [`WORKERS`].
const WORKERS_VARIABLE: &str = "KELSON_WORKERS";
/// The number of workers that run tests concurrently, each with a subject of the suite. Most tests wait for a
/// container, a deadline or a lease, so two cores suffice for three of them.
const WORKERS: usize = 3;
/// The maximum number of workers, since each worker's server and node take memory and addresses of the machine.
const WORKERS_MAX: usize = 8;

/// Runs the tests whose names contain one of the arguments (all without arguments); returns the process's exit code.
///
/// Several workers take tests from one queue, those that start servers first because they take longest. Each worker has
/// its own subject. A cluster that `SUBJECT` names has one worker. The tests named in `alone` measure the machine, so
/// they run after all others, one by one.
pub fn run(tests: &[Test], alone: &[&str]) -> i32 {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Test> =
        tests.iter().filter(|t| filters.is_empty() || filters.iter().any(|f| t.name.contains(f.as_str()))).collect();
    if std::env::args().any(|a| a == "--list") {
        chosen.iter().for_each(|t| println!("{}: test", t.name));
        return 0;
    }
    let record = match read_record(tests, alone) {
        Ok(record) => record,
        Err(why) => {
            println!("{why}");
            return 1;
        }
    };
    println!("\nrunning {} tests", chosen.len());
    let (last, mut first): (Vec<&Test>, Vec<&Test>) = chosen.iter().partition(|t| alone.contains(&t.name));
    first.sort_by_key(|t| matches!(t.needs, Needs::Api | Needs::Node));
    let wants_node = chosen.iter().any(|t| matches!(t.needs, Needs::Node | Needs::OwnNode));
    let workers = workers(first.len());
    let (first, last) = (Queue::new(first), Queue::new(last));
    let ended: Vec<Tally> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers).map(|_| scope.spawn(|| work(wants_node, &first, &record))).collect();
        started.into_iter().map(|worker| worker.join().expect("a worker catches its tests' panics")).collect()
    });
    let ended = ended.into_iter().chain((!last.is_empty()).then(|| work(wants_node, &last, &record)));
    let all = ended.fold(Tally::default(), Tally::add);
    let seen = chosen.iter().filter(|t| matches!(record.of(t.name), Some(ReferenceResult::Seen(_)))).count();
    println!("\n{seen} of these {} tests were seen to hold on a reference (tests/reference.txt)", chosen.len());
    println!("{}", slowest(all.times));
    let word = if all.failed.is_empty() { "ok" } else { "FAILED" };
    let (passed, failed, ignored) = (all.passed, all.failed.len(), all.ignored);
    if failed > 0 {
        println!("\nfailures:{}", failures(&all.failed));
    }
    println!("\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out");
    i32::from(failed > 0)
}

/// Reads the record of the tests. Every name in it and in `alone` must be a test's.
fn read_record(tests: &[Test], alone: &[&str]) -> Result<Record, String> {
    let names: Vec<&str> = tests.iter().map(|t| t.name).collect();
    if let Some(name) = alone.iter().find(|name| !names.contains(name)) {
        return Err(format!("{name} is to run alone, but there is no such test"));
    }
    let record = Record::read().map_err(|e| e.to_string())?;
    match record.unknown(&names) {
        unknown if unknown.is_empty() => Ok(record),
        unknown => Err(format!("tests/reference.txt names tests that do not exist: {unknown:?}")),
    }
}

fn workers(tests: usize) -> usize {
    if std::env::var("SUBJECT").is_ok_and(|s| s != "kelson") {
        return tests.min(1);
    }
    let asked = std::env::var(WORKERS_VARIABLE).ok().and_then(|n| n.parse().ok());
    asked.unwrap_or(WORKERS).clamp(1, WORKERS_MAX).min(tests)
}

/// Tests that no worker has taken yet, the next one last.
struct Queue<'a>(Mutex<Vec<&'a Test>>);

impl<'a> Queue<'a> {
    fn new(mut tests: Vec<&'a Test>) -> Self {
        tests.reverse();
        Self(Mutex::new(tests))
    }

    fn is_empty(&self) -> bool {
        self.0.lock().expect("no holder panics").is_empty()
    }

    fn take(&self) -> Option<&'a Test> {
        self.0.lock().expect("no holder panics").pop()
    }
}

/// The results of one worker.
#[derive(Default)]
struct Tally {
    passed: usize,
    /// Name and error of each test that failed.
    failed: Vec<(&'static str, String)>,
    ignored: usize,
    /// Seconds and name of each test that ran.
    times: Vec<(f64, &'static str)>,
}

impl Tally {
    fn add(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.ignored += other.ignored;
        self.failed.extend(other.failed);
        self.times.extend(other.times);
        self
    }
}

/// Runs the tests of a queue until it is empty, with one subject.
fn work(wants_node: bool, queue: &Queue<'_>, record: &Record) -> Tally {
    let mut tally = Tally::default();
    let subject = match Subject::start(wants_node) {
        Ok(subject) => subject,
        Err(e) => {
            println!("test subject::start ... FAILED\nthe subject did not start: {e:#}\n");
            tally.failed.push(("subject::start", format!("{e:#}")));
            return tally;
        }
    };
    while let Some(test) = queue.take() {
        run_one(&subject, test, record, &mut tally);
    }
    if let Err(e) = subject.stop(!tally.failed.is_empty()) {
        println!("test subject::stop ... FAILED\n{e:#}\n");
        tally.failed.push(("subject::stop", format!("{e:#}")));
    }
    tally
}

fn run_one(subject: &Subject, test: &Test, record: &Record, tally: &mut Tally) {
    let reference = matches!(subject.kind, SubjectKind::Kubeconfig(_));
    if let Some(why) = subject.lacks(test.needs) {
        println!("test {} ... ignored, {why}", test.name);
        tally.ignored += 1;
        return;
    }
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (test.run)(subject)));
    let took = started.elapsed().as_secs_f64();
    tally.times.push((took, test.name));
    let error = match result {
        Ok(Ok(())) => {
            println!("test {} ... ok ({took:.1}s)", test.name);
            if reference && !matches!(record.of(test.name), Some(ReferenceResult::Seen(_))) {
                println!("record: {} seen {}", test.name, subject.version());
            }
            tally.passed += 1;
            return;
        }
        Ok(Err(e)) => explain(&e),
        Err(p) => p
            .downcast_ref::<String>()
            .cloned()
            .unwrap_or_else(|| p.downcast_ref::<&str>().map_or_else(|| "panicked".to_owned(), |s| (*s).to_owned())),
    };
    if let (true, Some(ReferenceResult::Differs(why))) = (reference, record.of(test.name)) {
        println!("test {} ... ignored, the reference differs as recorded: {why}", test.name);
        tally.ignored += 1;
        return;
    }
    println!("test {} ... FAILED ({took:.1}s)\n---- {} ----\n{error}\n", test.name, test.name);
    tally.failed.push((test.name, error));
}

/// Formats an error with its causes. Contexts of several lines are logs and follow the causes, since output may be cut.
fn explain(error: &anyhow::Error) -> String {
    let last = error.chain().count() - 1;
    let parts = error.chain().enumerate().map(|(n, part)| (n, part.to_string()));
    let (logs, causes): (Vec<_>, Vec<_>) = parts.partition(|(n, part)| *n != last && part.lines().nth(1).is_some());
    let joined =
        |parts: Vec<(usize, String)>, by: &str| parts.into_iter().map(|(_, part)| part).collect::<Vec<_>>().join(by);
    let causes = joined(causes, ": ");
    if logs.is_empty() { causes } else { format!("{causes}\n{}", joined(logs, "\n")) }
}

/// Lines of an error that [`failures`] repeats: enough for its cause, with server logs left where the test printed them.
const ERROR_LINES: usize = 6;
/// Characters of each of these lines.
const ERROR_LINE_CHARS: usize = 300;

/// The tests that failed, each with the first lines of its error. A log that is cut in the middle still has them at its end.
fn failures(failed: &[(&str, String)]) -> String {
    let cut = |line: &str| line.chars().take(ERROR_LINE_CHARS).collect::<String>();
    let one = |(name, error): &(&str, String)| {
        let lines: String = error.lines().take(ERROR_LINES).map(|line| format!("\n        {}", cut(line))).collect();
        format!("\n    {name}{lines}")
    };
    failed.iter().map(one).collect()
}

/// The number of tests that [`slowest`] lists.
const SLOWEST: usize = 20;

/// Formats the slowest tests, and their share of the total time.
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
    fn causes_come_before_logs() {
        let error = anyhow::anyhow!("refused").context("get the node").context("log:\nfirst\nsecond").context("joins");
        assert_eq!(explain(&error), "joins: get the node: refused\nlog:\nfirst\nsecond");
        assert_eq!(explain(&anyhow::anyhow!("two\nlines")), "two\nlines");
    }

    #[test]
    fn failures_repeat_the_first_lines_of_their_errors() {
        let error = "1\n2\n3\n4\n5\n6\n7".to_owned();
        let text = failures(&[("a::x", "no answer".to_owned()), ("b::y", error)]);
        assert_eq!(text.lines().collect::<Vec<_>>()[..4], ["", "    a::x", "        no answer", "    b::y"]);
        assert_eq!(text.lines().last(), Some("        6"));
        assert_eq!(failures(&[("c::z", "x".repeat(1000))]).len(), "\n    c::z\n        ".len() + ERROR_LINE_CHARS);
    }

    #[test]
    fn the_slowest_come_first() {
        let text = slowest(vec![(1.0, "a::x"), (30.04, "b::y"), (2.0, "c::z")]);
        assert_eq!(text, "\nthe 3 slowest tests, 33s of 33s:\n    30.0s b::y\n     2.0s c::z\n     1.0s a::x");
        let many = (0..100).map(|n| (f64::from(n), "t")).collect();
        assert_eq!(slowest(many).lines().count(), 2 + SLOWEST);
    }
}
