//! Identities: the result of authentication, which authorization, admission and audit read; and the names of well-known
//! users and groups (upstream `authentication/user`).
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An authenticated identity (`authentication.k8s.io/v1` UserInfo).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// The name, unique among active users.
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The UID, which survives a rename and differs for another user of the same name; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups in the order of the authenticator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further values of the authenticator.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// Creates a user with these groups, without UID and extra values.
    pub fn new<G: Into<String>>(name: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        Self { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..Self::default() }
    }
    /// Returns the user `system:anonymous` in the group `system:unauthenticated`.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED])
    }
    /// Reports whether the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
    /// Returns the identity of a service account, as RBAC and TokenReview know it.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: service_account_username(namespace, name),
            uid: uid.to_owned(),
            groups: service_account_groups(namespace),
            extra: BTreeMap::new(),
        }
    }
    /// Returns the value of an extra key that has exactly one.
    pub fn extra_one(&self, key: &str) -> Option<&str> {
        match self.extra.get(key).map(Vec::as_slice) {
            Some([one]) => Some(one),
            _ => None,
        }
    }
}

/// Returns the user name of a service account: `system:serviceaccount:NAMESPACE:NAME`.
pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// Returns the groups of every service account in `namespace` (without `system:authenticated`).
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// Returns namespace and name from a service account's user name.
pub fn split_service_account(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (kelson_meta::is_dns1123_label(namespace).is_ok() && kelson_meta::is_dns1123_subdomain(name).is_ok())
        .then_some((namespace, name))
}

/// Returns the node name when `user` is a node: `system:node:NAME` in the group `system:nodes`. The name may be empty
/// for a malformed user, which callers must reject.
pub fn node_name(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    user.in_group(NODES).then_some(name)
}

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group with all permissions, regardless of policy objects.
pub const MASTERS: &str = "system:masters";
/// The group of nodes.
pub const NODES: &str = "system:nodes";
/// The group of nodes that present an expired certificate: they may only request another one with the same name.
pub const RETURNING_NODES: &str = "kelson:returning-nodes";
/// The group of bootstrap tokens.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// The group of all service accounts; with `:NAMESPACE` appended, of those in one namespace.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The group of monitoring scrapers.
pub const MONITORING: &str = "system:monitoring";
/// The user name of the API server for requests to itself.
pub const API_SERVER: &str = "system:apiserver";
/// The user name of the scheduler.
pub const KUBE_SCHEDULER: &str = "system:kube-scheduler";
/// The user name of the controller manager.
pub const KUBE_CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The user name of the service proxy.
pub const KUBE_PROXY: &str = "system:kube-proxy";
/// The prefix of a node's name in its user name.
pub const NODE_PREFIX: &str = "system:node:";
/// The prefix of token IDs in user names of bootstrap tokens.
pub const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";
/// The prefix of namespace and name in user names of service accounts.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Extra key: identifies the credential itself (`JTI=…`, `X509SHA256=…`).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Extra key: the pod that a token is bound to.
pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
/// Extra key: the UID of that pod.
pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Extra key: the node of a token's pod, or the node it is bound to.
pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// Extra key: the UID of that node.
pub const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_accounts_and_nodes() {
        assert_eq!(split_service_account("system:serviceaccount:a:b.c"), Some(("a", "b.c")));
        for bad in ["system:serviceaccount:a", "system:serviceaccount:A:b", "system:serviceaccount:a:b:c", "jane"] {
            assert_eq!(split_service_account(bad), None, "{bad}");
        }
        assert_eq!(node_name(&UserInfo::new("system:node:n1", [NODES])), Some("n1"));
        assert_eq!(node_name(&UserInfo::new("system:node:n1", [AUTHENTICATED])), None);
    }
}
