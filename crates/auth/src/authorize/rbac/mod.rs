//! Role-based access control: an index of roles and bindings by subject, and decisions with it.
mod aggregation;
mod binding;
mod escalation;
mod index;
mod lookup;
mod rule;
mod stored;

pub use index::{Rbac, RbacResource, RulesFor};
pub use rule::{PolicyRule, Uncovered, covers, describe_missing};
