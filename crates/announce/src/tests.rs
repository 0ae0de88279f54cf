//! Announced addresses on real kernels: machines are network namespaces on one bridge, and another one resolves the addresses
//! as any machine does. Needs root; prints SKIPPED otherwise. The machine's own network is not changed.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kelson_client::{BoxFuture, Client, EventRecorder, ObjectRef, Request, Response, Transport, TransportError};
use kelson_meta::SystemClock;
use kelson_tasks::Tasks;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Announcer, RivalKind, SharedAddresses, SharedConfig};

const V4: &str = "192.0.2.50";
const V6: &str = "2001:db8::50";
const LIMIT: Duration = Duration::from_secs(30);

/// A bridge with machines, each a namespace with the interface `eth0`.
struct Network {
    prefix: String,
    machines: Vec<String>,
}

impl Network {
    /// Creates machines that end in these letters, with the addresses `.1`, `.2`… and `::1`, `::2`….
    fn new(label: &str, machines: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let prefix = format!("kan{}{label}", std::process::id());
        let mut network = Self { prefix, machines: Vec::new() };
        let switch = network.add("s");
        sh(&switch, "ip link add br0 type bridge forward_delay 0 mcast_snooping 0 && ip link set br0 up");
        for (number, name) in machines.iter().enumerate() {
            let machine = network.add(name);
            let last = number + 1;
            sh(
                &switch,
                &format!(
                    "ip link add p{last} type veth peer name eth0 netns {machine} && ip link set p{last} master br0 up"
                ),
            );
            let addresses =
                format!("ip addr add 192.0.2.{last}/24 dev eth0 && ip addr add 2001:db8::{last}/64 dev eth0 nodad");
            sh(&machine, &format!("ip link set lo up && ip link set eth0 up && {addresses}"));
        }
        Some(network)
    }

    fn add(&mut self, name: &str) -> String {
        let machine = format!("{}{name}", self.prefix);
        text(Command::new("ip").args(["netns", "add", &machine]));
        self.machines.push(machine.clone());
        machine
    }

