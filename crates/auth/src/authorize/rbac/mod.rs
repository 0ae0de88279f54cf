//! Role-based access control: an index of roles and bindings, kept by subject, and decisions from it.
mod aggregation;
mod binding;
mod escalation;
mod index;
mod lookup;
mod rule;
mod stored;

pub use index::{Rbac, RbacResource, RulesFor};
pub use rule::{PolicyRule, Uncovered, covers, describe_missing};
