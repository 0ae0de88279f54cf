//! May you: ordered authorizers, each of which allows, denies or has no opinion.
mod modes;
pub mod node;
pub mod policy;
pub mod rbac;

use std::sync::Arc;

pub use modes::{AlwaysAllow, AlwaysDeny, Mode, PrivilegedGroup, UnknownMode};
pub use node::NodeAuthorizer;
pub use rbac::Rbac;

use kelson_meta::{GroupResource, Status};

use crate::Attributes;

/// What an authorizer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed; the reason goes to the audit log.
    Allow(String),
    /// Refused, whatever later authorizers would say.
    Deny(String),
    /// The next authorizer decides; refused if there is none.
    NoOpinion(String),
}

impl Decision {
    /// Whether it allows.
    pub fn is_allow(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
    /// The reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(r) | Self::Deny(r) | Self::NoOpinion(r) => r,
        }
    }
}

/// Decides on requests from memory, without waiting.
pub trait Authorizer: Send + Sync {
    /// The decision.
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;

    /// `Ok` when allowed, else the 403 the client gets.
    fn check(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        match self.authorize(attributes) {
            Decision::Allow(_) => Ok(()),
            refused => Err(forbidden(attributes, refused.reason())),
        }
    }
}

/// Authorizers in the order of `--authorization-mode`.
#[derive(Clone, Default)]
pub struct AuthorizerChain {
    members: Vec<Arc<dyn Authorizer>>,
}

impl AuthorizerChain {
    /// From its members, the first asked first.
    pub fn new(members: Vec<Arc<dyn Authorizer>>) -> Self {
        Self { members }
    }
}

impl Authorizer for AuthorizerChain {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let mut reasons: Vec<String> = Vec::new();
        for member in &self.members {
            match member.authorize(attributes) {
                Decision::NoOpinion(r) if r.is_empty() => {}
                Decision::NoOpinion(r) => reasons.push(r),
                decided => return decided,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }
}

/// The 403 of a refused request, with upstream's wording.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Status {
    let mut message = refusal(attributes);
    if !reason.is_empty() {
        message.push_str(": ");
        message.push_str(reason);
    }
    Status::forbidden(&GroupResource::new(attributes.group, attributes.resource), attributes.name, &message)
}

fn refusal(a: &Attributes<'_>) -> String {
    let (user, verb) = (&a.user.name, a.verb);
    if !a.is_resource {
        return format!("User {user:?} cannot {verb} path {:?}", a.path);
    }
    let resource =
        if a.subresource.is_empty() { a.resource.to_owned() } else { format!("{}/{}", a.resource, a.subresource) };
    let start = format!("User {user:?} cannot {verb} resource {resource:?} in API group {:?}", a.group);
    if a.namespace.is_empty() {
        format!("{start} at the cluster scope")
    } else {
        format!("{start} in the namespace {:?}", a.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UserInfo;

    #[test]
    fn refusals_read_as_upstreams() {
        let jane = UserInfo::new("jane", ["dev"]);
        let list = Attributes::resource(&jane, "list", "", "pods", "default", "");
        assert_eq!(
            forbidden(&list, "").message,
            "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
        );
        let scale = Attributes::resource(&jane, "get", "apps", "deployments", "", "x").with_subresource("scale");
        assert_eq!(
            forbidden(&scale, "why").message,
            "deployments.apps \"x\" is forbidden: User \"jane\" cannot get resource \"deployments/scale\" in API group \
             \"apps\" at the cluster scope: why"
        );
        let path = Attributes::path(&jane, "get", "/metrics");
        assert_eq!(forbidden(&path, "").message, "forbidden: User \"jane\" cannot get path \"/metrics\"");
    }

    #[test]
    fn chain_order() {
        let jane = UserInfo::new("jane", ["dev"]);
        let a = Attributes::path(&jane, "get", "/x");
        let deny_first = AuthorizerChain::new(vec![Arc::new(AlwaysDeny), Arc::new(AlwaysAllow)]);
        assert!(deny_first.authorize(&a).is_allow(), "AlwaysDeny has no opinion, as upstream's");
        let only = AuthorizerChain::new(vec![Arc::new(PrivilegedGroup), Arc::new(AlwaysDeny)]);
        assert_eq!(only.authorize(&a), Decision::NoOpinion("Everything is forbidden.".into()));
        let root = UserInfo::new("root", ["system:masters"]);
        assert!(only.authorize(&Attributes::path(&root, "get", "/x")).is_allow());
        assert_eq!(AuthorizerChain::default().authorize(&a), Decision::NoOpinion(String::new()));
    }
}
