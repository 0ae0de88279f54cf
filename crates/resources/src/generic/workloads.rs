//! `scheduling.k8s.io`: pod groups and workloads.
use super::kind::{Generic, plain};
use crate::options::Options;
const GROUP: &str = "scheduling.k8s.io";

/// Returns pod groups and workloads, which are stored as given.
pub fn kinds() -> Vec<Generic> {
    vec![plain(Options::of(GROUP, "podgroups")), plain(Options::of(GROUP, "workloads")).name_and_age()]
}
