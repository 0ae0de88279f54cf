//! The addresses that servers share: none, as they are put on interfaces of Linux.
use kelson_ranges::Ranges;
use kelson_tasks::Tasks;

use crate::cli::ServerArgs;
use crate::control_plane::ControlPlane;
use crate::leading::Part;

/// The shared addresses of servers, which this system cannot announce.
pub struct Vip;

impl Vip {
    /// There is nothing to check.
    pub async fn prepare(_: &ServerArgs, _: &Ranges) -> anyhow::Result<Self> {
        Ok(Self)
    }

    /// There is nothing to start.
    pub fn start(self, _: &ControlPlane, _: &Tasks) -> Option<Part> {
        None
    }
}
