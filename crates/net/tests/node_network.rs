//! The pod network on a real kernel: a network namespace represents the host, others represent pods, and the plugin
//! runs as under a runtime. Needs root; prints SKIPPED otherwise. The machine's own network is not changed.

// Helpers of a test are a test: a panic is how they fail.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kelson-cni");

/// A simulated host: a namespace with an uplink, and pods.
struct Host {
    name: String,
    dir: tempfile::TempDir,
    pods: Vec<String>,
    subnet: &'static str,
    /// The node's address, if it has an overlay.
    overlay: Option<&'static str>,
}

impl Host {
    fn new(label: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let name = format!("knt{}{label}", std::process::id());
        ip(&["netns", "add", &name]);
        let host =
            Self { name, dir: tempfile::tempdir().unwrap(), pods: Vec::new(), subnet: "10.42.7.0/24", overlay: None };
        host.run(
            "ip link set lo up && ip link add up0 mtu 1400 type veth peer name up1 && ip link set up1 up && ip addr add 192.0.2.2/24 dev up0 &&
                  ip link set up0 up && ip route add default via 192.0.2.1",
        );
        Some(host)
    }

    fn pod(&mut self, label: &str) -> String {
        let name = format!("{}{label}", self.name);
        ip(&["netns", "add", &name]);
        self.pods.push(name.clone());
        format!("/run/netns/{name}")
    }

    fn network(&self) -> kelson_net::NetworkConfig {
        let (subnet, cluster) = (self.subnet.parse().unwrap(), "10.42.0.0/16".parse().unwrap());
        let mut config = kelson_net::NetworkConfig::new(self.dir.path(), vec![subnet], vec![cluster]).unwrap();
        config.mtu = if self.overlay.is_some() { 1350 } else { 1400 };
        config.with_overlay(self.overlay.map(|ip| kelson_net::OverlayConfig {
            vni: 4711,
            port: kelson_net::VXLAN_PORT,
            node_ip: ip.parse().unwrap(),
        }))
    }

    /// Does what a node does at its start, and when others come and go. The MTU is detected.
    fn connect(&self, peers: &[&Host]) {
        let mut config = self.network();
        config.mtu = 0;
        let peer = |h: &&Host| kelson_net::Peer {
            subnet: h.subnet.parse().unwrap(),
            node_ip: h.overlay.unwrap().parse().unwrap(),
        };
        let peers: Vec<_> = peers.iter().map(peer).collect();
        inside(&format!("/run/netns/{}", self.name), move || {
            // Its threads are started here, and so are in this namespace.
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let network = kelson_net::Network::new(config);
                network.ensure("/bin/true".as_ref()).await.unwrap();
                network.connect(peers).await.unwrap();
            });
        });
    }

    fn run(&self, script: &str) -> String {
        text(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-ec", script]).output().unwrap())
    }

    fn plugin(&self, command: &str, container: &str, netns: &str, runtime: Value) -> Output {
        self.plugin_as(PLUGIN.as_ref(), command, container, netns, runtime)
    }

    fn plugin_as(&self, program: &Path, command: &str, container: &str, netns: &str, runtime: Value) -> Output {
        let config = json!({
            "cniVersion": "1.0.0", "name": "t", "type": "kelson",
            "kelson": self.network(), "runtimeConfig": runtime,
        });
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.name])
            .arg(program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn add(&self, container: &str, netns: &str, runtime: Value) -> Value {
        let out = self.plugin("ADD", container, netns, runtime);
        serde_json::from_str(&text(out)).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for name in self.pods.iter().chain([&self.name]) {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(args: &[&str]) {
    text(Command::new("ip").args(args).output().unwrap());
}

fn text(output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn in_pod(netns: &str, script: &str) -> String {
    let name = PathBuf::from(netns).file_name().unwrap().to_owned();
    text(Command::new("ip").args(["netns", "exec"]).arg(name).args(["sh", "-ec", script]).output().unwrap())
}

/// Runs `work` on a thread inside a namespace; sockets created there stay there.
fn inside<T: Send + 'static>(netns: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = std::fs::File::open(netns).unwrap();
    let enter = move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    };
    std::thread::spawn(enter).join().unwrap()
}

/// Sends a greeting to every client.
fn serve(netns: &str, port: u16) {
    let listener = inside(netns, move || TcpListener::bind(("0.0.0.0", port)).unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            connection.unwrap().write_all(b"hello").unwrap();
        }
    });
}

