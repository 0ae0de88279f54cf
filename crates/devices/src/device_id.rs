//! The identity of a device in the cluster.
use std::fmt;

/// The identity of a device in the cluster: driver, pool and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The driver that publishes the device.
    pub driver: String,
    /// The pool, whose name is unique for the driver.
    pub pool: String,
    /// The name of the device, which is unique in the pool.
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}
