//! Enforcement on a real kernel: a network namespace represents the node, others represent pods and a machine outside,
//! and the test acts as the API server. Needs root; prints SKIPPED otherwise. The machine's own network is not changed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kelson_client::Client;
use kelson_doubles::WatchApi;
use kelson_doubles::lab::{self, Hosted, NODE, OUTSIDE};
use kelson_meta::SystemClock;
use kelson_metrics::Registry;
use kelson_net::Family;
use kelson_network_policy::{Config, Gate, NetworkPolicies, PodFacts, cleanup};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::enter;

/// The time to try a connection that should be dropped.
const TRIED: Duration = Duration::from_millis(400);
const PODS: [u8; 4] = [1, 2, 3, 4];

/// Pods with servers on ports 8080 and 9090, and enforcement on their node.
struct Lab {
    // The first field, so that enforcement ends before its namespace.
    running: Option<(Gate, Registry, Hosted)>,
    kernel: lab::Lab,
    dir: tempfile::TempDir,
    api: Arc<WatchApi>,
}

impl Lab {
    fn new(label: &str) -> Option<Self> {
        let kernel = lab::Lab::new(&format!("knq{label}"), PODS, enter)?;
        let lab = Self { kernel, dir: tempfile::tempdir().unwrap(), api: Arc::default(), running: None };
        PODS.iter().for_each(|n| lab.serve(&n.to_string()));
        lab.serve(OUTSIDE);
        lab.api.put("namespaces", json!({"metadata": {"name": "d", "uid": "d", "labels": {"team": "one"}}}));
        PODS.iter().for_each(|n| lab.pod(*n, json!({"app": format!("a{n}")})));
        Some(lab)
    }

    fn pod(&self, n: u8, labels: Value) {
        let metadata = json!({"name": format!("p{n}"), "namespace": "d", "uid": format!("u{n}"), "labels": labels});
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let spec = json!({"nodeName": "here", "containers": [{"name": "c", "ports": ports}]});
        let status = json!({"phase": "Running", "podIPs": [{"ip": format!("10.42.0.{n}")}]});
        self.api.put("pods", json!({"metadata": metadata, "spec": spec, "status": status}));
    }

    fn policy(&self, name: &str, spec: Value) {
        let metadata = json!({"name": name, "namespace": "d", "uid": name});
        self.api.put("networkpolicies", json!({"metadata": metadata, "spec": spec}));
    }

    fn remove_policy(&self, name: &str) {
        self.api.delete("networkpolicies", "d", name);
    }

    /// Runs a server that echoes data of connections.
    fn serve(&self, name: &str) {
        for port in [8080, 9090] {
            let listener = self.kernel.inside(name, move || TcpListener::bind(("0.0.0.0", port)).unwrap());
            std::thread::spawn(move || {
                for mut connection in listener.incoming().flatten() {
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16];
                        while let Ok(count @ 1..) = connection.read(&mut buffer) {
                            if connection.write_all(&buffer[..count]).is_err() {
                                return;
                            }
                        }
                    });
                }
            });
        }
    }

    fn start(&mut self) {
        let mut config = Config::new(self.dir.path(), "here", vec![Family::V4]);
        // Disabled in this test: the kernel reports changes by other programs.
        config.check_period = Duration::from_secs(3600);
        let client = Client::new(self.api.clone(), "policy-test");
        let ((gate, registry), hosted) = self.kernel.host(NODE, move |started, stopped| async move {
            let tasks = kelson_tasks::Tasks::root("test");
            let running = NetworkPolicies::start(config, client, Arc::new(SystemClock), &tasks);
            running.ready().await;
            started.send((running.gate(), running.registry().clone())).unwrap();
            let _ = stopped.await;
            running.shutdown().await;
        });
        self.running = Some((gate, registry, hosted));
    }

    fn stop(&mut self) {
        self.running = None;
    }

    fn metrics(&self) -> String {
        self.running.as_ref().map(|(_, registry, _)| registry.text()).unwrap_or_default()
    }

    /// Reports whether a connection can be opened and carries data.
    fn reaches(&self, from: &str, to: &str) -> bool {
        self.connect(from, to).is_some_and(|mut connection| carries(&mut connection))
    }

    fn connect(&self, from: &str, to: &str) -> Option<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        self.kernel.inside(from, move || TcpStream::connect_timeout(&to, TRIED).ok())
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        self.kernel.until(what, || holds(self));
    }

    fn tables(&self) -> String {
        self.kernel.rules()
    }
}

