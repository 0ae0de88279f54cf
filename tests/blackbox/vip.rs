//! The address that servers share: one of them has it, and another one when that is killed or stops.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::servers::{Cluster, Datastore, Https};
use kelson_blackbox::{Needs::OwnNode, Outcome, Subject, Test, eventually, sh};
use rustix::process::Signal;
use serde_json::Value;

/// An address in the network of the servers' machines.
const VIP: &str = "198.19.0.100";
const PORT: u16 = 6443;
const SERVERS: usize = 3;
const LIMIT: Duration = Duration::from_secs(90);

pub fn tests() -> Vec<Test> {
    vec![Test { name: "vip::moves_when_its_server_is_killed_or_stops", needs: OwnNode, run: moves }]
}

fn moves(_: &Subject) -> Outcome {
    // Its own thread, since it moves to the network of the servers.
    std::thread::spawn(three_servers).join().map_err(|_| anyhow::anyhow!("the test panicked"))?
}

/// The machines that have the address on an interface.
fn holders(cluster: &Cluster) -> anyhow::Result<Vec<usize>> {
    let mut all = Vec::new();
    for machine in 0..SERVERS {
        let shown = sh(&format!("ip -n {} -o addr show dev up0", cluster.network.machine(machine)))?;
        if shown.contains(&format!(" {VIP}/")) {
            all.push(machine);
        }
    }
    Ok(all)
}

/// Waits until the address answers from one server, which is not `but`; returns the server.
fn answers(cluster: &Cluster, but: Option<usize>) -> anyhow::Result<usize> {
    eventually("one server answers at the address", LIMIT, || {
        let holders = holders(cluster)?;
        ensure!(holders.len() == 1 && holders.first().copied() != but, "the servers with the address: {holders:?}");
        // A new connection each time: TLS names the address.
        let mut client = Https::new(VIP.parse::<IpAddr>()?, PORT, Arc::clone(&cluster.tls));
        let (code, answer) = client.call("GET", "/version", &Value::Null)?;
        ensure!(code == 200, "{code} {answer}");
        Ok(holders[0])
    })
}

fn three_servers() -> Outcome {
    let mut cluster = Cluster::start(Datastore::External, SERVERS)?;
    for server in 0..SERVERS {
        let program = &mut cluster.stations[server].server;
        program.kill();
        program.add_args(&["--vip", VIP]);
        program.start()?;
        cluster.until_ready(server)?;
    }
    let first = answers(&cluster, None)?;
    cluster.stations[first].server.kill();
    let second = answers(&cluster, Some(first))?;
    cluster.stations[first].server.start()?;
    cluster.until_ready(first)?;
    ensure!(holders(&cluster)? == [second], "a server that returns does not take the address");
    cluster.stations[second].server.signal(Signal::TERM);
    let third = answers(&cluster, Some(second))?;
    ensure!(third != second, "{third}");
    ensure!(!holders(&cluster)?.contains(&second), "a server that stopped has removed the address");
    Ok(())
}
