//! The cost of a change on the node of a large cluster, with real packets between network namespaces. Needs root.
//! `network policies [POLICIES]`: the time until one changed label is in force, and a TCP stream with and without
//! policies. `network services [SERVICES]`: the time until one changed endpoint is in force, for services with five
//! endpoints each.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kelson_client::Client;
use kelson_doubles::WatchApi;
use kelson_doubles::lab::{Hosted, Lab, NODE};
use kelson_meta::SystemClock;
use kelson_net::Family;
use kelson_tasks::Tasks;
use kelson_transport::Transport;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

/// The number of changes that are timed, and of changes whose CPU time is counted.
const CHANGES: usize = 20;
/// The pause between two changes.
const PAUSE: Duration = Duration::from_millis(400);
/// The time for which a stream of bytes is measured, and how many times.
const STREAM: Duration = Duration::from_secs(2);
const STREAMS: usize = 3;
/// Wait until earlier flows of datagrams have ended: the kernel lists all flows after some changes.
const FLOWS_END: Duration = Duration::from_secs(40);
/// The maximum wait for a change to be in force.
const PATIENCE: Duration = Duration::from_secs(300);
const PORT: u16 = 7070;

/// Prints the results of one part, or of both.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let count = |default| args.get(1).map_or(Ok(default), |count| count.parse::<u32>());
    match args.first().map(String::as_str) {
        Some("policies") => policies(count(1000)?),
        Some("services") => services(count(10_000)?),
        _ => anyhow::bail!("usage: network policies|services [COUNT]"),
    }
}

fn enter(namespace: &std::fs::File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
}

fn lab() -> anyhow::Result<Lab> {
    Lab::new("knb", [1, 2, 3], enter).ok_or_else(|| anyhow::anyhow!("needs root"))
}

/// Returns the CPU time of this process and of its finished children, such as nft.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let ticks: u64 = stat.split(' ').skip(13).take(4).map(|n| n.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}

fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or_default() / 1024
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Sends datagrams from pod 2, one per millisecond, each a separate flow.
struct Datagrams(Arc<AtomicBool>);