/// Sends a byte and waits for its echo.
fn carries(connection: &mut TcpStream) -> bool {
    connection.set_read_timeout(Some(TRIED)).unwrap();
    let mut byte = [0];
    connection.write_all(b"x").is_ok() && connection.read_exact(&mut byte).is_ok()
}

fn deny_all() -> Value {
    json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
}

#[test]
fn an_isolated_pod_is_reached_by_its_peers_and_its_node_alone() {
    let Some(mut lab) = Lab::new("a") else { return };
    lab.start();
    assert!(!lab.tables().contains("-policy"), "without policies there is no table");
    assert!(lab.reaches("2", "10.42.0.1:8080"));
    let web = json!([{"port": "web"}]);
    let from = json!([{"podSelector": {"matchLabels": {"app": "a2"}}}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]);
    lab.policy(
        "web",
        json!({"podSelector": {"matchLabels": {"app": "a1"}}, "ingress": [{"from": from, "ports": web}]}),
    );
    lab.until("pod 3 is shut out", |l| !l.reaches("3", "10.42.0.1:8080"));
    for (from, to, expected) in [
        ("2", "10.42.0.1:8080", true),
        ("2", "10.42.0.1:9090", false),
        ("x", "10.42.0.1:8080", true),
        ("x", "10.42.0.1:9090", false),
        ("h", "10.42.0.1:9090", true),
        ("1", "10.42.0.3:9090", true),
        ("3", "10.42.0.2:9090", true),
    ] {
        assert_eq!(lab.reaches(from, to), expected, "{from} to {to}\n{}", lab.tables());
    }
    lab.pod(3, json!({"app": "a2"}));
    lab.until("pod 3 is a peer now", |l| l.reaches("3", "10.42.0.1:8080"));
    lab.remove_policy("web");
    lab.until("the pod is open again", |l| l.reaches("4", "10.42.0.1:9090"));
}

#[test]
fn egress_is_checked_against_the_real_destination() {
    let Some(mut lab) = Lab::new("b") else { return };
    // A service address, translated as the proxy does.
    let translate = "nft \"table ip t { chain c { type nat hook prerouting priority -100; \
         ip daddr 10.43.0.2 dnat to 10.42.0.2; ip daddr 10.43.0.3 dnat to 10.42.0.3; }; }\"";
    lab.kernel.run(NODE, translate);
    let to = json!([{"podSelector": {"matchLabels": {"app": "a2"}}}, {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}]);
    let ports = json!([{"port": "web"}, {"port": 9000, "endPort": 9090}]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "a1"}}, "policyTypes": ["Egress"], "egress": [{"to": to, "ports": ports}]});
    lab.policy("out", spec);
    lab.start();
    for (to, expected) in [
        ("10.42.0.2:8080", true),
        ("10.42.0.2:9090", true),
        ("10.43.0.2:8080", true),
        ("10.42.0.3:8080", false),
        ("10.43.0.3:8080", false),
        ("192.0.2.1:9090", true),
        // A named port only matches ports of pods.
        ("192.0.2.1:8080", false),
        ("10.42.0.1:8080", true),
    ] {
        assert_eq!(lab.reaches("1", to), expected, "to {to}\n{}", lab.tables());
    }
    assert!(lab.reaches("2", "10.42.0.1:9090"), "ingress is not isolated, and replies leave");
}

#[test]
fn connections_end_when_a_policy_forbids_them_and_others_stay() {
    let Some(mut lab) = Lab::new("c") else { return };
    lab.start();
    lab.policy("first", json!({"podSelector": {"matchLabels": {"app": "a4"}}}));
    lab.until("policies are enforced", |l| !l.reaches("1", "10.42.0.4:8080"));
    let mut forbidden = lab.connect("3", "10.42.0.1:8080").expect("open");
    let mut allowed = lab.connect("2", "10.42.0.1:8080").expect("open");
    let mut of_node = lab.connect("h", "10.42.0.1:8080").expect("open");
    for connection in [&mut forbidden, &mut allowed, &mut of_node] {
        assert!(carries(connection));
    }
    let from = json!([{"podSelector": {"matchLabels": {"app": "a2"}}}]);
    lab.policy("second", json!({"podSelector": {"matchLabels": {"app": "a1"}}, "ingress": [{"from": from}]}));
    lab.until("the connection ends", |_| !carries(&mut forbidden));
    assert!(carries(&mut allowed) && carries(&mut of_node), "{}", lab.tables());
    // Bytes that were sent while the connection was blocked may arrive once it is allowed again; the connection itself
    // is intact.
    lab.remove_policy("second");
    lab.until("new connections pass", |l| l.reaches("3", "10.42.0.1:8080"));
}

