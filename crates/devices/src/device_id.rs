//! By what a device is known in the whole cluster.
use std::fmt;

/// Names one device of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// Who publishes it.
    pub driver: String,
    /// Of the driver.
    pub pool: String,
    /// Its name within the pool.
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}
