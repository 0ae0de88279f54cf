//! The address ranges of a cluster: the configured ones, or the first pair that is free on the host. They are stored in
//! the server's data directory and never change. The caller provides the ranges that are in use on the host; a control
//! plane without a node does not need them.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod error;
pub mod record;

use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net};
use kelson_tasks::FILES;
use serde::{Deserialize, Serialize};

pub use error::RangesError;

/// The maximum VXLAN network identifier.
pub const VNI_MAX: u32 = (1 << 24) - 1;

/// The file with a cluster's ranges in the server's data directory.
const FILE: &str = "network.json";

/// The address ranges of a cluster, and the number of its overlay network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ranges {
    /// The addresses of all pods. Each node gets a part of them.
    #[serde(rename = "clusterCIDR")]
    pub cluster: IpNet,
    /// The virtual addresses of services, which no interface has.
    #[serde(rename = "serviceCIDR")]
    pub service: IpNet,
    /// The VXLAN network identifier. Clusters on shared machines need different ones.
    pub vni: u32,
}

impl Ranges {
    /// Returns whether `net` overlaps the addresses of pods or services.
    pub fn overlaps(&self, net: &IpNet) -> bool {
        overlap(&self.cluster, net) || overlap(&self.service, net)
    }
}

/// The ranges of the command line.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConfiguredRanges {
    /// The value of `--cluster-cidr`. `None` means the default range, or the next one that is free on this host.
    pub cluster: Option<IpNet>,
    /// The value of `--service-cidr`. `None` means the same as for pods.
    pub service: Option<IpNet>,
}

/// A range that is in use, and its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// The range in use.
    pub net: IpNet,
    /// The user of the range, in words that follow "used by".
    pub by: String,
}

/// Returns whether two ranges have a common address.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Returns the pairs in the order in which they are tried: 10.42 and 10.43 (a common default) and upwards, then from
/// 10.0, then 172.16.0.0/12.
fn pairs() -> impl Iterator<Item = (IpNet, IpNet)> {
    let net = |a: u8, b: u8| IpNet::V4(Ipv4Net::new_assert([a, b, 0, 0].into(), 16));
    let tens = (42..=254).step_by(2).chain((0..=40).step_by(2)).map(move |b| (net(10, b), net(10, b + 1)));
    tens.chain((16..=30).step_by(2).map(move |b| (net(172, b), net(172, b + 1))))
}

/// Returns the ranges of a new cluster: the configured ones, or free ones. Pure.
fn choose(given: ConfiguredRanges, used: &[Used]) -> Result<(IpNet, IpNet), RangesError> {
    let given =
        ConfiguredRanges { cluster: given.cluster.map(|n| n.trunc()), service: given.service.map(|n| n.trunc()) };
    if let (Some(c), Some(s)) = (given.cluster, given.service)
        && overlap(&c, &s)
    {
        return Err(RangesError::Refused(format!("--cluster-cidr {c} and --service-cidr {s} overlap")));
    }
    let free = |net: &IpNet| !used.iter().any(|u| overlap(&u.net, net));
    let fits = |c: &IpNet, s: &IpNet| {
        (given.cluster == Some(*c) || free(c)) && (given.service == Some(*s) || free(s)) && !overlap(c, s)
    };
    let mut candidates = pairs().map(|(c, s)| (given.cluster.unwrap_or(c), given.service.unwrap_or(s)));
    candidates.find(|(c, s)| fits(c, s)).ok_or_else(|| {
        let (who, more) = used.first().map_or(("nobody", 0), |u| (u.by.as_str(), used.len() - 1));
        RangesError::Refused(format!(
            "no free ranges for pods and services: all of 10.0.0.0/8 and 172.16.0.0/12 is in use by {who} and {more} others; give --cluster-cidr and --service-cidr"
        ))
    })
}

/// Fails if a flag differs from the stored ranges, since a cluster's ranges are in its objects. Pure.
fn agree(stored: &Ranges, given: ConfiguredRanges, file: &Path) -> Result<(), RangesError> {
    let pairs = [("--cluster-cidr", given.cluster, stored.cluster), ("--service-cidr", given.service, stored.service)];
    for (flag, given, stored) in pairs {
        if let Some(given) = given
            && given.trunc() != stored
        {
            return Err(RangesError::Refused(format!(
                "{flag} {given}: this cluster uses {stored} since its first start ({}), which cannot be changed; omit the flag or use another --data-dir",
                file.display()
            )));
        }
    }
    Ok(())
}

/// The ranges that are stored, or will be stored, in a server's data directory. Its functions block.
#[derive(Debug)]
pub struct StoredRanges {
    file: PathBuf,
    given: ConfiguredRanges,
    stored: Option<Ranges>,
}

impl StoredRanges {
    /// Reads the stored ranges.
    ///
    /// # Errors
    /// Fails if the stored ranges cannot be read, or differ from the flags.
    pub fn read(data_dir: &Path, given: ConfiguredRanges) -> Result<Self, RangesError> {
        let file = data_dir.join(FILE);
        let stored = record::read::<Ranges>(&file)?;
        if let Some(stored) = &stored {
            agree(stored, given, &file)?;
        }
        Ok(Self { file, given, stored })
    }

