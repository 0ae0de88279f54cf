//! May you: ordered authorizers, each of which allows, denies or has no opinion.
use std::sync::Arc;

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
