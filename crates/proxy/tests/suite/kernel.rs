//! The proxy on a real kernel: a network namespace stands for the node, others for pods and for a machine outside, and
//! an API server is played by the test. Needs root; says SKIPPED otherwise. The machine's own network is not touched.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
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
use kelson_meta::SystemClock;
use kelson_proxy::{Config, Proxy, cleanup};
use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Patience with the kernel and the proxy; reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// Plays the API server: watch-lists of whatever was put.
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

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

impl Transport for Api {
    fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
        let plural = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.lock();
        for ((of, _), object) in &state.objects {
            if *of == plural {
                sender.send(line("ADDED", object)).unwrap();
            }
        }
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": state.revision.to_string(), "annotations": annotations});
        sender.send(line("BOOKMARK", &json!({"metadata": metadata}))).unwrap();
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
        let known = state.objects.insert(key, object.clone()).is_some();
        let line = line(if known { "MODIFIED" } else { "ADDED" }, &object);
        state.watchers.retain(|(of, w)| of != plural || w.send(line.clone()).is_ok());
    }

    /// A service named `web` at 10.43.0.9: TCP 80 with node port 30080, UDP 53 with 30053.
    fn service(&self, spec: Value) {
        let mut full = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort", "ports": [
            {"name": "t", "protocol": "TCP", "port": 80, "nodePort": 30080},
            {"name": "u", "protocol": "UDP", "port": 53, "nodePort": 30053}]});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.put("services", json!({"metadata": {"name": "web", "namespace": "d", "uid": "u"}, "spec": full}));
    }

    /// The same with a load balancer at 198.51.100.8 for clients in `range`, and an external address beside it.
    fn balancer(&self, range: &str) {
        let metadata = json!({"name": "web", "namespace": "d", "uid": "u"});
        let spec = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "LoadBalancer",
            "loadBalancerSourceRanges": [range], "externalIPs": ["198.51.100.7"],
            "ports": [{"name": "t", "protocol": "TCP", "port": 80, "nodePort": 30080}]});
        let status = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.8"}]}});
        self.put("services", json!({"metadata": metadata, "spec": spec, "status": status}));
    }

    /// Its endpoints: last octet, and whether the pod is on this node.
    fn endpoints(&self, pods: &[(u8, bool)]) {
        let endpoints: Vec<Value> = pods
            .iter()
            .map(|(n, here)| {
                let node = if *here { "here" } else { "far" };
                json!({"addresses": [format!("10.42.0.{n}")], "conditions": {"ready": true}, "nodeName": node})
            })
            .collect();
        self.put(
            "endpointslices",
            json!({"addressType": "IPv4", "endpoints": endpoints,
            "metadata": {"name": "web-1", "namespace": "d", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "t", "protocol": "TCP", "port": 8080}, {"name": "u", "protocol": "UDP", "port": 8053}]}),
        );
    }
}

