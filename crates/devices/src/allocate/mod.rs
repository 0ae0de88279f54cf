//! The allocator: finds devices on a node for the claims of a pod. It returns the first choice that satisfies all
//! requests and constraints, in the order of pools, slices and devices (upstream
//! `k8s.io/dynamic-resource-allocation/structured`).
//!
//! `fault` (errors) ← `wish` (the input) ← `counters` (counters that partitions share) ← `search` ← `request` (validation before the
//! search), `outcome` (the results for the claims), `stock` (the devices of a class).
mod counters;
mod fault;
mod outcome;
mod request;
mod search;
mod stock;
#[cfg(test)]
mod tests;
mod wish;

pub use self::fault::{ClaimError, RequestName};
pub use self::outcome::Solution;
use self::search::{Search, Stop};
pub use self::stock::Stock;
pub use self::wish::{AllocationError, Allocator, ClaimRequest, Classes};
use crate::inventory::Host;
use crate::pool::{PoolState, gather};

impl<'a> Allocator<'a> {
    /// Allocates devices on a node for all claims. Returns `None` if the node has too few devices.
    ///
    /// # Errors
    /// Fails when a claim, a class or the node's slices are invalid, or when the search takes too many steps.
    pub fn allocate(
        &self,
        host: Host<'a>,
        wishes: &'a [ClaimRequest<'a>],
    ) -> Result<Option<Solution<'a>>, AllocationError> {
        let pools = if wishes.is_empty() { Vec::new() } else { gather(self.inventory, host) };
        let invalid = pools.iter().any(|p| p.state == PoolState::Invalid);
        let mut search = Search::new(*self, host, pools, wishes).map_err(AllocationError::Claim)?;
        match search.run() {
            Ok(true) => Ok(Some(Solution::new(host, wishes, search))),
            Ok(false) if invalid => Err(AllocationError::Node("invalid resource pools were encountered".into())),
            Ok(false) | Err(Stop::TooMany) => Ok(None),
            Err(Stop::Late) => Err(AllocationError::Late),
            Err(Stop::Fault(why)) => Err(AllocationError::Claim(why)),
        }
    }
}
