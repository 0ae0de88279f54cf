//! Identities: what authentication yields and authorization, admission and audit read. Names of well-known users and
//! groups (upstream `authentication/user`).
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An authenticated identity (`authentication.k8s.io/v1` UserInfo).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// Unique among active users.
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Survives a rename, differs for another user of the same name; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Groups, in the order the authenticator gave them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Whatever else the authenticator knows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with these groups, no uid, no extra.
    pub fn new<G: Into<String>>(name: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        Self { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..Self::default() }
    }
    /// `system:anonymous` in `system:unauthenticated`.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED])
    }
    /// Whether the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
    /// The identity of a service account, as RBAC and TokenReview know it.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: service_account_username(namespace, name),
            uid: uid.to_owned(),
            groups: service_account_groups(namespace),
            extra: BTreeMap::new(),
        }
    }
    /// The one value of an extra key, when there is exactly one.
    pub fn extra_one(&self, key: &str) -> Option<&str> {
        match self.extra.get(key).map(Vec::as_slice) {
            Some([one]) => Some(one),
            _ => None,
        }
    }
}

/// The user name of a service account: `system:serviceaccount:NAMESPACE:NAME`.
pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The groups every service account of `namespace` is in (without `system:authenticated`).
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// Namespace and name of a service account's user name.
pub fn split_service_account(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (kelson_meta::is_dns1123_label(namespace).is_ok() && kelson_meta::is_dns1123_subdomain(name).is_ok())
        .then_some((namespace, name))
}

/// Node name when `user` is a node: `system:node:NAME` in group `system:nodes`. The name may be empty for a malformed
/// user, which callers must refuse.
pub fn node_name(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    user.in_group(NODES).then_some(name)
}

/// User of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of everybody who proved an identity.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group that may do everything, whatever the policy objects say.
pub const MASTERS: &str = "system:masters";
/// Group of node agents.
pub const NODES: &str = "system:nodes";
/// Group of nodes that come back with a certificate that has ended: they may ask for another of the same name.
pub const RETURNING_NODES: &str = "kelson:returning-nodes";
/// Group of bootstrap tokens.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// Group of all service accounts; `:NAMESPACE` appended, of one namespace's.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// Group of monitoring scrapers.
pub const MONITORING: &str = "system:monitoring";
/// User name of the API server towards itself.
pub const API_SERVER: &str = "system:apiserver";
/// User name of the scheduler.
pub const KUBE_SCHEDULER: &str = "system:kube-scheduler";
/// User name of the controller manager.
pub const KUBE_CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// User name of the service proxy.
pub const KUBE_PROXY: &str = "system:kube-proxy";
/// The prefix of a node's name in its user name.
pub const NODE_PREFIX: &str = "system:node:";
/// Before a token id in a bootstrap token's user name.
pub const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";
/// Before namespace and name in a service account's user name.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Extra key: identifies the credential itself (`JTI=…`, `X509SHA256=…`).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Extra key: pod a token is bound to.
pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
/// Extra key: uid of that pod.
pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Extra key: node a token's pod runs on, or the node it is bound to.
pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// Extra key: uid of that node.
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
