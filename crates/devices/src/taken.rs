//! The devices that claims have, and the consumed capacity of shared devices.
use std::collections::{BTreeMap, HashMap};

use kelson_meta::Quantity;

use crate::claim::{Allocation, Granted};
use crate::device_id::DeviceId;

/// The allocated devices. Allocations are added and removed as a whole.
#[derive(Clone, Debug, Default)]
pub struct DevicesInUse {
    /// The number of claims that have a device exclusively. More than one is an error of another component.
    whole: HashMap<DeviceId, usize>,
    shares: HashMap<DeviceId, Shares>,
}

/// The shares of one device.
#[derive(Clone, Debug, Default)]
struct Shares {
    count: usize,
    consumed: BTreeMap<String, Quantity>,
}

impl DevicesInUse {
    /// Adds the devices of a claim.
    pub fn add(&mut self, allocation: &Allocation) {
        for granted in counted(allocation) {
            if granted.share_id.is_none() {
                *self.whole.entry(granted.id()).or_default() += 1;
                continue;
            }
            let shares = self.shares.entry(granted.id()).or_default();
            shares.count += 1;
            for (name, amount) in &granted.consumed_capacity {
                let sum = shares.consumed.entry(name.clone()).or_default();
                *sum = sum.plus(*amount);
            }
        }
    }

    /// Removes the devices of a claim that was added before.
    pub fn remove(&mut self, allocation: &Allocation) {
        for granted in counted(allocation) {
            let id = granted.id();
            if granted.share_id.is_none() {
                if let Some(n) = self.whole.get_mut(&id) {
                    *n -= 1;
                    if *n == 0 {
                        self.whole.remove(&id);
                    }
                }
                continue;
            }
            let Some(shares) = self.shares.get_mut(&id) else { continue };
            shares.count = shares.count.saturating_sub(1);
            if shares.count == 0 {
                self.shares.remove(&id);
                continue;
            }
            for (name, amount) in &granted.consumed_capacity {
                if let Some(sum) = shares.consumed.get_mut(name) {
                    *sum = sum.minus(*amount);
                }
            }
        }
    }

    /// Returns whether a claim has the device exclusively.
    pub fn is_taken(&self, id: &DeviceId) -> bool {
        self.whole.contains_key(id)
    }

    /// Returns the capacity that the shares of a device consume, or `None` if it has no shares.
    pub fn consumed(&self, id: &DeviceId) -> Option<&BTreeMap<String, Quantity>> {
        self.shares.get(id).map(|s| &s.consumed)
    }

    /// Returns whether any claim has the device or a share of it.
    pub fn is_used(&self, id: &DeviceId) -> bool {
        self.is_taken(id) || self.shares.contains_key(id)
    }

    /// Returns whether no device is allocated.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.shares.is_empty()
    }
}

/// Returns the devices of an allocation without those with admin access, which are not taken.
fn counted(allocation: &Allocation) -> impl Iterator<Item = &Granted> {
    allocation.devices.results.iter().filter(|g| g.admin_access != Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_added_is_gone_when_it_is_removed() {
        let share = |amount: &str, id: &str| json!({"driver": "d", "pool": "p", "device": "shared", "shareID": id, "consumedCapacity": {"memory": amount}});
        let of = |results: serde_json::Value| -> Allocation {
            serde_json::from_value(json!({"devices": {"results": results}})).unwrap()
        };
        let (one, two) = (
            of(json!([share("2Gi", "1"), {"driver": "d", "pool": "p", "device": "own"}])),
            of(json!([share("3Gi", "2")])),
        );
        let watcher = of(json!([{"driver": "d", "pool": "p", "device": "watched", "adminAccess": true}]));
        let id = |device: &str| DeviceId { driver: "d".into(), pool: "p".into(), device: device.into() };
        let mut taken = DevicesInUse::default();
        [&one, &two, &watcher].into_iter().for_each(|a| taken.add(a));
        let consumed = |taken: &DevicesInUse| taken.consumed(&id("shared")).map(|c| c["memory"].to_string());
        assert_eq!((taken.is_taken(&id("own")), taken.is_taken(&id("shared"))), (true, false));
        assert_eq!((consumed(&taken).as_deref(), taken.is_used(&id("watched"))), (Some("5Gi"), false));
        taken.remove(&two);
        assert_eq!(consumed(&taken).as_deref(), Some("2Gi"));
        taken.remove(&one);
        taken.remove(&watcher);
        assert!(taken.is_empty(), "{taken:?}");
    }
}
