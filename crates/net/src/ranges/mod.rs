//! Whose address ranges are whose on this host. A server that was not told its ranges takes the first pair that nobody
//! uses, and keeps it in its data directory for good; every node reserves its cluster's ranges under [`RUN_DIR`], under a
//! lock, so that two that start in the same second do not take the same. A control plane without a node uses nothing of
//! the host: it neither looks nor reserves.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]
mod book;

use std::path::Path;

use ipnet::{IpNet, Ipv4Net};

use crate::aside::aside;
use crate::config::{VNI_MAX, network_id};
use crate::error::NetError;
use crate::netlink::Links;
use crate::netns::block_on;

use book::{Book, FILE, Reservation, overlap, read_record, to_json, write_durably};
pub use book::{RUN_DIR, Ranges};

/// What the command line says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    /// `--cluster-cidr`; absent: the usual range, or the next that nobody on this host uses.
    pub cluster: Option<IpNet>,
    /// `--service-cidr`; absent: as for pods.
    pub service: Option<IpNet>,
}

/// A range somebody uses, and who.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Used {
    net: IpNet,
    by: String,
}

/// The pairs in the order they are tried: 10.42 and 10.43, as others have it too, upwards, round to 10.0, then
/// 172.16.0.0/12.
fn pairs() -> impl Iterator<Item = (IpNet, IpNet)> {
    let net = |a: u8, b: u8| IpNet::V4(Ipv4Net::new_assert([a, b, 0, 0].into(), 16));
    let tens = (42..=254).step_by(2).chain((0..=40).step_by(2)).map(move |b| (net(10, b), net(10, b + 1)));
    tens.chain((16..=30).step_by(2).map(move |b| (net(172, b), net(172, b + 1))))
}

/// The ranges of a new cluster: what was given, and otherwise what nobody uses. Pure.
fn choose(given: Given, used: &[Used]) -> Result<(IpNet, IpNet), NetError> {
    let given = Given { cluster: given.cluster.map(|n| n.trunc()), service: given.service.map(|n| n.trunc()) };
    if let (Some(c), Some(s)) = (given.cluster, given.service)
        && overlap(&c, &s)
    {
        return Err(NetError::Config(format!("--cluster-cidr {c} and --service-cidr {s} overlap")));
    }
    let free = |net: &IpNet| !used.iter().any(|u| overlap(&u.net, net));
    let fits = |c: &IpNet, s: &IpNet| {
        (given.cluster == Some(*c) || free(c)) && (given.service == Some(*s) || free(s)) && !overlap(c, s)
    };
    let mut candidates = pairs().map(|(c, s)| (given.cluster.unwrap_or(c), given.service.unwrap_or(s)));
    candidates.find(|(c, s)| fits(c, s)).ok_or_else(|| {
        let (who, more) = used.first().map_or(("nobody", 0), |u| (u.by.as_str(), used.len() - 1));
        NetError::Config(format!(
            "no free ranges for pods and services are left: all of 10.0.0.0/8 and 172.16.0.0/12 is used, by {who} and \
             {more} others; choose with --cluster-cidr and --service-cidr"
        ))
    })
}

/// What was stored wins; a flag that says otherwise is a fault, because a cluster's ranges are in its objects. Pure.
fn agree(stored: &Ranges, given: Given, file: &Path) -> Result<(), NetError> {
    let pairs = [("--cluster-cidr", given.cluster, stored.cluster), ("--service-cidr", given.service, stored.service)];
    for (flag, given, stored) in pairs {
        if let Some(given) = given
            && given.trunc() != stored
        {
            return Err(NetError::Config(format!(
                "{flag} {given}: this cluster has {stored} since its first start ({}), which cannot be changed; leave \
                 the flag out, or use another --data-dir",
                file.display()
            )));
        }
    }
    Ok(())
}

/// Refuses ranges that another cluster's node has on this host. Two nodes of one cluster may share them. Pure.
fn refuse_taken(ranges: &Ranges, others: &[Reservation]) -> Result<(), NetError> {
    for other in others.iter().filter(|o| o.ranges != *ranges) {
        for (flag, net) in [("--cluster-cidr", &ranges.cluster), ("--service-cidr", &ranges.service)] {
            if other.ranges.overlaps(net) {
                return Err(NetError::Config(format!(
                    "{flag} {net} is in use on this machine by the node with data directory {dir} (pods {}, services \
                     {}): give each cluster its own, or remove that node with kelson cleanup --data-dir {dir}",
                    other.ranges.cluster,
                    other.ranges.service,
                    dir = other.data_dir.display(),
                )));
            }
        }
    }
    Ok(())
}

/// The ranges of the cluster whose server has this data directory: stored, given, or chosen; stored durably from then
/// on. `node`: whether pods run on this host, so that its addresses and other nodes count.
///
/// # Errors
/// When flags contradict what is stored or what other nodes of this host have, nothing is free, or a file cannot be read
/// or written.
pub async fn settle(data_dir: &Path, given: Given, node: bool) -> Result<Ranges, NetError> {
    let data_dir = data_dir.canonicalize().map_err(NetError::io(data_dir.display().to_string()))?;
    aside(move || settle_blocking(&data_dir, given, node)).await
}

