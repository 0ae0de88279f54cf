//! The number of devices of a class on a node, in total and allocated. The scheduler scores nodes by it when a class
//! provides an extended resource (KEP-5004).
use super::wish::Allocator;
use crate::class::DeviceClassView;
use crate::device_id::DeviceId;
use crate::inventory::Host;
use crate::selector::SelectorError;

/// The number of devices of one class on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// All devices that are usable on the node.
    pub devices: i64,
    /// The devices that claims have, exclusively or as a share.
    pub given: i64,
}

impl Allocator<'_> {
    /// Counts the devices of a class on a node. All slices count, even if their pools are incomplete.
    ///
    /// # Errors
    /// Fails when a selector of the class cannot be evaluated.
    pub fn stock(&self, host: Host<'_>, class: &DeviceClassView) -> Result<Stock, SelectorError> {
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
