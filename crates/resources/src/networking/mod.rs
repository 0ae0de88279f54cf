//! Kinds of networking.k8s.io: ingresses and their classes, network policies, addresses and service CIDRs.
mod addresses;
mod ingress;
mod network_policy;

pub use addresses::{IpAddresses, ServiceCidrs};
pub use ingress::{IngressClasses, Ingresses};
pub use network_policy::NetworkPolicies;

/// The API group of these kinds.
const GROUP: &str = "networking.k8s.io";
