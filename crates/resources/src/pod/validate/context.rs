//! What the rules of one container need to know of the pod around it.
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The pod around a container.
pub(in crate::pod) struct Pod<'a> {
    /// Volumes that are valid, by name.
    pub volumes: BTreeMap<&'a str, &'a Value>,
    /// Names of the pod's resource claims.
    pub claims: BTreeSet<&'a str>,
    /// `spec.restartPolicy`.
    pub restart_policy: &'a str,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Option<i64>,
    /// Whether containers use the host's user namespace.
    pub host_users: bool,
    /// `spec.os.name`.
    pub os: &'a str,
    /// Whether it is a pod and no template.
    pub is_pod: bool,
}
