//! Kinds with few rules, by API group: each is an entry of its group's list.
mod admission_policies;
mod admission_registration;
mod admission_webhooks;
mod device_claims;
mod device_formats;
#[cfg(test)]
mod device_slice_tests;
mod device_slices;
mod device_status;
#[cfg(test)]
mod device_tests;
mod devices;
mod extensions;
mod flow_control;
mod flow_rules;
mod kind;
mod reviews;
mod webhook_urls;
mod workloads;

use std::sync::LazyLock;

pub use kind::Generic;

/// All such kinds.
pub static KINDS: LazyLock<Vec<Generic>> = LazyLock::new(|| {
    let groups = [
        reviews::kinds(),
        extensions::kinds(),
        admission_registration::kinds(),
        workloads::kinds(),
        devices::kinds(),
        flow_control::kinds(),
    ];
    groups.into_iter().flatten().collect()
});
