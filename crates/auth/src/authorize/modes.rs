//! The authorizers without state, and the names of `--authorization-mode`.
use super::{Authorizer, Decision};
use crate::{Attributes, user};

/// The supported values of `--authorization-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Objects that a node may access because of its pods.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Allows every request; for tests and single-user clusters.
    AlwaysAllow,
    /// Denies every request that no earlier authorizer allowed.
    AlwaysDeny,
}

/// An unknown value of `--authorization-mode`.
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

/// The mode `AlwaysDeny`, which has no opinion, as upstream.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _: &Attributes<'_>) -> Decision {
        Decision::NoOpinion("Everything is forbidden.".into())
    }
}

/// Allows `system:masters` everything, regardless of policy objects; always first in the chain.
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
