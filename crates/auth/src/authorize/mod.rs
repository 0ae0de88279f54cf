//! Authorization: ordered authorizers, each of which allows, denies or has no opinion.
pub mod config;
mod modes;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod webhook;

use std::sync::Arc;

use async_trait::async_trait;
pub use modes::{AlwaysAllow, AlwaysDeny, Mode, PrivilegedGroup, UnknownMode};
pub use node::NodeAuthorizer;
pub use rbac::Rbac;
pub use webhook::WebhookAuthorizer;

use kelson_meta::{GroupResource, Status};

use crate::{Attributes, UserInfo};

/// The decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed; the reason goes to the audit log.
    Allow(String),
    /// Denied, whatever later authorizers would decide.
    Deny(String),
    /// The next authorizer decides; denied if there is none.
    NoOpinion(String),
}

impl Decision {
    /// Reports whether it allows the request.
    pub fn is_allow(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
    /// Returns the reason; may be empty. The reason of a denial is also sent to the client.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(r) | Self::Deny(r) | Self::NoOpinion(r) => r,
        }
    }
    /// Returns the audit annotations for the decision (`authorization.k8s.io/…`).
    pub fn audit_annotations(&self) -> [(&'static str, &str); 2] {
        let word = if self.is_allow() { "allow" } else { "forbid" };
        [("authorization.k8s.io/decision", word), ("authorization.k8s.io/reason", self.reason())]
    }
}

/// Decides whether a user may perform a request. The server asks its authorizers (Node, RBAC, webhooks) in order; the
/// first one with an opinion decides. A decision is made from memory, or by a request to another server
/// ([`Authorizer::as_async`]). Callers that can wait use `decide` or `check` of `dyn Authorizer`, which choose the
/// right variant.
pub trait Authorizer: Send + Sync {
    /// Returns the decision from memory.
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;

    /// Returns why a list of a user's rules is incomplete for this authorizer; empty when it is complete.
    fn unlisted(&self, _user: &UserInfo) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the asynchronous variant, if this request cannot be decided from memory (a webhook without a cached
    /// answer).
    fn as_async(&self, _attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        None
    }
}

/// An authorizer that makes requests.
#[async_trait]
pub trait AsyncAuthorizer: Send + Sync {
    /// Returns the decision; an authorizer that cannot be reached decides by its failure policy.
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision;
}

impl dyn Authorizer + '_ {
    /// Returns the decision, asynchronously only if necessary.
    pub async fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        match self.as_async(attributes) {
            Some(waiting) => waiting.decide_later(attributes).await,
            None => self.authorize(attributes),
        }
    }

    /// Checks that the request is allowed.
    ///
    /// # Errors
    /// The 403 for the client.
    pub async fn check(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        match self.decide(attributes).await {
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
    /// Creates a chain of these members in their order.
    pub fn new(members: Vec<Arc<dyn Authorizer>>) -> Self {
        Self { members }
    }
}

/// The reasons of members without an opinion.
#[derive(Default)]
struct Undecided {
    reasons: Vec<String>,
}

impl Undecided {
    /// Returns the decision if it ends the evaluation.
    fn hear(&mut self, decision: Decision) -> Option<Decision> {
        match decision {
            Decision::NoOpinion(reason) => {
                if !reason.is_empty() {
                    self.reasons.push(reason);
                }
                None
            }
            decided => Some(decided),
        }
    }
    fn end(self) -> Decision {
        Decision::NoOpinion(self.reasons.join("\n"))
    }
}

impl Authorizer for AuthorizerChain {
    /// Denies when it is the turn of an asynchronous member: skipping it could allow a request that it denies.
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let mut undecided = Undecided::default();
        for member in &self.members {
            if member.as_async(attributes).is_some() {
                return Decision::Deny("an authorizer cannot decide without waiting".into());
            }
            if let Some(decided) = undecided.hear(member.authorize(attributes)) {
                return decided;
            }
        }
        undecided.end()
    }

    fn unlisted(&self, user: &UserInfo) -> Vec<&'static str> {
        self.members.iter().flat_map(|member| member.unlisted(user)).collect()
    }

    fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
        self.members.iter().any(|m| m.as_async(attributes).is_some()).then_some(self)
    }
}

#[async_trait]
impl AsyncAuthorizer for AuthorizerChain {
    async fn decide_later(&self, attributes: &Attributes<'_>) -> Decision {
        let mut undecided = Undecided::default();
        for member in &self.members {
            if let Some(decided) = undecided.hear(member.decide(attributes).await) {
                return decided;
            }
        }
        undecided.end()
    }
}

/// Returns the 403 for a denied request, with upstream's message.
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

    /// Decides about `/ask` asynchronously, and about nothing else.
    struct Remote(Decision);
    impl Authorizer for Remote {
        fn authorize(&self, _: &Attributes<'_>) -> Decision {
            Decision::NoOpinion("not mine".into())
        }
        fn as_async(&self, attributes: &Attributes<'_>) -> Option<&dyn AsyncAuthorizer> {
            (attributes.path == "/ask").then_some(self)
        }
    }
    #[async_trait]
    impl AsyncAuthorizer for Remote {
        async fn decide_later(&self, _: &Attributes<'_>) -> Decision {
            tokio::task::yield_now().await;
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn a_member_may_wait() {
        let jane = UserInfo::new("jane", ["dev"]);
        let remote = Arc::new(Remote(Decision::Deny("closed today".into())));
        let chain = AuthorizerChain::new(vec![Arc::new(PrivilegedGroup), remote, Arc::new(AlwaysAllow)]);
        let chain: &dyn Authorizer = &chain;
        let (ask, other) = (Attributes::path(&jane, "get", "/ask"), Attributes::path(&jane, "get", "/other"));
        assert_eq!(chain.decide(&ask).await, Decision::Deny("closed today".into()));
        assert!(chain.decide(&other).await.is_allow(), "decided from memory");
        assert!(matches!(chain.authorize(&ask), Decision::Deny(_)), "no way around whoever must be asked");
        assert_eq!(chain.check(&ask).await.unwrap_err().code, 403);
        let annotations = chain.decide(&ask).await;
        assert_eq!(
            annotations.audit_annotations(),
            [("authorization.k8s.io/decision", "forbid"), ("authorization.k8s.io/reason", "closed today")]
        );
    }
}
