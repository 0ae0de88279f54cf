//! Measures three servers on three members of etcd, each pair on a separate machine: creates a second beside etcd's own
//! rate, the time until requests are answered after the leader was killed, and memory. `servers [SECONDS] [KILLS]` (10 and 20); needs
//! root. With `KELSON_REFERENCE=FILE`, upstream's kube-apiserver is measured on the same members, under another prefix.
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::servers::{Cluster, Datastore, Https};
use kelson_etcd::client::Client;
use kelson_etcd::proto::PutRequest;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::block_on;

/// Servers, members of etcd and machines.
const SERVERS: usize = 3;
/// Concurrent clients of each load.
const CLIENTS: usize = 32;
/// The size of a value.
const BYTES: usize = 1000;
/// The pause between two requests of a client that waits for the recovery.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// The time limit of a recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Runs the measurement.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let number = |at: usize, otherwise: u64| args.get(at).map_or(Ok(otherwise), |text| text.parse());
    let (seconds, kills) = (number(0, 10)?, number(1, 20)?);
    // Its own thread, since it moves to the network of the servers.
    let done = std::thread::spawn(move || measure(Duration::from_secs(seconds), kills)).join();
    done.map_err(|_| anyhow::anyhow!("the measurement panicked"))?
}

fn measure(each: Duration, kills: u64) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(Datastore::External, SERVERS)?;
    println!("| what | value |\n|---|---|");
    let puts = puts(&cluster, each)?;
    println!("| puts a second through etcd's leader, {BYTES} bytes, {CLIENTS} clients | {puts:.0} |");
    let everyone: Vec<usize> = (0..SERVERS).collect();
    for (what, servers) in [("one server", &everyone[..1]), ("three servers", &everyone[..])] {
        let pids: Vec<u32> = cluster.stations.iter_mut().filter_map(|s| s.server.pid()).collect();
        let clients = |n: usize| cluster.client(servers[n % servers.len()]);
        let load = creates(clients, &pids, each)?;
        println!(
            "| creates a second through {what} | {:.0}, {:.0} % of etcd's puts |",
            load.rate,
            load.rate / puts * 100.0
        );
        println!("| creates per CPU second of the servers, {what} | {:.0} |", load.per_cpu_second);
    }
    if let Some(program) = kelson_blackbox::reference() {
        let mut peer = cluster.reference(&program, 0)?;
        let pids: Vec<u32> = peer.program.pid().into_iter().collect();
        let load = creates(|_| peer.client(), &pids, each)?;
        println!("| creates a second through the reference | {:.0} |", load.rate);
        println!("| creates per CPU second of the reference | {:.0} |", load.per_cpu_second);
    }
    for station in &mut cluster.stations {
        for (what, pid) in [("server", station.server.pid()), ("its etcd", station.etcd_pid())] {
            let mb = pid.map_or(Ok(0.0), resident_mb)?;
            println!("| resident memory of {what} {} | {mb:.0} MB |", station.number);
        }
    }
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        let (write, read) = recovery(&mut cluster)?;
        writes.push(write);
        reads.push(read);
    }
    for (what, times) in [("writes", &mut writes), ("reads", &mut reads)] {
        times.sort_unstable();
        let at = |share: usize| times.get(times.len().saturating_sub(1) * share / 100).map_or(0, Duration::as_millis);
        println!("| {what} after the leader was killed: p50, p99 of {kills} | {} ms, {} ms |", at(50), at(99));
    }
    Ok(())
}

/// Puts of distinct keys through the leader, a second.
fn puts(cluster: &Cluster, each: Duration) -> anyhow::Result<f64> {
    let leader = cluster.leader().context("no leader")?;
    let endpoint = Endpoint::from_shared(cluster.client_url(leader))?;
    // The runtime's threads are in the network of the thread that makes it.
    block_on(2, async move {
        let begun = Instant::now();
        let tasks: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let mut etcd = Client::new(endpoint.connect_lazy(), 1 << 20);
                tokio::spawn(async move {
                    let mut done = 0_u64;
                    while begun.elapsed() < each {
                        let key = format!("/puts/{client}/{done}").into_bytes().into();
                        etcd.put(PutRequest { key, value: vec![b'x'; BYTES].into(), ..Default::default() }).await?;
                        done += 1;
                    }
                    anyhow::Ok(done)
                })
            })
            .collect();
        let mut all = 0;
        for task in tasks {
            all += task.await??;
        }
        Ok(all as f64 / begun.elapsed().as_secs_f64())
    })
}