impl Datagrams {
    fn start(lab: &Lab, to: SocketAddr) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        lab.thread("2", move || {
            while !until.load(Ordering::Relaxed) {
                let _ = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", to));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self(ended)
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports when datagrams arrive at a pod.
fn arrivals(lab: &Lab, pod: &str) -> mpsc::Receiver<Instant> {
    let (sender, receiver) = mpsc::sync_channel(1 << 20);
    let socket = lab.inside(pod, || UdpSocket::bind(("0.0.0.0", PORT)).expect("a socket"));
    lab.thread(pod, move || while socket.recv(&mut [0; 8]).is_ok() && sender.send(Instant::now()).is_ok() {});
    receiver
}

/// Returns the time from a change until the first datagram arrives that it allows.
fn until_arrival(arrivals: &mpsc::Receiver<Instant>, change: impl FnOnce()) -> Duration {
    while arrivals.try_recv().is_ok() {}
    let began = Instant::now();
    change();
    arrivals.recv_timeout(PATIENCE).expect("the change is in force") - began
}

fn put_pod(api: &WatchApi, n: u32, app: u32) {
    let [_, _, high, low] = n.to_be_bytes();
    let metadata = json!({"name": format!("p{n}"), "namespace": "d", "uid": format!("p{n}"),
        "labels": {"app": format!("a{app}"), "pod-template-hash": "5d59d67564"}});
    let status = json!({"phase": "Running", "podIPs": [{"ip": format!("10.42.{high}.{low}")}]});
    let spec =
        json!({"nodeName": "here", "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}]});
    api.put("pods", json!({"metadata": metadata, "spec": spec, "status": status}));
}

/// Stores policy `n`, which allows traffic from pods of application `n` to pods of the same application.
fn put_policy(api: &WatchApi, n: u32) {
    let select = json!({"matchLabels": {"app": format!("a{n}")}});
    let metadata = json!({"name": format!("np{n}"), "namespace": "d", "uid": format!("np{n}")});
    let spec =
        json!({"podSelector": select, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": select}]}]});
    api.put("networkpolicies", json!({"metadata": metadata, "spec": spec}));
}

fn policies(count: u32) -> anyhow::Result<()> {
    use kelson_network_policy::{Config, NetworkPolicies};
    let (lab, dir, api) = (lab()?, tempfile::tempdir()?, Arc::<WatchApi>::default());
    api.put("namespaces", json!({"metadata": {"name": "d", "uid": "d"}}));
    (1..=count).for_each(|n| put_pod(&api, n, n));
    put_pod(&api, 3, 1);
    let open = streams(&lab);
    (1..=count).for_each(|n| put_policy(&api, n));
    let config = Config::new(dir.path(), "here", vec![Family::V4]);
    let transport: Arc<dyn Transport> = api.clone();
    let client = Client::new(transport, "bench");
    let began = Instant::now();
    let ((), _enforcement): ((), Hosted) = lab.host(NODE, move |started, stopped| async move {
        let running = NetworkPolicies::start(config, client, Arc::new(SystemClock), &Tasks::root("bench"));
        running.ready().await;
        started.send(()).expect("waited for");
        let _ = stopped.await;
        running.shutdown().await;
    });
    println!("{count} policies, {count} pods: in force after {:?}, {} MB resident", began.elapsed(), resident_mb());
    let closed = streams(&lab);
    println!(
        "one TCP stream: {open:.0} MB/s without policies, {closed:.0} MB/s with them ({:.1} %)",
        closed / open * 100.0
    );
    let arrivals = arrivals(&lab, "1");
    let datagrams = Datagrams::start(&lab, SocketAddr::from((Ipv4Addr::new(10, 42, 0, 1), PORT)));
    let times = (0..CHANGES).map(|_| {
        let took = until_arrival(&arrivals, || put_pod(&api, 2, 1));
        put_pod(&api, 2, 2);
        std::thread::sleep(PAUSE);
        took
    });
    let times: Vec<Duration> = times.collect();
    println!("one changed label: in force after {:?} (median of {CHANGES})", median(times));
    drop(datagrams);
    print_cpu("changed label", |n| put_pod(&api, 2, if n % 2 == 0 { 1 } else { 2 }));
    Ok(())
}

/// Returns MB per second of one TCP stream from pod 3 to pod 1, the best of several.
fn streams(lab: &Lab) -> f64 {
    let listener = lab.inside("1", || TcpListener::bind("0.0.0.0:0").expect("a port"));
    let to = SocketAddr::from((Ipv4Addr::new(10, 42, 0, 1), listener.local_addr().expect("bound").port()));
    let total = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&total);
    lab.thread("1", move || {
        let mut buffer = vec![0; 256 << 10];
        for mut stream in listener.incoming().flatten().take(STREAMS) {
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                counted.fetch_add(read as u64, Ordering::Relaxed);
            }
        }
    });
    let rates = (0..STREAMS).map(|_| {
        let before = total.load(Ordering::Relaxed);
        let took = lab.inside("3", move || {
            let mut stream = TcpStream::connect(to).expect("connects");
            let (data, began) = (vec![0; 256 << 10], Instant::now());
            while began.elapsed() < STREAM {
                stream.write_all(&data).expect("written");
            }
            began.elapsed()
        });
        (total.load(Ordering::Relaxed) - before) as f64 / 1e6 / took.as_secs_f64()
    });
    rates.fold(0.0, f64::max)
}

fn print_cpu(what: &str, mut change: impl FnMut(usize)) {
    std::thread::sleep(FLOWS_END);
    let idle = cpu();
    std::thread::sleep(PAUSE * 5);
    let (before, at_rest) = (cpu(), (cpu() - idle) / 5);
    for n in 0..CHANGES {
        change(n);
        std::thread::sleep(PAUSE);
    }
    let each = (cpu() - before) / u32::try_from(CHANGES).expect("few");
    println!("one {what}: {:?} of CPU, nft included; {} MB resident", each.saturating_sub(at_rest), resident_mb());
}

fn put_service(api: &WatchApi, n: u32) {
    let [_, _, high, low] = n.to_be_bytes();
    let ip = format!("10.43.{high}.{low}");
    let spec = json!({"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
        "ports": [{"name": "u", "protocol": "UDP", "port": 53}]});
    api.put(
        "services",
        json!({"metadata": {"name": format!("s{n}"), "namespace": "d", "uid": format!("s{n}")}, "spec": spec}),
    );
}

/// Stores the endpoints of service `n`; that of service 0 is one of the lab's pods.
fn put_slice(api: &WatchApi, n: u32, pod: u8) {
    let endpoint = |ip: String| json!({"addresses": [ip], "conditions": {"ready": true}, "nodeName": "here"});
    let endpoints: Vec<_> = match n {
        0 => vec![endpoint(format!("10.42.0.{pod}"))],
        _ => {
            let [_, _, high, low] = n.to_be_bytes();
            (0..5).map(|i| endpoint(format!("10.{}.{high}.{low}", 44 + i))).collect()
        }
    };
    let metadata = json!({"name": format!("s{n}-1"), "namespace": "d", "uid": format!("e{n}"),
        "labels": {"kubernetes.io/service-name": format!("s{n}")}});
    let ports = json!([{"name": "u", "protocol": "UDP", "port": PORT}]);
    api.put(
        "endpointslices",
        json!({"addressType": "IPv4", "metadata": metadata, "endpoints": endpoints, "ports": ports}),
    );
}

fn services(count: u32) -> anyhow::Result<()> {
    use kelson_proxy::{Config, Proxy};
    let (lab, dir, api) = (lab()?, tempfile::tempdir()?, Arc::<WatchApi>::default());
    for n in 0..count {
        put_service(&api, n);
        put_slice(&api, n, 1);
    }
    let config = Config::new(dir.path(), "here", vec!["192.0.2.2".parse()?], vec!["10.42.0.0/16".parse()?]);
    let transport: Arc<dyn Transport> = api.clone();
    let client = Client::new(transport, "bench");
    let ip = Ipv4Addr::new(10, 43, 0, 0);
    let (first, third) = (arrivals(&lab, "1"), arrivals(&lab, "3"));
    let began = Instant::now();
    let _proxy: Hosted = lab.start(NODE, move |stopped| async move {
        let proxy = Proxy::start(config, client, Arc::new(SystemClock), &Tasks::root("bench"));
        let _ = stopped.await;
        proxy.shutdown().await;
    });
    let datagrams = Datagrams::start(&lab, SocketAddr::from((ip, 53)));
    first.recv_timeout(PATIENCE)?;
    println!(
        "{count} services, {} endpoints: in force after {:?}, {} MB resident",
        count * 5 - 4,
        began.elapsed(),
        resident_mb()
    );
    let times = (0..CHANGES).map(|_| {
        std::thread::sleep(PAUSE);
        let took = until_arrival(&third, || put_slice(&api, 0, 3));
        std::thread::sleep(PAUSE);
        until_arrival(&first, || put_slice(&api, 0, 1));
        took
    });
    let times: Vec<Duration> = times.collect();
    println!("one changed endpoint: in force after {:?} (median of {CHANGES})", median(times));
    drop(datagrams);
    print_cpu("changed endpoint", |n| put_slice(&api, 0, if n % 2 == 0 { 3 } else { 1 }));
    Ok(())
}