fn ask(netns: &str, target: &str) -> String {
    let target: SocketAddr = target.parse().unwrap();
    inside(netns, move || {
        let mut connection = TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    })
}

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().trim_end_matches("/32").to_owned()
}

#[test]
fn pods_reach_the_gateway_each_other_and_their_host_ports() {
    let Some(mut host) = Host::new("a") else { return };
    let (a, b) = (host.pod("p"), host.pod("q"));
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]});
    let (made_a, made_b) = (host.add("aaa", &a, json!({})), host.add("bbb", &b, ports.clone()));
    let (ip_a, ip_b) = (address(&made_a), address(&made_b));
    assert_eq!((ip_a.as_str(), ip_b.as_str()), ("10.42.7.2", "10.42.7.3"));
    in_pod(&a, "busybox ping -c1 -W2 10.42.7.1");
    in_pod(&a, &format!("busybox ping -c1 -W2 {ip_b}"));
    in_pod(&a, "busybox ping -c1 -W2 192.0.2.2");
    host.run(&format!("busybox ping -c1 -W2 {ip_b}"));
    assert!(in_pod(&a, "ip link show eth0").contains("mtu 1400"));
    // The host port answers from another pod, from the pod itself, from the host and on the host's loopback.
    serve(&b, 80);
    let host_netns = format!("/run/netns/{}", host.name);
    for (from, target) in [(&a, "192.0.2.2"), (&b, "192.0.2.2"), (&host_netns, "192.0.2.2"), (&host_netns, "127.0.0.1")]
    {
        assert_eq!(ask(from, &format!("{target}:8080")), "hello", "{from} -> {target}");
    }
    // A second owner gets an error in CNI's format, and no allocation.
    let c = host.pod("r");
    let refused = host.plugin("ADD", "ccc", &c, ports);
    let error: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(error["code"], 102, "{error}");
    assert_eq!(address(&host.add("ddd", &c, json!({}))), "10.42.7.4");
}

/// Docker's iptables policy is in force, and the outside has no routes to pods.
#[test]
fn pods_reach_the_outside_as_the_host() {
    let Some(mut host) = Host::new("w") else { return };
    let (world, pod) = (host.pod("z"), host.pod("p"));
    let world_name = world.rsplit('/').next().unwrap();
    host.run(&format!("ip link set up1 netns {world_name}"));
    in_pod(&world, "ip addr add 192.0.2.1/24 dev up1 && ip link set up1 up");
    host.run(
        "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'",
    );
    host.add("aaa", &pod, json!({}));
    let listener = inside(&world, || TcpListener::bind("0.0.0.0:9000").unwrap());
    let seen = std::thread::spawn(move || listener.accept().unwrap().1.ip().to_string());
    inside(&pod, || {
        TcpStream::connect_timeout(&"192.0.2.1:9000".parse().unwrap(), Duration::from_secs(5)).unwrap();
    });
    assert_eq!(seen.join().unwrap(), "192.0.2.2");
    // Another pod on this node sees the pod's own address.
    let other = host.pod("q");
    host.add("bbb", &other, json!({}));
    let listener = inside(&other, || TcpListener::bind("0.0.0.0:9000").unwrap());
    let seen = std::thread::spawn(move || listener.accept().unwrap().1.ip().to_string());
    inside(&pod, || {
        TcpStream::connect_timeout(&"10.42.7.3:9000".parse().unwrap(), Duration::from_secs(5)).unwrap();
    });
    assert_eq!(seen.join().unwrap(), "10.42.7.2");
}