/// The result of a load of creates.
struct Load {
    rate: f64,
    per_cpu_second: f64,
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": "x".repeat(BYTES - 200)}})
}

/// Creates ConfigMaps for some time; `pids` are the processes whose CPU time counts.
fn creates(client: impl Fn(usize) -> Https, pids: &[u32], each: Duration) -> anyhow::Result<Load> {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    let clients: Vec<Https> = (0..CLIENTS).map(client).collect();
    let (before, begun) = (cpu_seconds(pids)?, Instant::now());
    let done = std::thread::scope(|scope| {
        let spawned = clients.into_iter().enumerate().map(|(n, mut client)| {
            scope.spawn(move || {
                let mut done = 0_u64;
                while begun.elapsed() < each {
                    let (code, answer) = client.call("POST", MAPS, &map(&format!("m-{run}-{n}-{done}")))?;
                    ensure!(code == 201, "{code} {answer}");
                    done += 1;
                }
                anyhow::Ok(done)
            })
        });
        let threads: Vec<_> = spawned.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .sum::<anyhow::Result<u64>>()
    })?;
    let used = cpu_seconds(pids)? - before;
    Ok(Load { rate: done as f64 / begun.elapsed().as_secs_f64(), per_cpu_second: done as f64 / used.max(0.01) })
}

/// Kills server and etcd of the leader's machine; returns the times until a write and a read were answered by another server.
fn recovery(cluster: &mut Cluster) -> anyhow::Result<(Duration, Duration)> {
    let leader = cluster.leader().context("no leader")?;
    let other = (leader + 1) % SERVERS;
    let (mut writer, mut reader) = (cluster.client(other), cluster.client(other));
    for client in [&mut writer, &mut reader] {
        client.call("GET", "/readyz", &Value::Null)?;
    }
    let killed = Instant::now();
    cluster.stations[leader].kill_etcd();
    cluster.stations[leader].server.kill();
    let until = |what: &str, answered: &mut (dyn FnMut() -> bool + Send)| {
        while !answered() {
            ensure!(killed.elapsed() < RECOVERY_MAX, "{what} are not answered within {RECOVERY_MAX:?}");
            std::thread::sleep(PROBE_EVERY);
        }
        anyhow::Ok(killed.elapsed())
    };
    let lease = json!({"metadata": {"annotations": {"bench": format!("{killed:?}")}}});
    let mut write = move || matches!(writer.call("PATCH", "/api/v1/namespaces/default", &lease), Ok((200, _)));
    let mut read = move || matches!(reader.call("GET", "/api/v1/namespaces/default", &Value::Null), Ok((200, _)));
    let times = std::thread::scope(|scope| {
        let writes = scope.spawn(|| until("writes", &mut write));
        let reads = until("reads", &mut read);
        (writes.join(), reads)
    });
    let write = times.0.map_err(|_| anyhow::anyhow!("a client panicked"))??;
    cluster.stations[leader].start_etcd()?;
    cluster.stations[leader].server.start()?;
    for server in 0..SERVERS {
        cluster.until_ready(server)?;
    }
    Ok((write, times.1?))
}

fn resident_mb(pid: u32) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("a number")?.parse::<f64>()? / 1024.0)
}

/// The CPU time of processes in seconds.
fn cpu_seconds(pids: &[u32]) -> anyhow::Result<f64> {
    let mut ticks = 0_u64;
    for pid in pids {
        let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"))?;
        let (_, fields) = text.rsplit_once(") ").context("stat")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        for field in [11, 12] {
            ticks += fields.get(field).context("CPU time")?.parse::<u64>()?;
        }
    }
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
