//! The cases of upstream's end-to-end tests of network policies (`test/e2e/network/netpol`), with real packets: three
//! namespaces with three pods each are network namespaces, and every pod tries every other one. Needs root; prints
//! SKIPPED otherwise.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kelson_client::Client;
use kelson_doubles::WatchApi;
use kelson_doubles::lab::{self, Hosted, NODE};
use kelson_meta::SystemClock;
use kelson_net::{Family, Protocol};
use kelson_network_policy::{Config, NetworkPolicies};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cases::{Case, Step, cases};
use crate::{enter, sctp};

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];
const PORTS: [u16; 2] = [80, 81];
/// The wait for an answer. A later answer is seen by the next attempt.
const ANSWER: Duration = Duration::from_millis(250);
/// The limit of the wait for rules in force.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nine pods, each a server for every protocol and port, and enforcement on their node.
struct Matrix {
    // The first field, so that enforcement ends before its namespace.
    _enforcement: Option<Hosted>,
    kernel: lab::Lab,
    api: Arc<WatchApi>,
    /// Tags of the SCTP packets that arrived at a pod.
    arrived: Arc<Mutex<HashSet<u32>>>,
    dir: tempfile::TempDir,
}

/// Returns namespace, pod and last octet of the address.
fn pods() -> impl Iterator<Item = (&'static str, &'static str, u8)> {
    let all = NAMESPACES.into_iter().flat_map(|namespace| PODS.map(|pod| (namespace, pod)));
    all.zip(1..).map(|((namespace, pod), n)| (namespace, pod, n))
}

impl Matrix {
    fn new(label: &str) -> Option<Self> {
        let kernel = lab::Lab::new(&format!("knm{label}"), pods().map(|(.., n)| n), enter)?;
        let (api, dir) = (Arc::<WatchApi>::default(), tempfile::tempdir().unwrap());
        let mut matrix = Self { kernel, api, arrived: Arc::default(), dir, _enforcement: None };
        pods().for_each(|(.., n)| matrix.serve(n));
        matrix.reset();
        let config = Config::new(matrix.dir.path(), "here", vec![Family::V4]);
        let client = Client::new(matrix.api.clone(), "policy-test");
        let ((), enforcement) = matrix.kernel.host(NODE, move |started, stopped| async move {
            let tasks = kelson_tasks::Tasks::root("test");
            let running = NetworkPolicies::start(config, client, Arc::new(SystemClock), &tasks);
            running.ready().await;
            started.send(()).unwrap();
            let _ = stopped.await;
            running.shutdown().await;
        });
        matrix._enforcement = Some(enforcement);
        Some(matrix)
    }

    /// Accepts TCP connections, echoes datagrams, and records SCTP packets.
    fn serve(&self, n: u8) {
        let arrived = Arc::clone(&self.arrived);
        self.kernel.inside(&n.to_string(), move || {
            for port in PORTS {
                let (tcp, udp) =
                    (TcpListener::bind(("0.0.0.0", port)).unwrap(), UdpSocket::bind(("0.0.0.0", port)).unwrap());
                std::thread::spawn(move || tcp.incoming().for_each(drop));
                std::thread::spawn(move || {
                    let mut buffer = [0; 16];
                    while let Ok((count, from)) = udp.recv_from(&mut buffer) {
                        let _ = udp.send_to(&buffer[..count], from);
                    }
                });
            }
            let sctp = sctp::socket();
            std::thread::spawn(move || {
                let mut buffer = [0; 256];
                while let Ok(count) = sctp.recv(&mut buffer) {
                    arrived.lock().extend(sctp::tag(&buffer[..count]));
                }
            });
        });
    }