#[test]
fn delete_is_idempotent_and_gives_everything_back() {
    let Some(mut host) = Host::new("d") else { return };
    let pod = host.pod("p");
    let ports =
        json!({"portMappings": [{"hostPort": 81, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.2"}]});
    let made = host.add("aaa", &pod, ports);
    text(host.plugin("CHECK", "aaa", &pod, json!({})));
    let veth = made["interfaces"][0]["name"].as_str().unwrap().to_owned();
    assert!(host.run("nft list ruleset").contains("192.0.2.2 . udp . 81"));
    // A repeated call after a crash between our answer and its arrival: the same address.
    ip(&["-n", &host.name, "link", "del", &veth]);
    assert_eq!(address(&host.add("aaa", &pod, json!({}))), address(&made));
    for netns in [pod.as_str(), "", "/run/netns/long-gone"] {
        text(host.plugin("DEL", "aaa", netns, json!({})));
    }
    assert!(!host.run("ip link").contains(&veth));
    assert!(!host.run("nft list ruleset").contains(". udp . 81"));
    assert!(!host.plugin("CHECK", "aaa", &pod, json!({})).status.success());
    let state = std::fs::read_to_string(host.dir.path().join("net/allocations.json")).unwrap();
    assert!(state.contains("\"allocations\":{}"), "{state}");
}

#[test]
fn loopback_comes_up_under_its_own_name() {
    let Some(mut host) = Host::new("l") else { return };
    let pod = host.pod("p");
    let program = host.dir.path().join("loopback");
    std::os::unix::fs::symlink(PLUGIN, &program).unwrap();
    let result: Value = serde_json::from_str(&text(host.plugin_as(&program, "ADD", "x", &pod, json!({})))).unwrap();
    assert_eq!(result["interfaces"][0]["name"], "lo");
    in_pod(&pod, "busybox ping -c1 -W1 127.0.0.1");
    text(host.plugin_as(&program, "DEL", "x", "", json!({})));
}

#[test]
fn an_overlapping_range_is_named() {
    let Some(mut host) = Host::new("o") else { return };
    host.run("ip addr add 10.42.7.200/24 dev up0");
    let pod = host.pod("p");
    let refused = host.plugin("ADD", "aaa", &pod, json!({}));
    let error: Value = serde_json::from_slice(&refused.stdout).unwrap();
    let message = error["msg"].as_str().unwrap();
    assert_eq!(
        message,
        "pod CIDR 10.42.7.0/24 overlaps 10.42.7.200/24 of interface up0; choose another with --cluster-cidr"
    );
}

#[test]
fn pods_of_two_nodes_reach_each_other() {
    let (Some(mut a), Some(mut b)) = (Host::new("e"), Host::new("f")) else { return };
    // The cable's other end, now on the first host, is moved to the second host.
    a.run("ip link set up1 down && ip link set up1 name cable");
    ip(&["-n", &a.name, "link", "set", "cable", "netns", &b.name]);
    b.run("ip link del up0; ip addr add 192.0.2.1/24 dev cable && ip link set cable up");
    (a.overlay, b.overlay, b.subnet) = (Some("192.0.2.2"), Some("192.0.2.1"), "10.42.8.0/24");
    let (pod_a, pod_b) = (a.pod("p"), b.pod("p"));
    a.connect(&[&b]);
    b.connect(&[&a]);
    let ip_a = address(&a.add("aaa", &pod_a, json!({})));
    let ip_b = address(&b.add("bbb", &pod_b, json!({})));
    assert_eq!((ip_a.as_str(), ip_b.as_str()), ("10.42.7.2", "10.42.8.2"));
    // 1,400 on the cable, 50 for VXLAN, 28 for the ping itself.
    in_pod(&pod_a, &format!("busybox ping -c1 -W2 -s 1322 {ip_b}"));
    in_pod(&pod_b, &format!("busybox ping -c1 -W2 -s 1322 {ip_a}"));
    a.run(&format!("busybox ping -c1 -W2 {ip_b}"));
    assert!(a.run("ip -o link").contains("mtu 1350"), "the MTU leaves room");
    // A pod sees the other pod's own address; nothing is masqueraded on the way.
    let listener = inside(&pod_b, || TcpListener::bind("0.0.0.0:9000").unwrap());
    let seen = std::thread::spawn(move || listener.accept().unwrap().1.ip().to_string());
    let target: SocketAddr = format!("{ip_b}:9000").parse().unwrap();
    inside(&pod_a, move || drop(TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap()));
    assert_eq!(seen.join().unwrap(), ip_a);
    // A repeated call changes nothing; a removed node is disconnected.
    a.connect(&[&b]);
    assert_eq!(a.run("ip route").matches("10.42.8.0/24").count(), 1);
    a.connect(&[]);
    assert!(!a.run("ip route; ip neigh; bridge fdb").contains("10.42.8."), "{}", a.run("ip route; ip neigh"));
    let dir = a.dir.path().to_path_buf();
    let left = inside(&format!("/run/netns/{}", a.name), move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(kelson_net::cleanup(&dir))
    });
    assert!(left.is_empty(), "{left:?}");
    assert!(!a.run("ip -o link").contains("kv"), "{}", a.run("ip -o link"));
}

/// Returns what a socket on the host receives from a pod that sends from `source` once, and then from its own address.
fn heard(host: &Host, pod: &str, source: &str) -> Vec<String> {
    let host_netns = format!("/run/netns/{}", host.name);
    let listener = inside(&host_netns, || std::net::UdpSocket::bind("10.42.7.1:0").unwrap());
    // The last datagram is the pod's own, and always arrives, so no timeout is needed.
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (target, source) = (listener.local_addr().unwrap(), source.to_owned());
    inside(pod, move || {
        for (from, text) in [(source.as_str(), "spoofed"), ("0.0.0.0", "last")] {
            let sender = std::net::UdpSocket::bind((from, 0)).unwrap();
            sender.send_to(text.as_bytes(), target).unwrap();
        }
    });
    let mut heard = Vec::new();
    loop {
        let mut text = [0; 16];
        let (length, from) = listener.recv_from(&mut text).unwrap();
        if &text[..length] == b"last" {
            return heard;
        }
        heard.push(from.ip().to_string());
    }
}

#[test]
fn a_pod_sends_from_no_other_pods_address_and_answers_for_none() {
    let Some(mut host) = Host::new("s") else { return };
    let (pod, victim) = (host.pod("p"), host.pod("v"));
    let (made, other) = (host.add("aaa", &pod, json!({})), host.add("bbb", &victim, json!({})));
    let (own, theirs) = (address(&made), address(&other));
    let mac = |netns: &str| in_pod(netns, "cat /sys/class/net/eth0/address").trim().to_owned();
    let (own_mac, their_mac) = (mac(&pod), mac(&victim));
    let network = host.network();
    let (bridge, table, port) = (network.bridge(), network.table(), network.veth("aaa", "eth0"));
    // The kernel keeps a neighbour for a second, which would hide what this test checks.
    host.run(&format!("echo 0 > /proc/sys/net/ipv4/neigh/{bridge}/locktime"));
    in_pod(&pod, &format!("ip addr add {theirs}/32 dev eth0"));
    // Returns the neighbour entry of the victim after the pod has claimed its address; the pod's own ping comes after
    // all its claims.
    let believed = || {
        host.run(&format!("busybox ping -c1 -W30 {theirs}"));
        in_pod(&pod, &format!("busybox arping -q -U -c1 -w30 -I eth0 -s {theirs} 10.42.7.1 || true"));
        in_pod(&pod, &format!("busybox arping -q -c1 -w2 -I eth0 -s {theirs} 10.42.7.1 || true"));
        in_pod(&pod, &format!("busybox ping -c1 -W30 -I {own} 10.42.7.1"));
        host.run(&format!("ip neigh show {theirs} dev {bridge}"))
    };
    let entry = believed();
    assert!(entry.contains(&their_mac) && !entry.contains(&own_mac), "{entry}");
    assert_eq!(heard(&host, &pod, &theirs), Vec::<String>::new());
    // Not with the victim's hardware address either: the port only accepts the pod's own.
    in_pod(&pod, &format!("ip link set eth0 address {their_mac}"));
    let ping = "busybox ping -c1 -W2 10.42.7.1 || echo lost";
    assert!(in_pod(&pod, ping).contains("lost"), "a frame from another hardware address came through");
    host.run(&format!("busybox ping -c1 -W30 {theirs}"));
    in_pod(&pod, &format!("ip link set eth0 address {own_mac}"));
    // Without the rules all of that passes, which shows that this test would detect it.
    host.run(&format!("nft delete table bridge {table}; bridge link set dev {port} locked off learning on"));
    assert!(believed().contains(&own_mac), "the host believes whoever spoke last");
    assert_eq!(heard(&host, &pod, &theirs), std::slice::from_ref(&theirs));
    // A node that starts again locks the existing ports.
    host.connect(&[]);
    assert_eq!(heard(&host, &pod, &theirs), Vec::<String>::new());
    assert!(host.run(&format!("bridge -d link show dev {port}")).contains("locked on"));
}

/// Sets up the network, runs the script `harmless` and then `damage`, and returns the detected damage.
fn noticed(host: &Host, harmless: &str, damage: &str) -> Vec<(kelson_net::Damage, String)> {
    let (config, script) = (host.network(), format!("{harmless}\n{damage}"));
    inside(&format!("/run/netns/{}", host.name), move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let network = kelson_net::Network::new(config);
            network.ensure("/bin/true".as_ref()).await.unwrap();
            let mut guard = network.guard("/bin/true".as_ref()).await.unwrap();
            let watching = async {
                tokio::time::timeout(Duration::from_secs(60), guard.damaged()).await.expect("the damage is noticed")
            };
            let doing = async {
                let done = tokio::process::Command::new("sh").args(["-ec", &script]).status().await.unwrap();
                assert!(done.success(), "{script}");
            };
            let (noticed, ()) = tokio::join!(watching, doing);
            network.ensure("/bin/true".as_ref()).await.unwrap();
            noticed
        })
    })
}

