//! Which devices the claims of a pod can have on a node: the first choice that fulfils every request and constraint, in the
//! order of pools, slices and devices (upstream `k8s.io/dynamic-resource-allocation/structured`).
//!
//! `wish` (what is asked, and what is looked at) ← `counters` (what partitions of a device share) ← `search` ← `request` (what
//! is judged before it), `outcome` (what is written into the claims), `stock` (what there is of a class).
mod counters;
mod outcome;
mod request;
mod search;
mod stock;
#[cfg(test)]
mod tests;
mod wish;

pub use self::outcome::Solution;
use self::search::{Search, Stop};
pub use self::stock::Stock;
pub use self::wish::{Allocator, Classes, Trouble, Wish};
use crate::inventory::Host;
use crate::pool::{PoolState, gather};

impl<'a> Allocator<'a> {
    /// Devices for all of the wishes on a node; `None`: the node has not enough.
    ///
    /// # Errors
    /// Why that cannot be said.
    pub fn allocate(&self, host: Host<'a>, wishes: &'a [Wish<'a>]) -> Result<Option<Solution<'a>>, Trouble> {
        let pools = if wishes.is_empty() { Vec::new() } else { gather(self.inventory, host) };
        let invalid = pools.iter().any(|p| p.state == PoolState::Invalid);
        let mut search = Search::new(*self, host, pools, wishes).map_err(Trouble::Claim)?;
        match search.run() {
            Ok(true) => Ok(Some(Solution::new(host, wishes, search))),
            Ok(false) if invalid => Err(Trouble::Node("invalid resource pools were encountered".into())),
            Ok(false) | Err(Stop::TooMany) => Ok(None),
            Err(Stop::Late) => Err(Trouble::Late),
            Err(Stop::Fault(why)) => Err(Trouble::Claim(why)),
        }
    }
}