    fn of(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn sh(&self, name: &str, script: &str) -> String {
        sh(&self.of(name), script)
    }

    fn mac(&self, name: &str) -> String {
        self.sh(name, "cat /sys/class/net/eth0/address").trim().to_owned()
    }

    /// What the kernel of a machine says about a neighbour.
    fn neighbour(&self, name: &str, ip: &str) -> String {
        self.sh(name, &format!("ip neigh show {ip}"))
    }

    /// Waits until a machine reaches `ip` at the hardware address of another machine, with traffic to it or without.
    fn resolves(&self, from: &str, ip: &str, to: &str, with_traffic: bool) {
        let mac = self.mac(to);
        let target = SocketAddr::new(ip.parse().unwrap(), 9);
        after_changes(&self.of(from), NEIGHBOURS, || {
            if with_traffic {
                inside(&self.of(from), move || {
                    let own = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    // The answer of the port does not matter.
                    let _ = UdpSocket::bind(own).unwrap().send_to(b"?", target);
                });
            }
            let entry = self.neighbour(from, ip);
            if entry.contains(&mac) { Ok(()) } else { Err(format!("{ip} is not at {mac}: {entry:?}")) }
        });
    }

    /// Opens a connection from one machine to `ip` at a server on another.
    fn connects(&self, from: &str, ip: &str, to: &str) {
        let listener = inside(&self.of(to), || TcpListener::bind("[::]:0").unwrap());
        let target = SocketAddr::new(ip.parse().unwrap(), listener.local_addr().unwrap().port());
        inside(&self.of(from), move || TcpStream::connect_timeout(&target, LIMIT).map(drop)).unwrap();
    }

    fn has(&self, name: &str, ip: &str) -> bool {
        self.sh(name, "ip -o addr show dev eth0").contains(&format!(" {ip}/"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.machines {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn sh(netns: &str, script: &str) -> String {
    text(Command::new("ip").args(["netns", "exec", netns, "sh", "-ec", script]))
}

fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Changes that the kernel of a machine reports (`linux/rtnetlink.h`: `RTMGRP_NEIGH`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`).
const NEIGHBOURS: u32 = 0x4;
const ADDRESSES: u32 = 0x10 | 0x100;

/// Waits until a check of a machine succeeds: checks now, and again after each change that its kernel reports.
fn after_changes(netns: &str, groups: u32, mut check: impl FnMut() -> Result<(), String>) {
    let socket = inside(netns, move || {
        let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&socket, &net::netlink::SocketAddrNetlink::new(0, groups)).unwrap();
        net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
        socket
    });
    let end = Instant::now() + LIMIT;
    while let Err(why) = check() {
        let change = net::recv(&socket, &mut [0u8; 8192], net::RecvFlags::empty());
        // A full buffer loses reports, but says so.
        assert!(!matches!(change, Err(rustix::io::Errno::AGAIN)) && Instant::now() < end, "{why}");
    }
}

/// Starts a thread in a namespace.
fn enter<T: Send + 'static>(netns: &str, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let file = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
    std::thread::spawn(move || {
        use std::os::fd::AsFd as _;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    })
}

fn inside<T: Send + 'static>(netns: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    enter(netns, work).join().unwrap()
}

/// A process on a machine, as far as its network knows. Dropping it kills it: nothing is cleaned up.
struct Running {
    kill: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start<F>(netns: &str, work: impl FnOnce() -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let (kill, killed) = mpsc::channel::<()>();
        let thread = enter(netns, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (sender, mut end) = tokio::sync::mpsc::channel::<()>(1);
            // Returns when the sender is dropped.
            let waiting = std::thread::spawn(move || {
                let _ = killed.recv();
                drop(sender);
            });
            runtime.block_on(async {
                tokio::select! {
                    () = work() => {}
                    _ = end.recv() => {}
                }
            });
            drop(runtime);
            waiting.join().unwrap();
        });
        Self { kill: Some(kill), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.kill.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Announces both addresses on a machine.
fn announcing(network: &Network, name: &str) -> Running {
    Running::start(&network.of(name), || async {
        let (announcer, _rivals) = Announcer::start(None, &Tasks::root("test")).unwrap();
        announcer.set(&[V4, V6].iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect::<BTreeSet<_>>());
        std::future::pending::<()>().await;
    })
}

#[test]
fn announced_addresses_resolve_and_move_after_the_announcer_is_killed() {
    let Some(network) = Network::new("m", &["a", "b", "c"]) else { return };
    let first = announcing(&network, "a");
    for ip in [V4, V6] {
        network.resolves("c", ip, "a", true);
        assert!(!network.has("a", ip), "no interface has {ip}");
    }
    drop(first);
    let _second = announcing(&network, "b");
    for ip in [V4, V6] {
        // The other machine sends nothing: an announcement changes its entry.
        network.resolves("c", ip, "b", false);
    }
}

/// An API that rejects every request and reports it to the test.
#[derive(Clone, Default)]
struct Events(Option<mpsc::Sender<String>>);

impl Events {
    fn new() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel();
        (Self(Some(sender)), receiver)
    }
}

impl Transport for Events {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        if let Some(reports) = &self.0 {
            let _ = reports.send(format!("{request:?}"));
        }
        Box::pin(std::future::ready(Err(TransportError("only records".to_owned()))))
    }
}

fn config(dir: &Path) -> SharedConfig {
    let addresses = [format!("{V4}/32"), format!("{V6}/128")].map(|net| net.parse().unwrap()).to_vec();
    SharedConfig { addresses, interface: None, reserved: Vec::new(), data_dir: dir.to_owned() }
}

/// Has the addresses on a machine while `seconds` is not 0.
fn sharing(network: &Network, name: &str, dir: PathBuf, seconds: &Arc<AtomicU64>, events: Events) -> Running {
    let seconds = Arc::clone(seconds);
    Running::start(&network.of(name), move || async move {
        let shared = SharedAddresses::prepare(config(&dir)).await.unwrap();
        let client = Client::new(Arc::new(events), "test");
        let events = EventRecorder::new(client, Arc::new(SystemClock), "test", "");
        let tenure = Box::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        shared.hold(tenure, (events, ObjectRef::default()), std::future::pending()).await;
    })
}

#[test]
fn the_kernel_removes_the_address_of_a_killed_server_and_another_takes_it() {
    let Some(network) = Network::new("k", &["a", "b", "c"]) else { return };
    let (of_a, of_b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let seconds = Arc::new(AtomicU64::new(5));
    let first = sharing(&network, "a", of_a.path().into(), &seconds, Events::default());
    for ip in [V4, V6] {
        network.resolves("c", ip, "a", true);
    }
    for ip in [V4, V6] {
        network.connects("c", ip, "a");
    }
    drop(first);
    // Nothing removes them but their time.
    after_changes(&network.of("a"), ADDRESSES, || match network.has("a", V4) || network.has("a", V6) {
        true => Err("the addresses stay".to_owned()),
        false => Ok(()),
    });
    let _second = sharing(&network, "b", of_b.path().into(), &seconds, Events::default());
    for ip in [V4, V6] {
        network.resolves("c", ip, "b", false);
    }
}

#[test]
fn addresses_are_removed_when_the_time_ends_and_left_overs_at_the_next_start() {
    let Some(network) = Network::new("t", &["a", "c"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let seconds = Arc::new(AtomicU64::new(3600));
    let held = |on_interface: bool| {
        let expected = || [V4, V6].iter().all(|ip| network.has("a", ip) == on_interface);
        after_changes(&network.of("a"), ADDRESSES, || match expected() {
            true => Ok(()),
            false => Err(format!("on the interface: not {on_interface}")),
        });
    };
    let first = sharing(&network, "a", dir.path().into(), &seconds, Events::default());
    held(true);
    seconds.store(0, Ordering::Relaxed);
    held(false);
    seconds.store(3600, Ordering::Relaxed);
    held(true);
    drop(first);
    held(true);
    let data_dir = dir.path().to_owned();
    inside(&network.of("a"), move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { SharedAddresses::prepare(config(&data_dir)).await.map(drop) }).unwrap();
    });
    held(false);
}

#[test]
fn an_address_that_another_machine_has_is_not_taken() {
    let Some(network) = Network::new("x", &["a", "b"]) else { return };
    network.sh("b", &format!("ip addr add {V4}/24 dev eth0 && ip addr add {V6}/64 dev eth0 nodad"));
    let (dir, (events, requests)) = (tempfile::tempdir().unwrap(), Events::new());
    let seconds = Arc::new(AtomicU64::new(60));
    let _running = sharing(&network, "a", dir.path().into(), &seconds, events);
    while !requests.recv_timeout(LIMIT).unwrap().contains("/events") {}
    assert!(!network.has("a", V4) && !network.has("a", V6));
}

#[test]
fn an_announcer_finds_the_machine_that_has_an_address_and_does_not_announce_it() {
    let Some(network) = Network::new("o", &["a", "b", "c"]) else { return };
    network.sh("b", &format!("ip addr add {V4}/24 dev eth0 && ip addr add {V6}/64 dev eth0 nodad"));
    let (reports, heard) = mpsc::channel();
    let _running = Running::start(&network.of("a"), move || async move {
        let (announcer, mut rivals) = Announcer::start(None, &Tasks::root("test")).unwrap();
        announcer.set(&[V4, V6].iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect::<BTreeSet<_>>());
        while let Some(rival) = rivals.recv().await {
            reports.send(rival).unwrap();
        }
    });
    let (mut owners, expected) = (BTreeSet::new(), BTreeSet::from([V4, V6].map(str::to_owned)));
    while owners != expected {
        let rival = heard.recv_timeout(LIMIT).unwrap();
        assert!(matches!(rival.kind, RivalKind::Owner { .. }), "{rival:?}");
        assert_eq!(rival.mac.to_string(), network.mac("b"));
        owners.insert(rival.ip.to_string());
    }
    for ip in [V4, V6] {
        network.resolves("c", ip, "b", true);
    }
}
