//! Queries that cluster DNS answers on one core: `dns [SECONDS]`. The server has one thread, whose CPU time the kernel counts; clients
//! and the upstream resolver run on others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use kelson_dns::{Directory, Forwarder, Server, Sources, Zone};
use kelson_tasks::Tasks;
use serde_json::json;
use tokio::sync::oneshot;

/// The time for which each kind of query is measured.
const SECONDS: u64 = 3;
/// The promised rate on one core.
const TARGET: f64 = 20_000.0;
/// Services of each kind, and names of other domains.
const NAMES: u32 = 1000;
/// Queries on the way at once: below what one source may have forwarded.
const WINDOW: u16 = 64;
/// A query that is not answered by then is sent again.
const PATIENCE: Duration = Duration::from_millis(500);
const HEADER_BYTES: usize = 12;

/// A server on a separate thread.
struct Served {
    address: SocketAddr,
    thread: String,
    _end: oneshot::Sender<()>,
}

/// Prints the rate of each kind of query.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let seconds = args.first().map_or(Ok(SECONDS), |seconds| seconds.parse())?;
    let served = serve(upstream()?)?;
    let kinds: [(&str, &dyn Fn(u32) -> String); 5] = [
        ("cluster address of a service", &|n| format!("s{}.d.svc.cluster.local", n % NAMES)),
        ("headless service, 5 endpoints", &|n| format!("h{}.d.svc.cluster.local", n % NAMES)),
        ("name that does not exist", &|n| format!("none{n}.d.svc.cluster.local")),
        ("other domain, in the cache", &|n| format!("w{}.example.org", n % NAMES)),
        ("other domain, asked upstream", &|n| format!("u{n}.example.org")),
    ];
    for (what, name) in kinds {
        let (answered, cpu, took) = measure(&served, Duration::from_secs(seconds), name)?;
        let (core, wall) = (f64::from(answered) / cpu.as_secs_f64(), f64::from(answered) / took.as_secs_f64());
        let verdict = if core >= TARGET { "meets" } else { "misses" };
        println!(
            "{what:<30} {core:>9.0} a second of one core ({verdict} {TARGET}), {wall:.0} a second beside the client"
        );
    }
    Ok(())
}

/// A resolver that knows one address of every name.
fn upstream() -> anyhow::Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = socket.local_addr()?;
    std::thread::Builder::new().name("upstream".into()).spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut answer = buffer[..length].to_vec();
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            answer[7] = 1;
            // The question's name, type A, class IN, a TTL, an address.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1]);
            // A question that gets no answer is asked again.
            let _ = socket.send_to(&answer, from);
        }
    })?;
    Ok(address)
}

fn directory() -> anyhow::Result<Directory> {
    let directory = Directory::default();
    for n in 0..NAMES {
        let [_, _, high, low] = n.to_be_bytes();
        for (name, ip) in [(format!("s{n}"), format!("10.43.{high}.{low}")), (format!("h{n}"), "None".to_owned())] {
            let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "web", "port": 80}]});
            let service = json!({"metadata": {"name": name, "namespace": "d"}, "spec": spec});
            directory.put_service(&serde_json::from_value(service)?);
        }
        let endpoints: Vec<_> = (0..5).map(|i| json!({"addresses": [format!("10.{}.{high}.{low}", 44 + i)]})).collect();
        let labels = json!({"kubernetes.io/service-name": format!("h{n}")});
        let metadata = json!({"name": format!("h{n}-1"), "namespace": "d", "labels": labels});
        directory.put_slice(&serde_json::from_value(json!({"metadata": metadata, "endpoints": endpoints}))?, true);
    }
    Ok(directory)
}

fn serve(upstream: SocketAddr) -> anyhow::Result<Served> {
    let zone = Zone::new("cluster.local", Arc::new(directory()?)).map_err(anyhow::Error::msg)?;
    let (started, ready): (_, Receiver<anyhow::Result<(SocketAddr, String)>>) = mpsc::sync_channel(1);
    let (end, ended) = oneshot::channel();
    std::thread::Builder::new().name("dns".into()).spawn(move || {
        crate::block_on(1, async {
            let thread = format!("/proc/self/task/{}/schedstat", rustix::thread::gettid().as_raw_nonzero());
            let (tasks, forwarder) = (Tasks::root("bench"), Forwarder::new(vec![upstream]));
            let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
            let server = Server::start(ip, 0, zone, forwarder, Arc::new(Sources::default()), &tasks).await;
            let address = server.as_ref().map(Server::address);
            let sent = started.send(address.map(|address| (address, thread)).map_err(|e| anyhow::anyhow!("{e}")));
            if sent.is_ok() {
                // The sender is dropped at the end of the measurement.
                let _ = ended.await;
            }
        });
    })?;
    let (address, thread) = ready.recv()??;
    Ok(Served { address, thread, _end: end })
}

/// CPU time of the server's thread.
fn cpu(served: &Served) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(&served.thread)?;
    Ok(Duration::from_nanos(stat.split_whitespace().next().unwrap_or_default().parse()?))
}

fn question(id: u16, name: &str) -> Vec<u8> {
    let mut bytes = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or_default());
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// The number of answers, the server's CPU time for them, and how long it took.
fn measure(served: &Served, time: Duration, name: &dyn Fn(u32) -> String) -> anyhow::Result<(u32, Duration, Duration)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(served.address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (mut asked, mut answered) = (0u32, 0u32);
    let mut ask = || -> std::io::Result<()> {
        // The ID only has to be another one than those on the way.
        socket.send(&question((asked & 0xffff) as u16, &name(asked)))?;
        asked += 1;
        Ok(())
    };
    let mut buffer = [0; 2048];
    // Each name once, so that the cache has it.
    for _ in 0..NAMES {
        ask()?;
        socket.recv(&mut buffer)?;
    }
    let (began, before) = (Instant::now(), cpu(served)?);
    for _ in 0..WINDOW {
        ask()?;
    }
    while began.elapsed() < time {
        match socket.recv(&mut buffer) {
            Ok(length) => {
                anyhow::ensure!(
                    length > HEADER_BYTES && matches!(buffer[3] & 0xf, 0 | 3),
                    "failed: {:?}",
                    &buffer[..length]
                );
                answered += 1;
                ask()?;
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => ask()?,
            Err(e) => return Err(e.into()),
        }
    }
    Ok((answered, cpu(served)? - before, began.elapsed()))
}
