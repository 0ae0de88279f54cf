//! Reservations of address ranges on this host. `kelson_ranges` chooses the ranges; this module knows those used by the
//! host's interfaces, routes and other nodes. Every node reserves its cluster's ranges in [`RUN_DIR`] under a lock, so
//! that two that start at the same time do not take the same ones.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]
mod book;

use std::path::Path;

use kelson_ranges::{ConfiguredRanges, Ranges, StoredRanges, Used};

use crate::aside::aside;
use crate::config::network_id;
use crate::error::NetError;
use crate::netlink::Links;
use crate::netns::block_on;

pub use book::RUN_DIR;
use book::{Book, Reservation};

/// Rejects ranges that a node of another cluster uses on this host. Two nodes of one cluster may share them. Pure.
fn refuse_taken(ranges: &Ranges, others: &[Reservation]) -> Result<(), NetError> {
    for other in others.iter().filter(|o| o.ranges != *ranges) {
        for (flag, net) in [("--cluster-cidr", &ranges.cluster), ("--service-cidr", &ranges.service)] {
            if other.ranges.overlaps(net) {
                return Err(NetError::Config(format!(
                    "{flag} {net} is in use on this machine by the node with data directory {dir} (pods {}, services {}); choose another range, or remove that node with kelson cleanup --data-dir {dir}",
                    other.ranges.cluster,
                    other.ranges.service,
                    dir = other.data_dir.display(),
                )));
            }
        }
    }
    Ok(())
}

/// Returns the ranges of the cluster whose server, with a node, has this data directory: stored, given, or chosen; they
/// are then stored durably. Addresses of the host and of other nodes are avoided.
///
/// # Errors
/// Flags contradict the stored ranges or those of other nodes on this host, no range is free, or a file cannot be read
/// or written.
pub async fn settle(data_dir: &Path, given: ConfiguredRanges) -> Result<Ranges, NetError> {
    let data_dir = data_dir.canonicalize().map_err(NetError::io(data_dir.display().to_string()))?;
    aside(move || {
        let kept = StoredRanges::read(&data_dir, given)?;
        let book = Book::open()?;
        let others = book.others(&data_dir)?;
        let ranges = kept.settle(|| used_by_host(&data_dir, &others))?;
        refuse_taken(&ranges, &others)?;
        book.write(&data_dir, ranges)?;
        kept.keep(ranges)?;
        Ok(ranges)
    })
    .await
}

/// Reserves the ranges of the cluster that a node with this data directory joins.
///
/// # Errors
/// A node of another cluster on this host uses one of them, or a file cannot be written.
pub async fn reserve(data_dir: &Path, ranges: Ranges) -> Result<(), NetError> {
    let data_dir = data_dir.canonicalize().map_err(NetError::io(data_dir.display().to_string()))?;
    aside(move || {
        let book = Book::open()?;
        refuse_taken(&ranges, &book.others(&data_dir)?)?;
        book.write(&data_dir, ranges)
    })
    .await
}

/// Reports whether a node with this data directory has a reservation on this host.
pub fn is_reserved(data_dir: &Path) -> bool {
    Book::path(data_dir).exists()
}

/// Removes a reservation; a missing one is not an error.
pub(crate) fn give_back(data_dir: &Path) -> Result<(), NetError> {
    if !Path::new(RUN_DIR).exists() {
        return Ok(());
    }
    Book::open()?.remove(data_dir)
}

/// Returns addresses and routes of the host, without those of this data directory, and other reservations.
fn used_by_host(data_dir: &Path, others: &[Reservation]) -> Result<Vec<Used>, NetError> {
    let names = {
        let id = network_id(data_dir);
        [format!("kn{id}"), format!("kv{id}")]
    };
    let mut used = block_on(async {
        let links = Links::open()?;
        let all = links.all().await?;
        let name = |index: u32| all.iter().find(|l| l.index == index).map_or("?", |l| l.name.as_str());
        let mut used = Vec::new();
        for (index, net, _) in links.addresses().await? {
            if !names.iter().any(|n| n == name(index)) {
                used.push(Used { net: net.trunc(), by: format!("interface {}", name(index)) });
            }
        }
        for route in links.routes().await? {
            let out = route.out.map_or("?", name);
            // The default route does not reserve a range.
            if route.to.prefix_len() > 0 && !names.iter().any(|n| n == out) {
                used.push(Used { net: route.to, by: format!("a route through {out}") });
            }
        }
        Ok(used)
    })?;
    for other in others {
        for net in [other.ranges.cluster, other.ranges.service] {
            used.push(Used { net, by: format!("the node with data directory {}", other.data_dir.display()) });
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(cluster: &str, service: &str) -> Ranges {
        Ranges { cluster: cluster.parse().unwrap(), service: service.parse().unwrap(), vni: 1 }
    }

    #[test]
    fn one_cluster_may_have_two_nodes_here_and_two_clusters_need_their_own() {
        let other = |r: Ranges| [Reservation { data_dir: "/srv/a".into(), netns: 1, ranges: r }];
        let mine = ranges("10.42.0.0/16", "10.43.0.0/16");
        assert!(refuse_taken(&mine, &other(mine)).is_ok());
        assert!(refuse_taken(&mine, &other(ranges("10.44.0.0/16", "10.45.0.0/16"))).is_ok());
        let twin = refuse_taken(&mine, &other(Ranges { vni: 2, ..mine })).unwrap_err().to_string();
        assert!(twin.starts_with("--cluster-cidr 10.42.0.0/16 is in use on this machine") && twin.contains("/srv/a"));
        let crossed = refuse_taken(&mine, &other(ranges("10.40.0.0/16", "10.43.0.0/20"))).unwrap_err().to_string();
        assert!(crossed.starts_with("--service-cidr 10.43.0.0/16"), "{crossed}");
    }

    #[test]
    fn records_read_back() {
        let r = Reservation { data_dir: "/srv/a".into(), netns: 7, ranges: ranges("10.42.0.0/16", "10.43.0.0/16") };
        let text = serde_json::to_string(&r).unwrap();
        assert!(text.contains("\"clusterCIDR\":\"10.42.0.0/16\""), "{text}");
        assert_eq!(serde_json::from_str::<Reservation>(&text).unwrap(), r);
    }
}
