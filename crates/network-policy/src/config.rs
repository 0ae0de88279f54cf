//! The settings of enforcement on one node, and the names of its tables.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kelson_net::Family;

/// The default interval at which the kernel's tables are checked.
const CHECK_PERIOD: Duration = Duration::from_secs(60);

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory; the names of the tables are derived from it.
    pub data_dir: PathBuf,
    /// The node whose pods are protected.
    pub node_name: String,
    /// The address families of the pod network.
    pub families: Vec<Family>,
    /// The interval at which the kernel's tables are checked.
    pub check_period: Duration,
}

impl Config {
    /// Creates the default settings of a node.
    pub fn new(data_dir: &Path, node_name: &str, families: Vec<Family>) -> Self {
        let (data_dir, node_name) = (data_dir.to_path_buf(), node_name.to_owned());
        Self { data_dir, node_name, families, check_period: CHECK_PERIOD }
    }
}

/// Returns family and name of a table, in nft's form.
pub(crate) fn table(family: Family, data_dir: &Path) -> String {
    format!("{} kelson-{}-policy", family.as_str(), kelson_net::network_id(data_dir))
}