#[test]
fn a_pod_that_starts_passes_the_gate_with_its_rules_in_force() {
    let Some(mut lab) = Lab::new("d") else { return };
    lab.api.delete("pods", "d", "p1");
    lab.policy("all", deny_all());
    lab.start();
    assert!(lab.reaches("h", "10.42.0.1:8080"));
    let pod = PodFacts { namespace: "d".into(), name: "p1".into(), ..PodFacts::default() };
    let ips: Vec<IpAddr> = vec!["10.42.0.1".parse().unwrap()];
    let gate = lab.running.as_ref().map(|(gate, ..)| gate.clone()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(lab.reaches("x", "10.42.0.1:8080"), "the address is no pod's yet");
    runtime.block_on(gate.pass(pod, ips)).expect("passes");
    assert!(!lab.reaches("x", "10.42.0.1:8080"), "{}", lab.tables());
    assert!(!lab.reaches("1", "192.0.2.1:8080"));
}

#[test]
fn rules_outlive_a_restart_and_go_with_cleanup() {
    let Some(mut lab) = Lab::new("e") else { return };
    lab.policy("all", deny_all());
    lab.start();
    assert!(!lab.reaches("2", "10.42.0.1:8080"));
    lab.stop();
    assert!(!lab.reaches("2", "10.42.0.1:8080"), "stopped, and still closed");
    lab.pod(2, json!({"app": "other"}));
    lab.start();
    assert!(!lab.reaches("2", "10.42.0.1:8080"));
    lab.stop();
    let dir = lab.dir.path().to_owned();
    let faults = lab.kernel.inside(NODE, move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(cleanup(&dir))
    });
    assert_eq!((faults, lab.tables().contains("-policy")), (Vec::new(), false));
}

/// Changes by another program: each lets forbidden packets pass until it is repaired, and is one transaction, since rules may
/// be restored between two.
const DAMAGE: [&str; 6] = [
    "nft flush ruleset",
    "nft delete table ip TABLE",
    "nft flush chain ip TABLE forward",
    "nft insert rule ip TABLE forward accept",
    "nft \"flush map ip TABLE ingress; flush map ip TABLE egress\"",
    "nft \"flush ruleset; table ip other { chain c { type filter hook forward priority 0; }; }\"",
];

/// Sends datagrams from pod 2 to pod 1 until it is dropped, each from another port, and records when one arrived.
struct Stream {
    last: Arc<Mutex<Option<Instant>>>,
    ended: Arc<AtomicBool>,
}

