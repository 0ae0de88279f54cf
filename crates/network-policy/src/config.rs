//! What enforcement on one node needs to know, and the names of its tables.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_net::Family;

/// How often the kernel's tables are compared with what they should be.
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// The settings of one node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory; tables are named after it.
    pub data_dir: PathBuf,
    /// The node whose pods are protected.
    pub node_name: String,
    /// The address families of the pod network.
    pub families: Vec<Family>,
    /// How often the kernel's tables are compared with what they should be.
    pub check_period: Duration,
}

impl Config {
    /// The defaults for a node.
    pub fn new(data_dir: &Path, node_name: &str, families: Vec<Family>) -> Self {
        let (data_dir, node_name) = (data_dir.to_path_buf(), node_name.to_owned());
        Self { data_dir, node_name, families, check_period: CHECK_PERIOD }
    }
}

/// Family and name of a table, as nft takes them.
pub(crate) fn table(family: Family, data_dir: &Path) -> String {
    format!("{} kelson-{}-policy", family.as_str(), kelson_net::network_id(data_dir))
}