    fn pod(&self, namespace: &str, name: &str, more: &Value) {
        let n = pods().find(|(of, pod, _)| (*of, *pod) == (namespace, name)).unwrap().2;
        let mut labels = json!({"pod": name});
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let port = |port: u16, protocol: &str| json!({"name": format!("serve-{port}-{}", protocol.to_lowercase()), "containerPort": port, "protocol": protocol});
        let ports: Vec<Value> = PORTS.iter().flat_map(|p| ["TCP", "UDP", "SCTP"].map(|of| port(*p, of))).collect();
        self.api.put(
            "pods",
            json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}{name}"), "labels": labels},
                "spec": {"nodeName": "here", "containers": [{"name": "c", "ports": ports}]},
                "status": {"phase": "Running", "podIPs": [{"ip": format!("10.42.0.{n}")}]}}),
        );
    }

    fn namespace(&self, name: &str, more: &Value) {
        let mut labels = json!({"ns": name, "kubernetes.io/metadata.name": name});
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.api.put("namespaces", json!({"metadata": {"name": name, "uid": name, "labels": labels}}));
    }

    /// Removes all policies, and restores the labels of pods and namespaces.
    fn reset(&self) {
        for namespace in NAMESPACES {
            self.namespace(namespace, &json!({}));
            for policy in self.api.names("networkpolicies", namespace) {
                self.api.delete("networkpolicies", namespace, &policy);
            }
        }
        pods().for_each(|(namespace, pod, _)| self.pod(namespace, pod, &json!({})));
    }

    fn run(&self, case: &Case) {
        self.reset();
        for step in &case.steps {
            match step {
                Step::Policy(namespace, name, spec) => {
                    let metadata = json!({"name": name, "namespace": namespace, "uid": name});
                    self.api.put("networkpolicies", json!({"metadata": metadata, "spec": spec}));
                }
                Step::Remove(namespace, name) => self.api.delete("networkpolicies", namespace, name),
                Step::Pod(namespace, name, labels) => self.pod(namespace, name, labels),
                Step::Namespace(name, labels) => self.namespace(name, labels),
                Step::Expect(protocol, port, rules) => self.expect(case.name, (*protocol, *port), rules),
            }
        }
    }

    /// Waits until the pods reach each other as `rules` say, twice in a row, since the previous state may look the
    /// same.
    fn expect(&self, case: &str, (protocol, port): (Protocol, u16), rules: &str) {
        let (expected, mut rounds, mut last) = (table(rules), 0, HashSet::new());
        // A round in which everything is reached takes milliseconds, so rounds are no measure of patience.
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let reached = self.reached(protocol, port);
            rounds = if reached == expected { rounds + 1 } else { 0 };
            if rounds == 2 {
                return;
            }
            last = reached;
        }
        let text =
            |all: Vec<&Pair>| all.iter().map(|(from, to)| format!("{from} > {to}")).collect::<Vec<_>>().join(", ");
        panic!(
            "{case}, {protocol} port {port}: reached though it should not be: {}; not reached: {}\n{}",
            text(last.difference(&expected).collect()),
            text(expected.difference(&last).collect()),
            self.kernel.rules()
        );
    }

    /// Returns which pods reach each other.
    fn reached(&self, protocol: Protocol, port: u16) -> HashSet<Pair> {
        let sources: Vec<_> = pods()
            .map(|(namespace, pod, n)| {
                let targets: Vec<(Pair, SocketAddr)> = pods()
                    .filter(|(.., other)| *other != n)
                    .map(|(to_namespace, to, m)| {
                        let pair = (format!("{namespace}/{pod}"), format!("{to_namespace}/{to}"));
                        (pair, SocketAddr::from((Ipv4Addr::new(10, 42, 0, m), port)))
                    })
                    .collect();
                let arrived = Arc::clone(&self.arrived);
                self.kernel.thread(&n.to_string(), move || reached_from(protocol, targets, &arrived))
            })
            .collect();
        sources.into_iter().flat_map(|source| source.join().unwrap()).collect()
    }
}

/// A source and a destination, each as namespace and pod.
type Pair = (String, String);

