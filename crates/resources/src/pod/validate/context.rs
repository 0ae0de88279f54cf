//! The pod-level data that the rules of a container need.
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The pod of a container.
pub(in crate::pod) struct Pod<'a> {
    /// Valid volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Value>,
    /// Names of the pod's resource claims.
    pub claims: BTreeSet<&'a str>,
    /// Value of `spec.restartPolicy`.
    pub restart_policy: &'a str,
    /// Value of `spec.terminationGracePeriodSeconds`.
    pub grace: Option<i64>,
    /// Whether containers use the host's user namespace.
    pub host_users: bool,
    /// Value of `spec.os.name`.
    pub os: &'a str,
    /// Whether it is a pod and not a template.
    pub is_pod: bool,
}
