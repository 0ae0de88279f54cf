//! Three servers on one etcd, whose processes, network, disks and clocks fail: what clients saw is what one server would have shown.
//!
//! `KELSON_HA_ROUNDS` runs so many rounds with one cluster, for at most `KELSON_HA_SECONDS`; `KELSON_HA_SEED` is the first seed. With
//! `KELSON_HA_ETCD=managed` the servers supervise their members of etcd.
use std::time::{Duration, Instant};

use anyhow::ensure;
use kelson_blackbox::servers::{Cluster, Datastore, failover, round};
use kelson_blackbox::{Needs::OwnNode, Outcome, Subject, Test, repo_root};

/// The seed of the round in the gate, and the first one of several.
const SEED: u64 = 39;
/// The length of the faults of the one round, and of each of several.
const LENGTH: Duration = Duration::from_secs(12);
const SHORT: Duration = Duration::from_secs(4);
/// The servers, each with a member of etcd and a node.
const SERVERS: usize = 3;

pub fn tests() -> Vec<Test> {
    vec![Test { name: "availability::three_servers_under_faults", needs: OwnNode, run: faults }]
}

/// Returns the number in an environment variable.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn faults(_: &Subject) -> Outcome {
    // Its own thread, since it moves to the network of the servers.
    std::thread::spawn(rounds).join().map_err(|_| anyhow::anyhow!("a round panicked"))?
}

fn rounds() -> Outcome {
    let begun = Instant::now();
    let (asked, first) = (number("KELSON_HA_ROUNDS"), number("KELSON_HA_SEED").unwrap_or(SEED));
    let limit = number("KELSON_HA_SECONDS").map_or(Duration::MAX, Duration::from_secs);
    let (count, length) = asked.map_or((1, LENGTH), |count| (count, SHORT));
    let is_managed = std::env::var("KELSON_HA_ETCD").is_ok_and(|how| how == "managed");
    let datastore = if is_managed { Datastore::Managed } else { Datastore::External };
    let mut cluster = Cluster::start(datastore, SERVERS)?;
    failover(&mut cluster)?;
    let (mut done, mut slowest, mut operations, mut faults) = (0, Duration::ZERO, 0, 0);
    for seed in (first..).take(usize::try_from(count)?) {
        if begun.elapsed() > limit {
            break;
        }
        let report = round(&mut cluster, seed, length, &repo_root().join("target/availability"))?;
        println!("seed {seed}: {report}");
        done += 1;
        slowest = slowest.max(report.recovery);
        operations += report.checked.operations;
        faults += report.faults;
    }
    println!(
        "{done} of {count} rounds in {:?}: {faults} faults, {operations} operations, slowest recovery {slowest:?}",
        begun.elapsed()
    );
    ensure!(done > 0, "no round was run");
    Ok(())
}
