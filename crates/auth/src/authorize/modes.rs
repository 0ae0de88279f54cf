//! The small authorizers, and the names of `--authorization-mode`.
use super::{Authorizer, Decision};
use crate::{Attributes, user};

/// `--authorization-mode` values served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What each node may reach by its pods.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Allows every request; for tests and clusters that one person has.
    AlwaysAllow,
    /// Refuses every request that no authorizer before it allowed.
    AlwaysDeny,
}

/// A value of `--authorization-mode` that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("authorization-mode {0:?} is not a valid mode")]
pub struct UnknownMode(pub String);

impl std::str::FromStr for Mode {
    type Err = UnknownMode;
    fn from_str(s: &str) -> Result<Self, UnknownMode> {
        match s {
            "Node" => Ok(Self::Node),
            "RBAC" => Ok(Self::Rbac),
            "AlwaysAllow" => Ok(Self::AlwaysAllow),
            "AlwaysDeny" => Ok(Self::AlwaysDeny),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

/// The mode `AlwaysAllow`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn authorize(&self, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }
}

/// Allows nothing; like upstream's, by having no opinion.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _: &Attributes<'_>) -> Decision {
        Decision::NoOpinion("Everything is forbidden.".into())
    }
}

/// Allows `system:masters` everything, whatever the policy objects say; always first in the chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrivilegedGroup;

impl Authorizer for PrivilegedGroup {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.in_group(user::MASTERS) {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}
