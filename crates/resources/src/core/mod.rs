//! Kinds of the legacy group, one file each.
mod config_map;
mod endpoints;
mod event;
mod lease;
mod namespace;
mod node;
mod quota;
mod secret;
mod service;
mod service_account;
mod volume;
mod volume_claim;

pub use config_map::ConfigMaps;
pub use endpoints::{EndpointSlices, Endpoints};
pub use event::Events;
pub use lease::{LeaseCandidates, Leases};
pub use namespace::Namespaces;
pub use node::Nodes;
pub use quota::{LimitRanges, PodTemplates, ResourceQuotas};
pub use secret::Secrets;
pub use service::{Services, cluster_ip_faults};
pub use service_account::ServiceAccounts;
pub use volume::PersistentVolumes;
pub(crate) use volume::inline_volume_spec;
pub use volume_claim::PersistentVolumeClaims;
pub(crate) use volume_claim::claim_spec as check_claim_spec;

use std::net::IpAddr;

use crate::path::{Errors, Path};

/// Validates an address for endpoints: valid, and in none of the special ranges.
pub(crate) fn endpoint_ip(s: &str, p: &Path<'_>, e: &mut Errors) {
    let Some(ip) = crate::addresses::parse_ip(s) else { return e.invalid(p, s, "must be a valid IP address") };
    // `::ffff:127.0.0.1` is the loopback address in another form.
    let ip = ip.to_canonical();
    if ip.is_unspecified() {
        e.invalid(p, s, format!("may not be unspecified ({s})"));
    }
    if ip.is_loopback() {
        e.invalid(p, s, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(v) => (v.is_link_local(), v.octets()[0] == 224 && v.octets()[1] == 0 && v.octets()[2] == 0),
        IpAddr::V6(v) => (v.is_unicast_link_local(), v.segments()[0] & 0xff0f == 0xff02),
    };
    if link_local {
        e.invalid(p, s, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_local_multicast {
        e.invalid(p, s, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_ranges_are_no_endpoints_in_any_spelling() {
        let refused = |ip: &str| {
            let mut errors = Errors::default();
            endpoint_ip(ip, &Path::new("ip"), &mut errors);
            !errors.is_empty()
        };
        for bad in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "fe80::1"] {
            assert!(refused(bad), "{bad}");
        }
        assert!(!refused("10.42.0.7") && !refused("fd00::7"));
    }
}
