//! Role-based access control: an index of roles and bindings, kept by subject, and decisions from it.
mod escalation;
mod index;
mod rule;

pub use index::{Rbac, RbacResource, RulesFor};
pub use rule::{PolicyRule, Uncovered, covers, describe_missing};
