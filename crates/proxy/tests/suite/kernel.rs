//! The proxy on a real kernel: a network namespace represents the node, others represent pods and a machine outside,
//! and the test acts as the API server. Needs root; prints SKIPPED otherwise. The machine's own network is not changed.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_doubles::WatchApi;
use kelson_doubles::lab::{self, Hosted, NODE, OUTSIDE};
use kelson_meta::SystemClock;
use kelson_proxy::{Config, Proxy, cleanup};
use rustix::net::{AddressFamily, SocketType, ipproto};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

/// Pods 1 to 3 with servers, 9 without, and the proxy of their node.
struct Lab {
    // The first field, so that the proxy ends before its namespace.
    proxy: Option<Hosted>,
    kernel: lab::Lab,
    dir: tempfile::TempDir,
    api: Arc<WatchApi>,
}

const PODS: [u8; 4] = [1, 2, 3, 9];

/// Moves this thread into a network namespace.
pub fn enter(namespace: &std::fs::File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

impl Lab {
    fn new(label: &str) -> Option<Self> {
        let kernel = lab::Lab::new(&format!("knp{label}"), PODS, enter)?;
        let lab = Self { kernel, dir: tempfile::tempdir().unwrap(), api: Arc::default(), proxy: None };
        [1, 2, 3].iter().for_each(|n| lab.serve(*n));
        Some(lab)
    }

    /// Stores a service named `web` at 10.43.0.9: TCP 80 with node port 30080, UDP 53 with 30053.
    fn service(&self, spec: Value) {
        let mut full = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort", "ports": [
            {"name": "t", "protocol": "TCP", "port": 80, "nodePort": 30080},
            {"name": "u", "protocol": "UDP", "port": 53, "nodePort": 30053}]});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.api.put("services", json!({"metadata": {"name": "web", "namespace": "d", "uid": "u"}, "spec": full}));
    }

    /// Stores the service with a load balancer at 198.51.100.8 for clients in `range`, and an external address.
    fn balancer(&self, range: &str) {
        let metadata = json!({"name": "web", "namespace": "d", "uid": "u"});
        let spec = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "LoadBalancer",
            "loadBalancerSourceRanges": [range], "externalIPs": ["198.51.100.7"],
            "ports": [{"name": "t", "protocol": "TCP", "port": 80, "nodePort": 30080}]});
        let status = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.8"}]}});
        self.api.put("services", json!({"metadata": metadata, "spec": spec, "status": status}));
    }

    /// Stores its endpoints: last octet, and whether the pod is on this node.
    fn endpoints(&self, pods: &[(u8, bool)]) {
        let endpoint = |(n, here): &(u8, bool)| {
            let node = if *here { "here" } else { "far" };
            json!({"addresses": [format!("10.42.0.{n}")], "conditions": {"ready": true}, "nodeName": node})
        };
        self.slice(pods.iter().map(endpoint).collect());
    }

    /// Stores endpoints by last octet, all on this node: terminating ones still serve.
    fn terminating(&self, pods: &[(u8, bool)]) {
        let endpoint = |(n, terminating): &(u8, bool)| {
            let conditions = json!({"ready": !terminating, "serving": true, "terminating": terminating});
            json!({"addresses": [format!("10.42.0.{n}")], "conditions": conditions, "nodeName": "here"})
        };
        self.slice(pods.iter().map(endpoint).collect());
    }

    fn slice(&self, endpoints: Vec<Value>) {
        let labels = json!({"kubernetes.io/service-name": "web"});
        let ports =
            json!([{"name": "t", "protocol": "TCP", "port": 8080}, {"name": "u", "protocol": "UDP", "port": 8053}]);
        let metadata = json!({"name": "web-1", "namespace": "d", "labels": labels});
        let slice = json!({"addressType": "IPv4", "endpoints": endpoints, "metadata": metadata, "ports": ports});
        self.api.put("endpointslices", slice);
    }

    /// Answers clients with the pod's number and the client's address.
    fn serve(&self, n: u8) {
        let (tcp, udp) = self.kernel.inside(&n.to_string(), || {
            (TcpListener::bind("0.0.0.0:8080").unwrap(), UdpSocket::bind("0.0.0.0:8053").unwrap())
        });
        std::thread::spawn(move || {
            for connection in tcp.incoming() {
                let mut connection = connection.unwrap();
                let from = connection.peer_addr().unwrap().ip();
                // A client may have disconnected.
                let _ = write!(connection, "{n} {from}");
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((count, from)) = udp.recv_from(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                // A client may request that the server writes to another socket.
                let to = text.strip_prefix("to ").map_or(from, |to| to.parse().unwrap());
                let _ = udp.send_to(format!("{n} {}", from.ip()).as_bytes(), to);
            }
        });
    }

    fn start(&mut self) {
        let ips = vec!["192.0.2.2".parse().unwrap()];
        let mut config = Config::new(self.dir.path(), "here", ips, vec!["10.42.0.0/16".parse().unwrap()]);
        // Disabled in this test: the kernel reports changes by other programs.
        config.check_period = Duration::from_secs(3600);
        config.health_bind = vec!["192.0.2.2:10256".parse().unwrap()];
        self.start_with(config);
    }

    fn start_with(&mut self, config: Config) {
        let client = Client::new(self.api.clone(), "proxy-test");
        let ((), proxy) = self.kernel.host(NODE, move |started, stopped| async move {
            let proxy = Proxy::start(config, client, Arc::new(SystemClock), &kelson_tasks::Tasks::root("test"));
            proxy.ready().await;
            started.send(()).unwrap();
            let _ = stopped.await;
            proxy.shutdown().await;
        });
        self.proxy = Some(proxy);
    }

    /// Opens a connection from `from`; returns which pod answered, and the client address it saw.
    fn ask(&self, from: &str, to: &str) -> Result<(u8, String), std::io::ErrorKind> {
        let to: SocketAddr = to.parse().unwrap();
        self.kernel.inside(from, move || {
            let mut text = String::new();
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(3)).map_err(|e| e.kind())?;
            stream.read_to_string(&mut text).map_err(|e| e.kind())?;
            let (pod, seen) = text.split_once(' ').unwrap();
            Ok((pod.parse().unwrap(), seen.to_owned()))
        })
    }

    /// Returns the pods that answer in many connections.
    fn who(&self, from: &str, to: &str) -> BTreeSet<u8> {
        (0..24).map(|_| self.ask(from, to).unwrap().0).collect()
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        self.kernel.until(what, || holds(self));
    }

    fn tables(&self) -> String {
        self.kernel.rules()
    }

    fn http(&self, to: &str) -> String {
        let to: SocketAddr = to.parse().unwrap();
        self.kernel.inside("x", move || {
            let Ok(mut stream) = TcpStream::connect(to) else { return String::new() };
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
    }
}

const IP: &str = "10.43.0.9:80";
const NODE_PORT: &str = "192.0.2.2:30080";

/// Services without node ports share the chains that pick an endpoint.
#[test]
fn a_cluster_address_alone_reaches_every_endpoint() {
    let Some(mut lab) = Lab::new("shared") else { return };
    lab.service(json!({"type": "ClusterIP", "ports": [{"name": "t", "port": 80}, {"name": "u", "protocol": "UDP", "port": 53}]}));
    lab.endpoints(&[(1, true), (2, true), (3, true)]);
    lab.start();
    assert_eq!(lab.who("9", "10.43.0.9:80"), BTreeSet::from([1, 2, 3]));
    assert_eq!(lab.who(NODE, "10.43.0.9:80"), BTreeSet::from([1, 2, 3]));
    lab.endpoints(&[(1, true), (3, true)]);
    lab.kernel.until("the second endpoint is gone", || lab.who("9", "10.43.0.9:80") == BTreeSet::from([1, 3]));
    lab.endpoints(&[(2, true), (3, true)]);
    lab.kernel.until("an endpoint is another one", || lab.who("9", "10.43.0.9:80") == BTreeSet::from([2, 3]));
    let rules = lab.kernel.rules();
    assert!(!rules.contains("chain service-"), "{rules}");
}

/// The values are those of kube-proxy. A half-closed connection is translated for an hour.
#[test]
fn time_outs_of_connection_tracking_are_set() {
    let Some(mut lab) = Lab::new("timeouts") else { return };
    lab.start();
    let timeout = |state: &str| {
        let setting = format!("sysctl -n net.netfilter.nf_conntrack_tcp_timeout_{state}");
        lab.kernel.run(NODE, &setting).trim().to_owned()
    };
    assert_eq!((timeout("close_wait").as_str(), timeout("established").as_str()), ("3600", "86400"));
}

#[test]
fn cluster_ip_and_node_port() {
    let Some(mut lab) = Lab::new("a") else { return };
    lab.service(json!({}));
    lab.endpoints(&[(1, true), (2, true), (3, true)]);
    lab.start();
    for (from, to) in [("9", IP), ("h", IP), ("x", IP), ("9", NODE_PORT), ("h", NODE_PORT), ("x", NODE_PORT)] {
        assert_eq!(lab.who(from, to), BTreeSet::from([1, 2, 3]), "{from} to {to}");
    }
    assert_eq!(lab.ask("9", IP).unwrap().1, "10.42.0.9", "a pod's address is kept");
    assert_eq!(lab.ask("x", IP).unwrap().1, "10.42.0.254", "one from outside is not");
    assert_eq!(lab.ask("x", NODE_PORT).unwrap().1, "10.42.0.254");
    assert_eq!(lab.ask("9", "10.43.0.9:81"), Err(std::io::ErrorKind::ConnectionRefused), "no such port");

    // A single pod connects to itself.
    lab.endpoints(&[(1, true)]);
    lab.until("one endpoint", |l| l.who("9", IP) == BTreeSet::from([1]));
    assert_eq!(lab.ask("1", IP).unwrap(), (1, "10.42.0.254".to_owned()), "hairpin");
    assert_eq!(lab.ask("1", NODE_PORT).unwrap().0, 1, "hairpin by node port");

    lab.endpoints(&[]);
    let refused = Err(std::io::ErrorKind::ConnectionRefused);
    for (from, to) in [("9", IP), ("h", IP), ("x", IP), ("9", NODE_PORT), ("h", NODE_PORT), ("x", NODE_PORT)] {
        lab.until(&format!("{from} to {to} refused"), |l| l.ask(from, to) == refused);
    }
    // Acts as another program.
    lab.endpoints(&[(2, true)]);
    lab.until("served again", |l| l.ask("9", IP).is_ok());
    lab.kernel.run(NODE, "nft flush ruleset");
    lab.until("repaired", |l| l.ask("x", NODE_PORT).is_ok());
    assert!(lab.http("192.0.2.2:10256").starts_with("HTTP/1.1 200"));
}

#[test]
fn policies_and_affinity() {
    let Some(mut lab) = Lab::new("b") else { return };
    lab.service(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30999}));
    lab.endpoints(&[(1, false), (2, true)]);
    lab.start();
    assert_eq!(lab.who("x", NODE_PORT), BTreeSet::from([2]), "only the local one from outside");
    assert_eq!(lab.ask("x", NODE_PORT).unwrap().1, "192.0.2.1", "and it sees the client");
    for (from, to) in [("9", NODE_PORT), ("h", NODE_PORT), ("9", IP)] {
        assert_eq!(lab.who(from, to), BTreeSet::from([1, 2]), "{from} to {to}");
    }
    lab.until("health check node port", |l| l.http("192.0.2.2:30999").contains(r#""localEndpoints":1"#));
    lab.endpoints(&[(1, false)]);
    lab.until("503", |l| l.http("192.0.2.2:30999").starts_with("HTTP/1.1 503"));
    // Health is reported before the rules of the same change are in the kernel.
    lab.until("the remaining endpoint", |l| l.who("9", NODE_PORT) == BTreeSet::from([1]));

    lab.service(json!({"internalTrafficPolicy": "Local"}));
    lab.endpoints(&[(1, false), (3, true)]);
    lab.until("internal policy", |l| l.who("9", IP) == BTreeSet::from([3]));

    lab.service(json!({"sessionAffinity": "ClientIP"}));
    lab.endpoints(&[(1, true), (2, true), (3, true)]);
    lab.until("affinity rules", |l| l.tables().matches("flags dynamic,timeout").count() == 6);
    let one = lab.who("9", IP);
    assert_eq!(one.len(), 1, "a client sticks");
    // Its endpoint is removed: another one serves, again always the same.
    let rest: Vec<(u8, bool)> = [1, 2, 3].into_iter().filter(|n| !one.contains(n)).map(|n| (n, true)).collect();
    lab.endpoints(&rest);
    lab.until("moved", |l| !one.contains(&l.ask("9", IP).unwrap().0));
    assert_eq!(lab.who("9", IP).len(), 1);
}

/// Returns the client addresses in affinity sets.
fn remembered(lab: &Lab) -> usize {
    lab.tables().lines().filter(|line| line.contains("elements = {") && line.contains("expires")).count()
}

#[test]
fn a_client_is_forgotten_after_its_affinity_timeout() {
    let Some(mut lab) = Lab::new("e") else { return };
    let config = |seconds: u32| {
        json!({"sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    lab.service(config(1));
    lab.endpoints(&[(1, true), (2, true), (3, true)]);
    lab.start();
    lab.ask("9", IP).unwrap();
    lab.until("forgotten after a second without a connection", |l| remembered(l) == 0);
    // Another timeout uses another set, so clients start over.
    lab.service(config(600));
    lab.until("the new time-out", |l| l.tables().contains("timeout 10m"));
    let one = lab.who("9", IP);
    assert_eq!((one.len(), remembered(&lab)), (1, 1), "{}", lab.tables());
}

#[test]
fn terminating_endpoints_serve_while_there_is_no_other() {
    let Some(mut lab) = Lab::new("f") else { return };
    lab.service(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30999}));
    lab.terminating(&[(1, true), (2, false)]);
    lab.start();
    for (from, to) in [("9", IP), ("x", NODE_PORT)] {
        assert_eq!(lab.who(from, to), BTreeSet::from([2]), "the ready one, {from} to {to}");
    }
    lab.terminating(&[(1, true)]);
    for (from, to) in [("9", IP), ("x", NODE_PORT), ("h", NODE_PORT)] {
        lab.until("the last one serves", |l| l.ask(from, to).is_ok_and(|(pod, _)| pod == 1));
    }
    // A load balancer must not send new clients: terminating endpoints do not count.
    lab.until("unhealthy", |l| l.http("192.0.2.2:30999").starts_with("HTTP/1.1 503"));
}

#[test]
fn node_ports_are_not_on_loopback() {
    let Some(mut lab) = Lab::new("g") else { return };
    lab.service(json!({}));
    lab.endpoints(&[(1, true)]);
    let mut config =
        Config::new(lab.dir.path(), "here", vec!["192.0.2.2".parse().unwrap()], vec!["10.42.0.0/16".parse().unwrap()]);
    config.nodeport_addresses = vec!["0.0.0.0/0".parse().unwrap()];
    lab.start_with(config);
    for (from, to) in [("x", NODE_PORT), ("h", NODE_PORT), ("9", "10.42.0.254:30080"), ("h", "10.42.0.254:30080")] {
        assert_eq!(lab.ask(from, to).map(|(pod, _)| pod), Ok(1), "{from} to {to}");
    }
    assert_eq!(lab.ask("h", "127.0.0.1:30080"), Err(std::io::ErrorKind::ConnectionRefused));
}

/// Sends an echo request from a pod; returns the type of the ICMP message that answers.
fn icmp(lab: &Lab, to: &str) -> Option<u8> {
    let to: SocketAddr = format!("{to}:0").parse().unwrap();
    lab.kernel.inside("9", move || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        // Type 8, code 0, checksum, identifier and sequence of zero.
        socket.send_to(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0], to).unwrap();
        let mut buffer = [0; 256];
        let count = socket.recv(&mut buffer).ok()?;
        let header = usize::from(buffer[0] & 0xf) * 4;
        buffer[..count].get(header).copied()
    })
}

