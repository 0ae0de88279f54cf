//! What partitions of a device share: counters of a pool, of which each partition that is given out uses some (KEP-4815).
use std::collections::{BTreeMap, HashMap};

use kelson_meta::Quantity;

use crate::device_id::DeviceId;
use crate::pool::Pool;
use crate::slice::DeviceView;
use crate::taken::Taken;

/// CounterAmounts by set and counter.
type CounterAmounts<'s> = BTreeMap<(&'s str, &'s str), Quantity>;

/// What is left of the counters of each pool, by the pool's place.
#[derive(Debug, Default)]
pub(super) struct CountersLeft<'s>(HashMap<usize, CounterAmounts<'s>>);

impl<'s> CountersLeft<'s> {
    fn of(&mut self, at: usize, pool: &Pool<'s>, taken: &Taken) -> &mut CounterAmounts<'s> {
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

    /// Whether there is enough left for a device.
    pub fn suffice(&mut self, at: usize, pool: &Pool<'s>, taken: &Taken, device: &'s DeviceView) -> bool {
        let left = self.of(at, pool, taken);
        // Summed up first: one set may be named twice.
        let mut wanted = CounterAmounts::new();
        for (key, amount) in uses(device) {
            let sum = wanted.entry(key).or_default();
            *sum = sum.plus(amount);
        }
        let none = Quantity::default();
        let enough = wanted.iter().all(|(key, amount)| left.get(key).copied().unwrap_or(none) >= *amount);
        // Counters that are overdrawn already let nothing more be had of the pool.
        enough && left.values().all(|amount| amount.signum() >= 0)
    }

    /// Takes what a device uses.
    pub fn take(&mut self, at: usize, pool: &Pool<'s>, taken: &Taken, device: &'s DeviceView) {
        subtract(self.of(at, pool, taken), device);
    }

    /// Gives it back.
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
