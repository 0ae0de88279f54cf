//! Enforcement on a real kernel: a network namespace is the node, others are pods and a machine outside, and the test
//! plays the API server. Needs root; says SKIPPED otherwise. The machine's own network is not touched.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use kelson_client::{Client, Request, Response, Transport, TransportError};
use kelson_net::Family;
use kelson_network_policy::{Config, Gate, NetworkPolicies, PodFacts, cleanup};
use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Patience with the kernel; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a connection that should be dropped is tried.
const TRIED: Duration = Duration::from_millis(400);
const PODS: [u8; 4] = [1, 2, 3, 4];

/// Plays the API server: watch-lists of the objects that were put.
#[derive(Default)]
struct Api(Mutex<ApiState>);

#[derive(Default)]
struct ApiState {
    objects: BTreeMap<(String, String), Value>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
    revision: u64,
}

struct Frames(mpsc::UnboundedReceiver<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = TransportError;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        self.0.poll_recv(cx).map(|b| b.map(|b| Ok(Frame::data(b))))
    }
}

fn event(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

impl Transport for Api {
    fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
        let plural = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.lock();
        for ((of, _), object) in &state.objects {
            if *of == plural {
                sender.send(event("ADDED", object)).unwrap();
            }
        }
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": state.revision.to_string(), "annotations": annotations});
        sender.send(event("BOOKMARK", &json!({"metadata": metadata}))).unwrap();
        state.watchers.push((plural, sender));
        Box::pin(async move { Ok(http::Response::new(Frames(receiver).boxed_unsync())) })
    }
}

