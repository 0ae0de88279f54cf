//! Which devices the claims of a pod can have on a node: the first choice that fulfils every request and constraint, in the
//! order of pools, slices and devices (upstream `k8s.io/dynamic-resource-allocation/structured`).
//!
//! `request` (what is asked, and of what class) ← `counters` (what partitions of a device share) ← `search` ← `outcome`
//! (what is written into the claims).
mod counters;
mod outcome;
mod request;
mod search;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

pub use self::outcome::Solution;
use self::search::{Search, Stop};
use crate::claim::ClaimSpec;
use crate::class::DeviceClassView;
use crate::inventory::{Host, Inventory};
use crate::pool::{PoolState, gather};
use crate::selector::Selectors;
use crate::taken::Taken;

/// Device classes by name.
pub type Classes = HashMap<Box<str>, Arc<DeviceClassView>>;

/// A claim that wants devices.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// `NAMESPACE/NAME`, for messages.
    pub claim: &'a str,
    /// `spec.devices` and nothing else.
    pub spec: &'a ClaimSpec,
}

/// Why it cannot be said what a node has to give. Display is upstream's sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The node's slices contradict each other; another node may do.
    Node(String),
    /// Something is wrong with a claim or a class; no node will do.
    Claim(String),
    /// There are too many ways to try.
    Late,
}

/// All that allocating looks at.
#[derive(Clone, Copy, Debug)]
pub struct Allocator<'a> {
    /// All slices there are.
    pub inventory: &'a Inventory,
    /// What other claims have.
    pub taken: &'a Taken,
    /// All classes there are.
    pub classes: &'a Classes,
    /// Expressions that were compiled before.
    pub selectors: &'a Selectors,
}

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