    /// Returns the stored ranges, or else the configured or free ones. `used` is called only in the latter case.
    ///
    /// # Errors
    /// Fails if no range is free, or if `used` fails.
    pub fn settle<E: From<RangesError>>(&self, used: impl FnOnce() -> Result<Vec<Used>, E>) -> Result<Ranges, E> {
        if let Some(stored) = self.stored {
            return Ok(stored);
        }
        let (cluster, service) = choose(self.given, &used()?)?;
        Ok(Ranges { cluster, service, vni: rand::random_range(1..=VNI_MAX) })
    }

    /// Stores the chosen ranges durably.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    pub fn keep(&self, ranges: Ranges) -> Result<(), RangesError> {
        match self.stored {
            Some(_) => Ok(()),
            None => record::write(&self.file, &ranges, true),
        }
    }
}

/// Returns and stores the ranges of a control plane without a node: the stored, configured or default ones. It uses no
/// addresses of the host, so it neither checks nor reserves any.
///
/// # Errors
/// Fails if the flags differ from the stored ranges, or if a file cannot be read or written.
pub async fn settle(data_dir: &Path, given: ConfiguredRanges) -> Result<Ranges, RangesError> {
    let dir = data_dir.to_owned();
    let lane = FILES.run(move || settle_blocking(&dir, given)).await;
    lane.map_err(|e| RangesError::io(data_dir.display().to_string())(std::io::Error::other(e)))?
}

fn settle_blocking(data_dir: &Path, given: ConfiguredRanges) -> Result<Ranges, RangesError> {
    let kept = StoredRanges::read(data_dir, given)?;
    let ranges = kept.settle(|| Ok::<_, RangesError>(Vec::new()))?;
    kept.keep(ranges)?;
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(s: &str) -> IpNet {
        s.parse().unwrap()
    }
    fn given(cluster: &str, service: &str) -> ConfiguredRanges {
        ConfiguredRanges { cluster: cluster.parse().ok(), service: service.parse().ok() }
    }
    fn chosen(given: ConfiguredRanges, used: &[&str]) -> String {
        let used: Vec<Used> = used.iter().map(|u| Used { net: net(u), by: "eth0".into() }).collect();
        choose(given, &used).map_or_else(|e| e.to_string(), |(c, s)| format!("{c} {s}"))
    }

    #[test]
    fn unused_ranges_are_chosen() {
        let rows: &[(&[&str], &str)] = &[
            (&[], "10.42.0.0/16 10.43.0.0/16"),
            (&["192.168.1.0/24", "172.17.0.0/16"], "10.42.0.0/16 10.43.0.0/16"),
            (&["10.43.7.0/24"], "10.44.0.0/16 10.45.0.0/16"),
            (&["10.42.0.0/24", "10.45.0.1/32"], "10.46.0.0/16 10.47.0.0/16"),
            (&["10.32.0.0/11", "10.64.0.0/10", "10.128.0.0/9"], "10.0.0.0/16 10.1.0.0/16"),
            (&["10.0.0.0/8", "172.17.0.0/16"], "172.18.0.0/16 172.19.0.0/16"),
        ];
        for (used, want) in rows {
            assert_eq!(chosen(ConfiguredRanges::default(), used), *want, "{used:?}");
        }
        let none = chosen(ConfiguredRanges::default(), &["10.0.0.0/8", "172.16.0.0/12"]);
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
        let stored = Ranges { cluster: net("10.42.0.0/16"), service: net("10.43.0.0/16"), vni: 1 };
        let check = |g| agree(&stored, g, Path::new("/x/network.json")).err().map(|e| e.to_string());
        assert_eq!(check(ConfiguredRanges::default()), None);
        assert_eq!(check(given("10.42.0.0/16", "10.43.0.0/16")), None);
        let refused = check(given("", "10.44.0.0/16")).unwrap();
        assert!(refused.starts_with("--service-cidr 10.44.0.0/16: this cluster uses 10.43.0.0/16"), "{refused}");
    }

    #[test]
    fn what_was_settled_on_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = settle_blocking(dir.path(), ConfiguredRanges::default()).unwrap();
        assert_eq!((first.cluster, first.service), (net("10.42.0.0/16"), net("10.43.0.0/16")));
        assert!((1..=VNI_MAX).contains(&first.vni));
        assert_eq!(settle_blocking(dir.path(), ConfiguredRanges::default()).unwrap(), first, "kept");
        let other = settle_blocking(dir.path(), given("10.60.0.0/16", "")).unwrap_err();
        assert!(other.to_string().starts_with("--cluster-cidr 10.60.0.0/16: this cluster uses"), "{other}");
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(files, [FILE], "nothing else is touched");
    }

    #[test]
    fn the_record_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.json");
        let ranges = Ranges { cluster: net("10.42.0.0/16"), service: net("10.43.0.0/16"), vni: 7 };
        assert!(record::read::<Ranges>(&file).unwrap().is_none());
        record::write(&file, &ranges, false).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"clusterCIDR\": \"10.42.0.0/16\""));
        assert_eq!(record::read::<Ranges>(&file).unwrap(), Some(ranges));
        std::fs::write(&file, "{").unwrap();
        assert!(record::read::<Ranges>(&file).unwrap_err().to_string().contains("r.json"));
    }
}
