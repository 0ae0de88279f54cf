//! Pods and pod templates: defaults, rules, updates, table.
mod defaults;
mod kind;
mod table;
mod update;
mod validate;
mod warnings;

pub use defaults::{canonical_quantities, claim_spec, template as default_template};
pub use kind::Pods;
pub use validate::template as check_template;
pub use warnings::template as template_warnings;