/// Tries all targets at once.
fn reached_from(protocol: Protocol, targets: Vec<(Pair, SocketAddr)>, arrived: &Mutex<HashSet<u32>>) -> Vec<Pair> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if protocol == Protocol::Sctp {
            return reached_by_sctp(targets, arrived).await;
        }
        let mut attempts = tokio::task::JoinSet::new();
        for (pair, to) in targets {
            attempts.spawn(async move {
                let answered = match protocol {
                    Protocol::Tcp => tokio::time::timeout(ANSWER, connects(to)).await,
                    _ => tokio::time::timeout(ANSWER, echoes(to)).await,
                };
                answered.is_ok_and(|answer| answer.is_ok()).then_some(pair)
            });
        }
        attempts.join_all().await.into_iter().flatten().collect()
    })
}

async fn connects(to: SocketAddr) -> std::io::Result<()> {
    tokio::net::TcpStream::connect(to).await.map(drop)
}

async fn echoes(to: SocketAddr) -> std::io::Result<()> {
    let socket = tokio::net::UdpSocket::bind("0.0.0.0:0").await?;
    socket.connect(to).await?;
    socket.send(b"x").await?;
    socket.recv(&mut [0; 16]).await.map(drop)
}

/// Sends the first packet of an association to each: the kernel of the test need not support SCTP.
async fn reached_by_sctp(targets: Vec<(Pair, SocketAddr)>, arrived: &Mutex<HashSet<u32>>) -> Vec<Pair> {
    static TAG: AtomicU32 = AtomicU32::new(1);
    let socket = sctp::socket();
    let sent: Vec<(Pair, u32)> = targets
        .into_iter()
        .map(|(pair, to)| {
            let tag = TAG.fetch_add(1, Ordering::Relaxed);
            // A packet that is dropped on its way out is an error for raw sockets.
            let _ = socket.send_to(&sctp::init(tag, to.port()), (to.ip(), 0));
            (pair, tag)
        })
        .collect();
    tokio::time::sleep(ANSWER).await;
    let arrived = arrived.lock();
    sent.into_iter().filter(|(_, tag)| arrived.contains(tag)).map(|(pair, _)| pair).collect()
}

/// Returns the pairs that rules such as `* > x/* no; y/a > x/a yes` allow. All others are allowed, and the last rule of
/// a pair is used.
fn table(rules: &str) -> HashSet<Pair> {
    let names: Vec<String> = pods().map(|(namespace, pod, _)| format!("{namespace}/{pod}")).collect();
    let matches = |pattern: &str, name: &str| match pattern.split_once('/') {
        None => pattern == "*" || panic!("{pattern:?} is no pattern"),
        Some((namespace, "*")) => name.starts_with(&format!("{namespace}/")),
        Some(_) => pattern == name,
    };
    let mut allowed = HashSet::new();
    for from in &names {
        for to in names.iter().filter(|to| *to != from) {
            let mut passes = true;
            for rule in rules.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
                let words: Vec<&str> = rule.split(' ').collect();
                let [source, ">", destination, verdict @ ("yes" | "no")] = words[..] else {
                    panic!("{rule:?} is no rule")
                };
                if matches(source, from) && matches(destination, to) {
                    passes = verdict == "yes";
                }
            }
            if passes {
                allowed.insert((from.clone(), to.clone()));
            }
        }
    }
    allowed
}

/// Runs one of four parts of the cases, which run concurrently.
fn run_part(part: usize) {
    let Some(matrix) = Matrix::new(&part.to_string()) else { return };
    let all = cases();
    let part: Vec<&Case> = all.iter().skip(part).step_by(4).collect();
    assert!(part.len() > 8);
    part.iter().for_each(|case| matrix.run(case));
}

#[test]
fn upstreams_cases_have_their_reachability_1() {
    run_part(0);
}

#[test]
fn upstreams_cases_have_their_reachability_2() {
    run_part(1);
}

#[test]
fn upstreams_cases_have_their_reachability_3() {
    run_part(2);
}

#[test]
fn upstreams_cases_have_their_reachability_4() {
    run_part(3);
}