fn run(script: &str) {
    let out = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(out.status.success(), "{script}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// A node `h` (192.0.2.2), a machine outside `x` (192.0.2.1), pods 1 to 3 with servers and 9 without.
struct Lab {
    prefix: String,
    dir: tempfile::TempDir,
    api: Arc<Api>,
    stop: Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
}

const PODS: [u8; 4] = [1, 2, 3, 9];

impl Lab {
    fn new(label: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let prefix = format!("knp{}{label}", std::process::id());
        let lab = Self { prefix, dir: tempfile::tempdir().unwrap(), api: Arc::default(), stop: None };
        for name in ["h", "x"] {
            run(&format!("ip netns add {0} && ip -n {0} link set lo up", lab.ns(name)));
        }
        let (h, x) = (lab.ns("h"), lab.ns("x"));
        run(&format!(
            "ip link add u0 netns {h} type veth peer name u1 netns {x}
             ip -n {h} addr add 192.0.2.2/24 dev u0; ip -n {h} link set u0 up
             ip -n {x} addr add 192.0.2.1/24 dev u1; ip -n {x} link set u1 up
             ip -n {h} route add default via 192.0.2.1; ip -n {x} route add 10.43.0.0/16 via 192.0.2.2
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
        [1, 2, 3].iter().for_each(|n| lab.serve(*n));
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

    /// Tells whoever asks the pod's number and the asker's address.
    fn serve(&self, n: u8) {
        let (tcp, udp) = self.inside(&n.to_string(), || {
            (TcpListener::bind("0.0.0.0:8080").unwrap(), UdpSocket::bind("0.0.0.0:8053").unwrap())
        });
        std::thread::spawn(move || {
            for connection in tcp.incoming() {
                let mut connection = connection.unwrap();
                let from = connection.peer_addr().unwrap().ip();
                // A client that is gone is its own business.
                let _ = write!(connection, "{n} {from}");
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(format!("{n} {}", from.ip()).as_bytes(), from);
            }
        });
    }

    fn start(&mut self) {
        let ips = vec!["192.0.2.2".parse().unwrap()];
        let mut config = Config::new(self.dir.path(), "here", ips, vec!["10.42.0.0/16".parse().unwrap()]);
        // Not in this test: what another program takes away is told by the kernel.
        config.check_period = Duration::from_secs(3600);
        config.health_bind = vec!["192.0.2.2:10256".parse().unwrap()];
        let client = Client::new(self.api.clone(), "proxy-test");
        let file = std::fs::File::open(format!("/run/netns/{}", self.ns("h"))).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (told, ready) = blocking::channel();
        let thread = std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            // Every thread of this runtime is made here, and so inside.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let proxy = Proxy::start(config, client, Arc::new(SystemClock), &kelson_tasks::Tasks::root("test"));
                proxy.ready().await;
                told.send(()).unwrap();
                let _ = stopped.await;
                proxy.shutdown().await;
            });
        });
        ready.recv_timeout(PATIENCE).expect("the proxy is not ready");
        self.stop = Some((stop, thread));
    }

    /// One connection from `from`: who answered, and whom it saw.
    fn ask(&self, from: &str, to: &str) -> Result<(u8, String), std::io::ErrorKind> {
        let to: SocketAddr = to.parse().unwrap();
        self.inside(from, move || {
            let mut text = String::new();
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(3)).map_err(|e| e.kind())?;
            stream.read_to_string(&mut text).map_err(|e| e.kind())?;
            let (pod, seen) = text.split_once(' ').unwrap();
            Ok((pod.parse().unwrap(), seen.to_owned()))
        })
    }

    /// Which pods answer in many connections.
    fn who(&self, from: &str, to: &str) -> BTreeSet<u8> {
        (0..24).map(|_| self.ask(from, to).unwrap().0).collect()
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            assert!(begin.elapsed() < PATIENCE, "never: {what}\n{}", self.tables());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tables(&self) -> String {
        let out = Command::new("ip").args(["netns", "exec", &self.ns("h"), "nft", "list", "ruleset"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    fn http(&self, to: &str) -> String {
        let to: SocketAddr = to.parse().unwrap();
        self.inside("x", move || {
            let Ok(mut stream) = TcpStream::connect(to) else { return String::new() };
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.stop.take() {
            drop(stop);
            let _ = thread.join();
        }
        for name in ["h", "x"].map(str::to_owned).into_iter().chain(PODS.map(|n| n.to_string())) {
            let _ = Command::new("ip").args(["netns", "del", &self.ns(&name)]).status();
        }
    }
}

const IP: &str = "10.43.0.9:80";
const NODE_PORT: &str = "192.0.2.2:30080";

#[test]
fn cluster_ip_and_node_port() {
    let Some(mut lab) = Lab::new("a") else { return };
    lab.api.service(json!({}));
    lab.api.endpoints(&[(1, true), (2, true), (3, true)]);
    lab.start();
    for (from, to) in [("9", IP), ("h", IP), ("x", IP), ("9", NODE_PORT), ("h", NODE_PORT), ("x", NODE_PORT)] {
        assert_eq!(lab.who(from, to), BTreeSet::from([1, 2, 3]), "{from} to {to}");
    }
    assert_eq!(lab.ask("9", IP).unwrap().1, "10.42.0.9", "a pod's address is kept");
    assert_eq!(lab.ask("x", IP).unwrap().1, "10.42.0.254", "one from outside is not");
    assert_eq!(lab.ask("x", NODE_PORT).unwrap().1, "10.42.0.254");
    assert_eq!(lab.ask("9", "10.43.0.9:81"), Err(std::io::ErrorKind::ConnectionRefused), "no such port");

    // Alone, a pod meets itself.
    lab.api.endpoints(&[(1, true)]);
    lab.until("one endpoint", |l| l.who("9", IP) == BTreeSet::from([1]));
    assert_eq!(lab.ask("1", IP).unwrap(), (1, "10.42.0.254".to_owned()), "hairpin");
    assert_eq!(lab.ask("1", NODE_PORT).unwrap().0, 1, "hairpin by node port");

    lab.api.endpoints(&[]);
    let refused = Err(std::io::ErrorKind::ConnectionRefused);
    for (from, to) in [("9", IP), ("h", IP), ("x", IP), ("9", NODE_PORT), ("h", NODE_PORT), ("x", NODE_PORT)] {
        lab.until(&format!("{from} to {to} refused"), |l| l.ask(from, to) == refused);
    }
    // Somebody else's hand.
    lab.api.endpoints(&[(2, true)]);
    lab.until("served again", |l| l.ask("9", IP).is_ok());
    run(&format!("ip netns exec {} nft flush ruleset", lab.ns("h")));
    lab.until("repaired", |l| l.ask("x", NODE_PORT).is_ok());
    assert!(lab.http("192.0.2.2:10256").starts_with("HTTP/1.1 200"));
}

#[test]
fn policies_and_affinity() {
    let Some(mut lab) = Lab::new("b") else { return };
    lab.api.service(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30999}));
    lab.api.endpoints(&[(1, false), (2, true)]);
    lab.start();
    assert_eq!(lab.who("x", NODE_PORT), BTreeSet::from([2]), "only the local one from outside");
    assert_eq!(lab.ask("x", NODE_PORT).unwrap().1, "192.0.2.1", "and it sees the client");
    for (from, to) in [("9", NODE_PORT), ("h", NODE_PORT), ("9", IP)] {
        assert_eq!(lab.who(from, to), BTreeSet::from([1, 2]), "{from} to {to}");
    }
    lab.until("health check node port", |l| l.http("192.0.2.2:30999").contains(r#""localEndpoints":1"#));
    lab.api.endpoints(&[(1, false)]);
    lab.until("503", |l| l.http("192.0.2.2:30999").starts_with("HTTP/1.1 503"));
    // Health is told before the rules of the same change are in the kernel.
    lab.until("the remaining endpoint", |l| l.who("9", NODE_PORT) == BTreeSet::from([1]));

    lab.api.service(json!({"internalTrafficPolicy": "Local"}));
    lab.api.endpoints(&[(1, false), (3, true)]);
    lab.until("internal policy", |l| l.who("9", IP) == BTreeSet::from([3]));

    lab.api.service(json!({"sessionAffinity": "ClientIP"}));
    lab.api.endpoints(&[(1, true), (2, true), (3, true)]);
    lab.until("affinity rules", |l| l.tables().matches("flags dynamic,timeout").count() == 6);
    let one = lab.who("9", IP);
    assert_eq!(one.len(), 1, "a client sticks");
    // Its endpoint goes: another one serves, and again always the same.
    let rest: Vec<(u8, bool)> = [1, 2, 3].into_iter().filter(|n| !one.contains(n)).map(|n| (n, true)).collect();
    lab.api.endpoints(&rest);
    lab.until("moved", |l| !one.contains(&l.ask("9", IP).unwrap().0));
    assert_eq!(lab.who("9", IP).len(), 1);
}

#[test]
fn load_balancers_and_their_source_ranges() {
    let Some(mut lab) = Lab::new("d") else { return };
    run(&format!("ip -n {} route add 198.51.100.0/24 via 192.0.2.2", lab.ns("x")));
    lab.api.balancer("192.0.2.1/32");
    lab.api.endpoints(&[(1, true), (2, false)]);
    lab.start();
    let (external, vip) = ("198.51.100.7:80", "198.51.100.8:80");
    for to in [external, vip] {
        assert_eq!(lab.who("x", to), BTreeSet::from([1, 2]), "{to}");
    }
    assert_eq!(lab.ask("9", vip), Err(std::io::ErrorKind::TimedOut), "a pod is outside the range");
    lab.api.balancer("10.42.0.0/16");
    lab.until("the pods' turn", |l| l.ask("9", vip).is_ok());
    assert!(lab.ask("x", vip).is_err(), "now those outside are not admitted");
    assert!(lab.ask("x", NODE_PORT).is_ok(), "node ports have no ranges");
}

#[test]
fn udp_flows_follow_the_endpoints() {
    let Some(mut lab) = Lab::new("c") else { return };
    lab.api.service(json!({}));
    lab.api.endpoints(&[]);
    lab.start();
    let socket = lab.inside("9", || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket.connect("10.43.0.9:53").unwrap();
        socket
    });
    // One socket, so one flow.
    let ask = || -> Option<u8> {
        socket.send(b"?").ok()?;
        let mut buffer = [0; 64];
        let count = socket.recv(&mut buffer).ok()?;
        std::str::from_utf8(&buffer[..count]).unwrap().split(' ').next()?.parse().ok()
    };
    let refused = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 8])).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    for n in [1, 2, 3] {
        lab.api.endpoints(&[(n, true)]);
        lab.until(&format!("the flow moves to {n}"), |_| ask() == Some(n));
    }
    let (stop, thread) = lab.stop.take().unwrap();
    drop(stop);
    thread.join().unwrap();
    assert_eq!(ask(), Some(3), "rules outlive the proxy");
    let dir = lab.dir.path().to_owned();
    let clean = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { [cleanup(&dir).await, cleanup(&dir).await].concat() })
    };
    assert_eq!(lab.inside("h", clean), Vec::<String>::new());
    assert_eq!(lab.tables(), "");
}