#[test]
fn icmp_to_a_cluster_address_is_rejected_whether_or_not_it_has_endpoints() {
    let Some(mut lab) = Lab::new("h") else { return };
    lab.service(json!({}));
    lab.endpoints(&[(1, true)]);
    lab.start();
    const UNREACHABLE: Option<u8> = Some(3);
    assert_eq!(icmp(&lab, "10.42.0.1"), Some(0), "a pod answers");
    assert_eq!(icmp(&lab, "10.43.0.9"), UNREACHABLE);
    lab.endpoints(&[]);
    lab.until("no endpoints", |l| l.ask("9", IP).is_err());
    assert_eq!(icmp(&lab, "10.43.0.9"), UNREACHABLE);
}

#[test]
fn a_udp_flow_that_the_server_opened_does_not_keep_clients_out() {
    let Some(mut lab) = Lab::new("i") else { return };
    lab.service(json!({}));
    lab.endpoints(&[(1, true)]);
    lab.start();
    let client = || lab.kernel.inside("9", || UdpSocket::bind("0.0.0.0:0").unwrap());
    let (socket, control) = (client(), client());
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let service: SocketAddr = "10.43.0.9:53".parse().unwrap();
    let ask = || -> Option<u8> {
        // The socket is not connected: unsolicited data of the server is read and dropped.
        socket.send_to(b"?", service).ok()?;
        let mut buffer = [0; 64];
        loop {
            let (count, from) = socket.recv_from(&mut buffer).ok()?;
            if from == service {
                return std::str::from_utf8(&buffer[..count]).unwrap().split(' ').next()?.parse().ok();
            }
        }
    };
    assert_eq!(ask(), Some(1));
    lab.endpoints(&[]);
    lab.until("the flow ends", |_| ask().is_none());
    // The removed endpoint continues to send to its client.
    let to = format!("to 10.42.0.9:{}", socket.local_addr().unwrap().port());
    control.send_to(to.as_bytes(), "10.42.0.1:8053").unwrap();
    lab.endpoints(&[(1, true)]);
    lab.until("the endpoint serves again", |_| ask() == Some(1));
    lab.endpoints(&[(2, true)]);
    lab.until("another one serves", |_| ask() == Some(2));
}

