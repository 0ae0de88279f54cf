//! What hollow nodes are like: how many, how large, what they are called and where they seem to be.
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Nodes that one process may have: their addresses come from one range.
pub const NODES_MAX: usize = 8192;
/// The number and the properties of the nodes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of nodes, up to [`NODES_MAX`].
    pub nodes: usize,
    /// Their names are this and a number from 0 on.
    pub prefix: String,
    /// CPU of each, a quantity.
    pub cpu: String,
    /// Memory of each, a quantity.
    pub memory: String,
    /// Pods that each takes.
    pub pods: u32,
    /// Labels of all, besides those of every node.
    pub labels: Vec<(String, String)>,
    /// The time for which the containers of pods run that do not always restart; then they have succeeded.
    pub run_for: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 1,
            prefix: "hollow-".to_owned(),
            cpu: "8".to_owned(),
            memory: "32Gi".to_owned(),
            pods: 110,
            labels: Vec::new(),
            run_for: Duration::from_secs(1),
        }
    }
}

impl Config {
    /// The name of a node.
    pub(crate) fn name(&self, node: usize) -> String {
        format!("{}{node}", self.prefix)
    }

    /// The node of this name, if it is one of these.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        let digits = name.strip_prefix(&self.prefix)?;
        let number = digits.parse().ok().filter(|n| *n < self.nodes)?;
        // `007` is the name of no node.
        (self.name(number) == name).then_some(number)
    }
}

/// Returns the address of a node, in the range for benchmarks of networks (RFC 2544), which is not routed.
pub(crate) fn address(node: usize) -> IpAddr {
    let offset = u32::try_from(node % NODES_MAX).unwrap_or(0) + 1;
    IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + offset))
}