#[test]
fn what_another_program_takes_away_is_noticed_and_comes_back() {
    use kelson_net::Damage::{Cni, Forward, Links, Sysctls, Tables};
    let Some(mut host) = Host::new("g") else { return };
    let pod = host.pod("p");
    let port = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    host.add("aaa", &pod, port);
    let network = host.network();
    let (table, bridge) = (network.table(), network.bridge());
    // Changes that pods and other programs make all the time are not damage.
    let harmless = format!(
        "nft add table ip other; nft add chain ip other c; nft delete table ip other
         nft add element ip {table} hostports '{{ tcp . 81 : 10.42.7.9 . 80 }}'
         nft delete element ip {table} hostports '{{ tcp . 81 : 10.42.7.9 . 80 }}'"
    );
    let chain = "'{ type filter hook forward priority 0; policy drop; }'";
    for (part, damage) in [
        (Tables, "nft flush ruleset".to_owned()),
        (Tables, format!("nft flush chain ip {table} postrouting")),
        (Tables, format!("nft delete table bridge {table}")),
        (Forward, format!("nft add table ip filter; nft add chain ip filter FORWARD {chain}")),
        (Forward, "nft flush chain ip filter FORWARD".to_owned()),
        (Sysctls, format!("echo 0 > /proc/sys/net/ipv4/conf/{bridge}/route_localnet")),
        (Cni, format!("rm -r {}", host.dir.path().join("cni").display())),
        (Links, format!("ip link set {bridge} down")),
        (Links, format!("ip addr flush dev {bridge}")),
        (Links, format!("ip link delete {bridge}")),
    ] {
        let found = noticed(&host, &harmless, &damage);
        assert!(!found.is_empty() && found.iter().all(|(what, _)| *what == part), "{damage}: {found:?}");
        let rules =
            host.run(&format!("nft list table ip {table}; nft list table bridge {table}; ip addr show {bridge}"));
        for there in ["10.42.7.1/24", "masquerade", "tcp . 8080 :", "from-pods"] {
            assert!(rules.contains(there), "{there} after {damage}:\n{rules}");
        }
        assert!(
            kelson_net::NetworkConfig::cni_conf_dir(host.dir.path()).join("10-kelson.conflist").is_file(),
            "{damage}"
        );
    }
}
