//! Counters of a pool that the partitions of a device share. Each allocated partition consumes some of them
//! (KEP-4815).
use std::collections::{BTreeMap, HashMap};

use kelson_meta::Quantity;

use crate::device_id::DeviceId;
use crate::pool::Pool;
use crate::slice::DeviceView;
use crate::taken::DevicesInUse;

/// The amounts by counter set and counter.
type CounterAmounts<'s> = BTreeMap<(&'s str, &'s str), Quantity>;

/// The remaining counters of each pool, by the index of the pool.
#[derive(Debug, Default)]
pub(super) struct CountersLeft<'s>(HashMap<usize, CounterAmounts<'s>>);

impl<'s> CountersLeft<'s> {
    fn of(&mut self, at: usize, pool: &Pool<'s>, taken: &DevicesInUse) -> &mut CounterAmounts<'s> {
        self.0.entry(at).or_insert_with(|| {
            let mut left = CounterAmounts::new();
            for (set, counters) in &pool.counters {
                left.extend(counters.iter().map(|(name, c)| ((*set, name.as_str()), c.value)));
            }
            for device in pool.slices.iter().chain(&pool.others).flat_map(|s| &s.spec.devices) {
                let id =
                    || DeviceId { driver: pool.driver.into(), pool: pool.name.into(), device: device.name.clone() };
                if !device.consumes_counters.is_empty() && taken.is_used(&id()) {
                    subtract(&mut left, device);
                }
            }
            left
        })
    }

    /// Returns whether the remaining counters suffice for a device.
    pub fn suffice(&mut self, at: usize, pool: &Pool<'s>, taken: &DevicesInUse, device: &'s DeviceView) -> bool {
        let left = self.of(at, pool, taken);
        // The amounts are summed first, because a device may name a set twice.
        let mut wanted = CounterAmounts::new();
        for (key, amount) in uses(device) {
            let sum = wanted.entry(key).or_default();
            *sum = sum.plus(amount);
        }
        let none = Quantity::default();
        let enough = wanted.iter().all(|(key, amount)| left.get(key).copied().unwrap_or(none) >= *amount);
        // A pool with overdrawn counters can supply no more devices.
        enough && left.values().all(|amount| amount.signum() >= 0)
    }

    /// Consumes the counters of a device.
    pub fn take(&mut self, at: usize, pool: &Pool<'s>, taken: &DevicesInUse, device: &'s DeviceView) {
        subtract(self.of(at, pool, taken), device);
    }

    /// Returns the counters of a device.
    pub fn give_back(&mut self, at: usize, device: &'s DeviceView) {
        let Some(left) = self.0.get_mut(&at) else { return };
        for (key, amount) in uses(device) {
            if let Some(left) = left.get_mut(&key) {
                *left = left.plus(amount);
            }
        }
    }
}

fn subtract<'s>(left: &mut CounterAmounts<'s>, device: &'s DeviceView) {
    for (key, amount) in uses(device) {
        if let Some(left) = left.get_mut(&key) {
            *left = left.minus(amount);
        }
    }
}

fn uses(device: &DeviceView) -> impl Iterator<Item = ((&str, &str), Quantity)> {
    device
        .consumes_counters
        .iter()
        .flat_map(|u| u.counters.iter().map(|(name, c)| ((u.counter_set.as_str(), name.as_str()), c.value)))
}