impl Api {
    fn put(&self, plural: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let key = (plural.to_owned(), object["metadata"]["name"].as_str().unwrap().to_owned());
        let kind = if state.objects.insert(key, object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        let line = event(kind, &object);
        state.watchers.retain(|(of, w)| of != plural || w.send(line.clone()).is_ok());
    }

    fn delete(&self, plural: &str, name: &str) {
        let mut state = self.0.lock();
        let object = state.objects.remove(&(plural.to_owned(), name.to_owned())).unwrap();
        let line = event("DELETED", &object);
        state.watchers.retain(|(of, w)| of != plural || w.send(line.clone()).is_ok());
    }

    fn pod(&self, n: u8, labels: Value) {
        let metadata = json!({"name": format!("p{n}"), "namespace": "d", "uid": format!("u{n}"), "labels": labels});
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let spec = json!({"nodeName": "here", "containers": [{"name": "c", "ports": ports}]});
        let status = json!({"phase": "Running", "podIPs": [{"ip": format!("10.42.0.{n}")}]});
        self.put("pods", json!({"metadata": metadata, "spec": spec, "status": status}));
    }

    fn policy(&self, name: &str, spec: Value) {
        self.put("networkpolicies", json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": spec}));
    }
}

fn run(script: &str) {
    let out = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(out.status.success(), "{script}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// A node `h` (192.0.2.2), a machine outside `x` (192.0.2.1), and pods with servers on ports 8080 and 9090.
struct Lab {
    prefix: String,
    dir: tempfile::TempDir,
    api: Arc<Api>,
    stop: Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
    gate: Option<Gate>,
}

impl Lab {
    fn new(label: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let prefix = format!("knq{}{label}", std::process::id());
        let lab = Self { prefix, dir: tempfile::tempdir().unwrap(), api: Arc::default(), stop: None, gate: None };
        for name in ["h", "x"] {
            run(&format!("ip netns add {0} && ip -n {0} link set lo up", lab.ns(name)));
        }
        let (h, x) = (lab.ns("h"), lab.ns("x"));
        run(&format!(
            "ip link add u0 netns {h} type veth peer name u1 netns {x}
             ip -n {h} addr add 192.0.2.2/24 dev u0; ip -n {h} link set u0 up
             ip -n {x} addr add 192.0.2.1/24 dev u1; ip -n {x} link set u1 up
             ip -n {h} route add default via 192.0.2.1; ip -n {x} route add 10.42.0.0/16 via 192.0.2.2
             ip netns exec {h} sysctl -qw net.ipv4.ip_forward=1"
        ));
        for n in PODS {
            let p = lab.ns(&n.to_string());
            run(&format!(
                "ip netns add {p}; ip -n {p} link set lo up
                 ip link add v{n} netns {h} type veth peer name eth0 netns {p}
                 ip -n {p} addr add 10.42.0.{n}/32 dev eth0; ip -n {p} link set eth0 up
                 ip -n {p} route add 10.42.0.254 dev eth0 scope link; ip -n {p} route add default via 10.42.0.254
                 ip -n {h} addr add 10.42.0.254/32 dev v{n}; ip -n {h} link set v{n} up
                 ip -n {h} route add 10.42.0.{n}/32 dev v{n}"
            ));
        }
        PODS.iter().for_each(|n| lab.serve(&n.to_string()));
        lab.serve("x");
        lab.api.put("namespaces", json!({"metadata": {"name": "d", "uid": "d", "labels": {"team": "one"}}}));
        PODS.iter().for_each(|n| lab.api.pod(*n, json!({"app": format!("a{n}")})));
        Some(lab)
    }

    fn ns(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn inside<T: Send + 'static>(&self, name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.ns(name))).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
        .join()
        .unwrap()
    }

    /// Echoes what connections send.
    fn serve(&self, name: &str) {
        for port in [8080, 9090] {
            let listener = self.inside(name, move || TcpListener::bind(("0.0.0.0", port)).unwrap());
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
        config.check_period = Duration::from_secs(1);
        let client = Client::new(self.api.clone(), "policy-test");
        let file = std::fs::File::open(format!("/run/netns/{}", self.ns("h"))).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (started, ready) = blocking::channel();
        let thread = std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            // Every thread of this runtime is made here, and so inside.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let running = NetworkPolicies::start(config, client, &kelson_tasks::Tasks::root("test"));
                running.ready().await;
                started.send(running.gate()).unwrap();
                let _ = stopped.await;
                running.shutdown().await;
            });
        });
        self.gate = Some(ready.recv_timeout(PATIENCE).expect("not ready"));
        self.stop = Some((stop, thread));
    }

    fn stop(&mut self) {
        if let Some((stop, thread)) = self.stop.take() {
            drop(stop);
            let _ = thread.join();
        }
    }

    /// Whether a connection can be made and carries bytes.
    fn reaches(&self, from: &str, to: &str) -> bool {
        self.connect(from, to).is_some_and(|mut connection| carries(&mut connection))
    }

    fn connect(&self, from: &str, to: &str) -> Option<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        self.inside(from, move || TcpStream::connect_timeout(&to, TRIED).ok())
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            assert!(begin.elapsed() < PATIENCE, "never: {what}\n{}", self.tables());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn tables(&self) -> String {
        let out = Command::new("ip").args(["netns", "exec", &self.ns("h"), "nft", "list", "ruleset"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
        for name in ["h", "x"].map(str::to_owned).into_iter().chain(PODS.map(|n| n.to_string())) {
            let _ = Command::new("ip").args(["netns", "del", &self.ns(&name)]).status();
        }
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
    lab.api.policy(
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
    lab.api.pod(3, json!({"app": "a2"}));
    lab.until("pod 3 is a peer now", |l| l.reaches("3", "10.42.0.1:8080"));
    lab.api.delete("networkpolicies", "web");
    lab.until("the pod is open again", |l| l.reaches("4", "10.42.0.1:9090"));
}

#[test]
fn egress_is_judged_by_the_real_destination() {
    let Some(mut lab) = Lab::new("b") else { return };
    // A service address, as the proxy would translate it.
    run(&format!(
        "ip netns exec {0} nft 'table ip t {{ chain c {{ type nat hook prerouting priority -100; \
         ip daddr 10.43.0.2 dnat to 10.42.0.2; ip daddr 10.43.0.3 dnat to 10.42.0.3; }}; }}'",
        lab.ns("h")
    ));
    let to = json!([{"podSelector": {"matchLabels": {"app": "a2"}}}, {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}]);
    let ports = json!([{"port": "web"}, {"port": 9000, "endPort": 9090}]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "a1"}}, "policyTypes": ["Egress"], "egress": [{"to": to, "ports": ports}]});
    lab.api.policy("out", spec);
    lab.start();
    for (to, expected) in [
        ("10.42.0.2:8080", true),
        ("10.42.0.2:9090", true),
        ("10.43.0.2:8080", true),
        ("10.42.0.3:8080", false),
        ("10.43.0.3:8080", false),
        ("192.0.2.1:9090", true),
        // A named port is a port of pods.
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
    lab.api.policy("first", json!({"podSelector": {"matchLabels": {"app": "a4"}}}));
    lab.until("policies are enforced", |l| !l.reaches("1", "10.42.0.4:8080"));
    let mut forbidden = lab.connect("3", "10.42.0.1:8080").expect("open");
    let mut allowed = lab.connect("2", "10.42.0.1:8080").expect("open");
    let mut of_node = lab.connect("h", "10.42.0.1:8080").expect("open");
    for connection in [&mut forbidden, &mut allowed, &mut of_node] {
        assert!(carries(connection));
    }
    let from = json!([{"podSelector": {"matchLabels": {"app": "a2"}}}]);
    lab.api.policy("second", json!({"podSelector": {"matchLabels": {"app": "a1"}}, "ingress": [{"from": from}]}));
    lab.until("the connection ends", |_| !carries(&mut forbidden));
    assert!(carries(&mut allowed) && carries(&mut of_node), "{}", lab.tables());
    // Bytes that were sent while the connection was cut may come once it is allowed again; the connection itself is whole.
    lab.api.delete("networkpolicies", "second");
    lab.until("new connections pass", |l| l.reaches("3", "10.42.0.1:8080"));
}

#[test]
fn a_pod_that_starts_passes_the_gate_with_its_rules_in_force() {
    let Some(mut lab) = Lab::new("d") else { return };
    lab.api.delete("pods", "p1");
    lab.api.policy("all", deny_all());
    lab.start();
    assert!(lab.reaches("h", "10.42.0.1:8080"));
    let pod = PodFacts { namespace: "d".into(), name: "p1".into(), ..PodFacts::default() };
    let ips: Vec<IpAddr> = vec!["10.42.0.1".parse().unwrap()];
    let gate = lab.gate.clone().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(lab.reaches("x", "10.42.0.1:8080"), "the address is no pod's yet");
    runtime.block_on(gate.pass(pod, ips)).expect("passes");
    assert!(!lab.reaches("x", "10.42.0.1:8080"), "{}", lab.tables());
    assert!(!lab.reaches("1", "192.0.2.1:8080"));
}

#[test]
fn rules_outlive_a_restart_and_return_when_another_program_removes_them() {
    let Some(mut lab) = Lab::new("e") else { return };
    lab.api.policy("all", deny_all());
    lab.start();
    assert!(!lab.reaches("2", "10.42.0.1:8080"));
    lab.stop();
    assert!(!lab.reaches("2", "10.42.0.1:8080"), "stopped, and still closed");
    lab.api.pod(2, json!({"app": "other"}));
    lab.start();
    assert!(!lab.reaches("2", "10.42.0.1:8080"));
    run(&format!("ip netns exec {} nft flush ruleset", lab.ns("h")));
    lab.until("the rules are restored", |l| !l.reaches("2", "10.42.0.1:8080"));
    lab.stop();
    let (dir, h) = (lab.dir.path().to_owned(), "h");
    let faults = lab.inside(h, move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(cleanup(&dir))
    });
    assert_eq!((faults, lab.tables().contains("-policy")), (Vec::new(), false));
}

/// Rules that the kernel refuses to share a transaction: overlapping ranges, thousands of blocks, many policies at once.
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
        lab.api.policy("blocks", json!({"podSelector": select, "ingress": [{"from": from, "ports": ports}]}));
    }
    for n in 0..200 {
        let peer = json!({"podSelector": {"matchLabels": {"app": format!("b{n}")}}});
        let spec = json!({"podSelector": select, "ingress": [{"from": [peer]}], "egress": [{"to": [peer], "ports": [{"port": "web"}]}]});
        lab.api.policy(&format!("many{n}"), spec);
    }
    lab.until("the pod is closed", |l| !l.reaches("2", "10.42.0.1:8080"));
    lab.api.pod(2, json!({"app": "b199"}));
    lab.until("its peer gets in", |l| l.reaches("2", "10.42.0.1:8080"));
    for n in 0..200 {
        lab.api.delete("networkpolicies", &format!("many{n}"));
    }
    lab.api.delete("networkpolicies", "blocks");
    lab.until("the pod is open", |l| l.reaches("3", "10.42.0.1:9090"));
    let tables = lab.tables();
    assert!(!["peers-", "blocks-", "ports-", "allow-", "deny-"].iter().any(|p| tables.contains(p)), "{tables}");
}
