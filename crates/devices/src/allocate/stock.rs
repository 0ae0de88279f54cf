//! How many devices of a class a node reaches, and how many of them are given: what scores of nodes go by where a class stands for
//! an extended resource (KEP-5004).
use super::wish::Allocator;
use crate::class::DeviceClassView;
use crate::device_id::DeviceId;
use crate::inventory::Host;

/// Devices of one class on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// All that the node reaches.
    pub devices: i64,
    /// Those of them that claims have, whole or a share.
    pub given: i64,
}

impl Allocator<'_> {
    /// What a node has of a class. All slices count, whether their pools are whole or not.
    ///
    /// # Errors
    /// Why a selector of the class cannot be decided.
    pub fn stock(&self, host: Host<'_>, class: &DeviceClassView) -> Result<Stock, String> {
        let mut stock = Stock::default();
        for slice in self.inventory.near(host.name) {
            let spec = &slice.spec;
            let each = spec.per_device_node_selection == Some(true);
            if !each && !host.suits(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref()) {
                continue;
            }
            for device in &spec.devices {
                if each && !host.suits(device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref()) {
                    continue;
                }
                let of = || format!("class {}", class.metadata.name);
                if !self.selectors.all_match(&class.spec.selectors, &spec.driver, device, of)? {
                    continue;
                }
                let (driver, pool, name) = (spec.driver.clone(), spec.pool.name.clone(), device.name.clone());
                stock.devices += 1;
                stock.given += i64::from(self.taken.is_used(&DeviceId { driver, pool, device: name }));
            }
        }
        Ok(stock)
    }
}
