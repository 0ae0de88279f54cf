//! Shutdowns from logind's signal to the release of the lock, on the paused clock, as a trace of actions and times.
use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::pod;

#[derive(Default)]
struct Node {
    /// Name, priority, and seconds until it has ended.
    pods: Vec<(&'static str, i32, u64)>,
    /// Seconds from the end of a pod until the API has it.
    report: u64,
    ends: Mutex<Vec<(String, Instant)>>,
    trace: Mutex<Vec<String>>,
    began: Mutex<Option<Instant>>,
}

impl Node {
    fn note(&self, what: impl std::fmt::Display) {
        let since = self.began.lock().get_or_insert_with(Instant::now).elapsed().as_secs();
        self.trace.lock().push(format!("{since} s: {what}"));
    }
}

fn object((name, priority, _): &(&'static str, i32, u64)) -> Arc<Pod> {
    let spec = json!({"containers": [], "priority": priority, "terminationGracePeriodSeconds": 12});
    Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a pod"))
}

#[async_trait]
impl ShutdownPods for Arc<Node> {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.pods.iter().map(object).collect()
    }
    fn end(&self, pod: &Arc<Pod>, grace: Duration) {
        let name = pod::name(pod).to_owned();
        let takes = self.pods.iter().find(|p| p.0 == name).expect("known").2;
        self.note(format_args!("{name} ends within {} s", grace.as_secs()));
        self.ends.lock().push((name, Instant::now() + Duration::from_secs(takes)));
    }
    async fn remain(&self, pods: &[Arc<Pod>]) -> bool {
        let over = |p: &Arc<Pod>| self.ends.lock().iter().any(|(n, at)| n == pod::name(p) && *at <= Instant::now());
        !pods.iter().all(over)
    }
    fn is_reported(&self, pods: &[Arc<Pod>]) -> bool {
        let delay = Duration::from_secs(self.report);
        let ends = self.ends.lock();
        pods.iter().all(|p| ends.iter().any(|(n, at)| n == pod::name(p) && *at + delay <= Instant::now()))
    }
    fn say(&self, what: &str) {
        self.note(what);
    }
    async fn keep(&self, times: ShutdownTimes) {
        self.note(if times.ended.is_some() { "kept: over" } else { "kept: begun" });
    }
}

/// Scripted signals of the machine; an error ends the connection.
struct Script {
    node: Arc<Node>,
    next: Arc<tokio::sync::Mutex<mpsc::Receiver<Result<bool, String>>>>,
}

#[async_trait]
impl Machine for Script {
    async fn hold(&mut self, wanted: Duration) -> Result<(), String> {
        self.node.note(format_args!("held for {} s", wanted.as_secs()));
        Ok(())
    }
    fn release(&mut self) {
        self.node.note("let go");
    }
    async fn next(&mut self) -> Result<bool, String> {
        match self.next.lock().await.recv().await {
            Some(said) => said,
            None => std::future::pending().await,
        }
    }
}

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

async fn trace(pods: Vec<(&'static str, i32, u64)>, says: Vec<Result<bool, String>>) -> (Vec<String>, bool) {
    trace_of(Node { pods, ..Node::default() }, says).await
}

async fn trace_of(node: Node, says: Vec<Result<bool, String>>) -> (Vec<String>, bool) {
    let node = Arc::new(node);
    let (to, from) = mpsc::channel(8);
    let from = Arc::new(tokio::sync::Mutex::new(from));
    let period = |priority, seconds| ShutdownPeriod { priority, grace: Duration::from_secs(seconds) };
    let of = Arc::clone(&node);
    let (begun, is_begun) = watch::channel(false);
    let shutdown = Shutdown {
        periods: vec![period(0, 20), period(2_000_000_000, 10)],
        pods: Arc::clone(&node),
        connect: Box::new(move || Script { node: Arc::clone(&of), next: Arc::clone(&from) }),
        clock: Arc::new(FixedClock),
        begun,
    };
    let running = kelson_tasks::scoped("shutdown", shutdown.run());
    for what in VecDeque::from(says) {
        to.send(what).await.expect("it listens");
        tokio::time::sleep(Duration::from_secs(100)).await;
    }
    drop(running);
    let begun = *is_begun.borrow();
    let trace = node.trace.lock().clone();
    (trace, begun)
}

#[tokio::test(start_paused = true)]
async fn pods_end_by_priority_before_the_shutdown_continues() {
    let pods = vec![("dns", 2_000_000_000, 1), ("web", 0, 5), ("job", -1, 2)];
    let (trace, begun) = trace(pods, vec![Ok(true)]).await;
    assert_eq!(
        trace,
        [
            "0 s: held for 30 s",
            "0 s: Shutdown manager detected shutdown event",
            "0 s: kept: begun",
            "0 s: web ends within 12 s",
            "0 s: job ends within 12 s",
            "5 s: dns ends within 10 s",
            "6 s: kept: over",
            "6 s: let go",
        ]
    );
    assert!(begun, "nothing new is taken meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_end_delays_the_shutdown_by_its_period_at_most() {
    let (trace, _) = trace(vec![("stuck", 0, 1000), ("dns", 2_000_000_000, 1000)], vec![Ok(true)]).await;
    assert_eq!(
        trace[3..],
        ["0 s: stuck ends within 12 s", "20 s: dns ends within 10 s", "35 s: kept: over", "35 s: let go",]
    );
}

#[tokio::test(start_paused = true)]
async fn the_machine_waits_until_the_api_has_the_end_of_its_pods() {
    let node = Node { pods: vec![("web", 0, 1)], report: 3, ..Node::default() };
    let (trace, _) = trace_of(node, vec![Ok(true)]).await;
    assert_eq!(trace[3..], ["0 s: web ends within 12 s", "4 s: kept: over", "4 s: let go"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_shutdown_and_a_lost_connection() {
    let (trace, begun) = trace(Vec::new(), vec![Ok(true), Ok(false), Err("the bus is gone".to_owned())]).await;
    assert_eq!(
        trace[3..],
        [
            "0 s: kept: over",
            "0 s: let go",
            "100 s: Shutdown manager detected shutdown cancellation",
            "100 s: held for 30 s",
            "201 s: held for 30 s",
        ]
    );
    assert!(!begun);
}