impl Stream {
    fn new(lab: &Lab) -> Self {
        let stream = Self { last: Arc::default(), ended: Arc::default() };
        let receiver = lab.kernel.inside("1", || UdpSocket::bind("0.0.0.0:7070").unwrap());
        receiver.set_read_timeout(Some(TRIED)).unwrap();
        let (last, ended) = (Arc::clone(&stream.last), Arc::clone(&stream.ended));
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if receiver.recv(&mut [0; 8]).is_ok() {
                    *last.lock() = Some(Instant::now());
                }
            }
        });
        let ended = Arc::clone(&stream.ended);
        lab.kernel.thread("2", move || {
            while !ended.load(Ordering::Relaxed) {
                let _ = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", "10.42.0.1:7070"));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        stream
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_another_program_changes_is_restored_at_once() {
    let Some(mut lab) = Lab::new("g") else { return };
    lab.policy("all", deny_all());
    lab.start();
    let table = kelson_net::network_id(lab.dir.path());
    let stream = Stream::new(&lab);
    for (n, damage) in DAMAGE.iter().enumerate() {
        *stream.last.lock() = None;
        let began = Instant::now();
        lab.kernel.run(NODE, &damage.replace("TABLE", &format!("kelson-{table}-policy")));
        let repairs = format!("kelson_network_policy_repairs_total {}\n", n + 1);
        lab.until(damage, |l| l.metrics().contains(&repairs));
        // The rules follow the report of the repair: no packets for a while means blocked again.
        lab.until("closed again", |_| {
            let open = stream.last.lock().is_some_and(|last| last.elapsed() < TRIED);
            !open && began.elapsed() > TRIED
        });
        let open = stream.last.lock().map(|last| last - began);
        eprintln!("{damage}: forbidden packets passed for {open:?}");
        assert!(!lab.reaches("2", "10.42.0.1:8080"), "{damage}\n{}", lab.tables());
    }
    let event = |e: &Value| e["reason"] == "NetworkPoliciesRestored" && e["involvedObject"]["kind"] == "Node";
    lab.until("the node has an event", |l| l.api.written("events").iter().any(event));
    // Another table is ignored, and enforcement's own transactions are not damage.
    lab.kernel.run(NODE, "nft add table ip mine");
    lab.pod(2, json!({"app": "changed"}));
    lab.policy("more", json!({"podSelector": {"matchLabels": {"app": "a1"}}, "ingress": [{}]}));
    lab.until("open", |l| l.reaches("h", "10.42.0.1:8080") && l.tables().contains("mine"));
    let repairs = format!("kelson_network_policy_repairs_total {}\n", DAMAGE.len());
    assert!(lab.metrics().contains(&repairs), "{}", lab.metrics());
}

#[test]
fn a_policy_with_parts_that_have_no_effect_gets_an_event() {
    let Some(mut lab) = Lab::new("h") else { return };
    lab.start();
    let events = |l: &Lab| {
        let of_policies = |e: &Value| e["involvedObject"]["kind"] == "NetworkPolicy";
        l.api.written("events").into_iter().filter(of_policies).collect::<Vec<_>>()
    };
    let spec = |app: &str| {
        json!({"podSelector": {"matchLabels": {"app": app}},
        "ingress": [{"from": [{"ipBlock": {"cidr": "fd00::/8"}}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]}]})
    };
    lab.policy("elsewhere", spec("none"));
    lab.policy("here", spec("a1"));
    lab.until("an event", |l| !events(l).is_empty());
    assert!(lab.reaches("x", "10.42.0.1:8080"), "the other part has its effect");
    lab.pod(2, json!({"app": "none"}));
    lab.until("the other policy selects a pod now", |l| events(l).len() == 2);
    let events = events(&lab);
    let names: Vec<&str> = events.iter().filter_map(|e| e["involvedObject"]["name"].as_str()).collect();
    assert_eq!(names, ["here", "elsewhere"], "{events:?}");
    assert_eq!((&events[0]["type"], &events[0]["reason"]), (&json!("Warning"), &json!("PolicyPartIneffective")));
    let message = events[0]["message"].as_str().unwrap();
    assert!(message.contains("spec.ingress[0]: ipBlock fd00::/8"), "{message}");
}

/// Rules that the kernel rejects in one transaction: overlapping ranges, thousands of blocks, many policies at once.
#[test]
fn large_and_changing_policies_are_taken() {
    let Some(mut lab) = Lab::new("f") else { return };
    lab.start();
    let blocks = |of: &dyn Fn(usize) -> String, count: usize| -> Value {
        (0..count).map(|n| json!({"ipBlock": {"cidr": of(n)}})).collect()
    };
    let select = json!({"matchLabels": {"app": "a1"}});
    for round in 0..4usize {
        let from = blocks(&|n| format!("10.{}.{}.0/{}", 100 + n / 256, n % 256, 23 + (n + round) % 3), 5000);
        let ports = json!([{"port": 80, "endPort": 90}, {"port": 85}, {"port": 80}, {"protocol": "UDP"}, {"protocol": "SCTP", "port": 7}]);
        lab.policy("blocks", json!({"podSelector": select, "ingress": [{"from": from, "ports": ports}]}));
    }
    for n in 0..200 {
        let peer = json!({"podSelector": {"matchLabels": {"app": format!("b{n}")}}});
        let spec = json!({"podSelector": select, "ingress": [{"from": [peer]}], "egress": [{"to": [peer], "ports": [{"port": "web"}]}]});
        lab.policy(&format!("many{n}"), spec);
    }
    lab.until("the pod is closed", |l| !l.reaches("2", "10.42.0.1:8080"));
    lab.pod(2, json!({"app": "b199"}));
    lab.until("its peer gets in", |l| l.reaches("2", "10.42.0.1:8080"));
    for n in 0..200 {
        lab.remove_policy(&format!("many{n}"));
    }
    lab.remove_policy("blocks");
    lab.until("the pod is open", |l| l.reaches("3", "10.42.0.1:9090"));
    let tables = lab.tables();
    assert!(lab.metrics().contains("kelson_network_policy_repairs_total 0\n"), "own changes are no damage");
    assert!(!["peers-", "blocks-", "ports-", "allow-", "deny-"].iter().any(|p| tables.contains(p)), "{tables}");
}