fn settle_blocking(data_dir: &Path, given: Given, node: bool) -> Result<Ranges, NetError> {
    let file = data_dir.join(FILE);
    let stored = read_record::<Ranges>(&file)?;
    if let Some(stored) = &stored {
        agree(stored, given, &file)?;
    }
    let mut book = node.then(Book::open).transpose()?;
    let others = book.as_ref().map(|b| b.others(data_dir)).transpose()?.unwrap_or_default();
    let ranges = match stored {
        Some(stored) => stored,
        None => {
            let used = if node { used_by_host(data_dir, &others)? } else { Vec::new() };
            let (cluster, service) = choose(given, &used)?;
            Ranges { cluster, service, vni: rand::random_range(1..=VNI_MAX) }
        }
    };
    if let Some(book) = &mut book {
        refuse_taken(&ranges, &others)?;
        book.write(data_dir, ranges)?;
    }
    if stored.is_none() {
        write_durably(&file, &to_json(&ranges)?)?;
    }
    Ok(ranges)
}

/// Reserves the ranges of the cluster that a node with this data directory joins.
///
/// # Errors
/// When another cluster's node on this host has any of them, or a file cannot be written.
pub async fn reserve(data_dir: &Path, ranges: Ranges) -> Result<(), NetError> {
    let data_dir = data_dir.canonicalize().map_err(NetError::io(data_dir.display().to_string()))?;
    aside(move || {
        let book = Book::open()?;
        refuse_taken(&ranges, &book.others(&data_dir)?)?;
        book.write(&data_dir, ranges)
    })
    .await
}

/// Whether a node with this data directory has reserved anything on this host.
pub fn is_reserved(data_dir: &Path) -> bool {
    Book::path(data_dir).exists()
}

/// Ends a reservation; none is no error.
pub(crate) fn give_back(data_dir: &Path) -> Result<(), NetError> {
    if !Path::new(RUN_DIR).exists() {
        return Ok(());
    }
    Book::open()?.remove(data_dir)
}

/// Addresses and routes of the host, but this data directory's own, and the reservations of others.
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
            // The default route is everybody's.
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

    fn net(s: &str) -> IpNet {
        s.parse().unwrap()
    }
    fn given(cluster: &str, service: &str) -> Given {
        Given { cluster: cluster.parse().ok(), service: service.parse().ok() }
    }
    fn ranges(cluster: &str, service: &str) -> Ranges {
        Ranges { cluster: net(cluster), service: net(service), vni: 1 }
    }
    fn chosen(given: Given, used: &[&str]) -> String {
        let used: Vec<Used> = used.iter().map(|u| Used { net: net(u), by: "eth0".into() }).collect();
        choose(given, &used).map_or_else(|e| e.to_string(), |(c, s)| format!("{c} {s}"))
    }

    #[test]
    fn what_nobody_uses_is_taken() {
        let rows: &[(&[&str], &str)] = &[
            (&[], "10.42.0.0/16 10.43.0.0/16"),
            (&["192.168.1.0/24", "172.17.0.0/16"], "10.42.0.0/16 10.43.0.0/16"),
            (&["10.43.7.0/24"], "10.44.0.0/16 10.45.0.0/16"),
            (&["10.42.0.0/24", "10.45.0.1/32"], "10.46.0.0/16 10.47.0.0/16"),
            (&["10.32.0.0/11", "10.64.0.0/10", "10.128.0.0/9"], "10.0.0.0/16 10.1.0.0/16"),
            (&["10.0.0.0/8", "172.17.0.0/16"], "172.18.0.0/16 172.19.0.0/16"),
        ];
        for (used, want) in rows {
            assert_eq!(chosen(Given::default(), used), *want, "{used:?}");
        }
        let none = chosen(Given::default(), &["10.0.0.0/8", "172.16.0.0/12"]);
        assert!(none.starts_with("no free ranges") && none.contains("eth0 and 1 others"), "{none}");
    }

    #[test]
    fn what_was_given_is_kept() {
        assert_eq!(chosen(given("10.60.0.0/16", "10.61.0.0/16"), &["10.60.0.0/16"]), "10.60.0.0/16 10.61.0.0/16");
        assert_eq!(chosen(given("10.43.0.0/16", ""), &[]), "10.43.0.0/16 10.45.0.0/16");
        assert_eq!(chosen(given("", "10.42.1.7/24"), &[]), "10.44.0.0/16 10.42.1.0/24");
        assert_eq!(
            chosen(given("10.42.0.0/16", "10.42.128.0/17"), &[]),
            "--cluster-cidr 10.42.0.0/16 and --service-cidr 10.42.128.0/17 overlap"
        );
    }

    #[test]
    fn what_was_stored_cannot_be_changed() {
        let stored = ranges("10.42.0.0/16", "10.43.0.0/16");
        let check = |g| agree(&stored, g, Path::new("/x/network.json")).err().map(|e| e.to_string());
        assert_eq!(check(Given::default()), None);
        assert_eq!(check(given("10.42.0.0/16", "10.43.0.0/16")), None);
        let refused = check(given("", "10.44.0.0/16")).unwrap();
        assert!(refused.starts_with("--service-cidr 10.44.0.0/16: this cluster has 10.43.0.0/16"), "{refused}");
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
    fn a_control_plane_alone_touches_nothing_but_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = settle_blocking(dir.path(), Given::default(), false).unwrap();
        assert_eq!((first.cluster, first.service), (net("10.42.0.0/16"), net("10.43.0.0/16")));
        assert!((1..=VNI_MAX).contains(&first.vni));
        assert_eq!(settle_blocking(dir.path(), Given::default(), false).unwrap(), first, "kept");
        assert!(!Book::path(dir.path()).exists());
    }

    #[test]
    fn records_read_back() {
        let r = Reservation { data_dir: "/srv/a".into(), netns: 7, ranges: ranges("10.42.0.0/16", "10.43.0.0/16") };
        let text = String::from_utf8(to_json(&r).unwrap()).unwrap();
        assert!(text.contains("\"clusterCIDR\": \"10.42.0.0/16\""), "{text}");
        assert_eq!(serde_json::from_str::<Reservation>(&text).unwrap(), r);
    }
}