#[test]
fn load_balancers_and_their_source_ranges() {
    let Some(mut lab) = Lab::new("d") else { return };
    lab.kernel.run(OUTSIDE, "ip route add 198.51.100.0/24 via 192.0.2.2");
    lab.balancer("192.0.2.1/32");
    lab.endpoints(&[(1, true), (2, false)]);
    lab.start();
    let (external, vip) = ("198.51.100.7:80", "198.51.100.8:80");
    for to in [external, vip] {
        assert_eq!(lab.who("x", to), BTreeSet::from([1, 2]), "{to}");
    }
    assert_eq!(lab.ask("9", vip), Err(std::io::ErrorKind::TimedOut), "a pod is outside the range");
    lab.balancer("10.42.0.0/16");
    lab.until("the pods' turn", |l| l.ask("9", vip).is_ok());
    assert!(lab.ask("x", vip).is_err(), "now those outside are not admitted");
    assert!(lab.ask("x", NODE_PORT).is_ok(), "node ports have no ranges");
}

#[test]
fn udp_flows_follow_the_endpoints() {
    let Some(mut lab) = Lab::new("c") else { return };
    lab.service(json!({}));
    lab.endpoints(&[]);
    lab.start();
    let socket = lab.kernel.inside("9", || {
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
        lab.endpoints(&[(n, true)]);
        lab.until(&format!("the flow moves to {n}"), |_| ask() == Some(n));
    }
    lab.proxy = None;
    assert_eq!(ask(), Some(3), "rules outlive the proxy");
    let dir = lab.dir.path().to_owned();
    let clean = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { [cleanup(&dir).await, cleanup(&dir).await].concat() })
    };
    assert_eq!(lab.kernel.inside("h", clean), Vec::<String>::new());
    assert_eq!(lab.tables(), "");
}
