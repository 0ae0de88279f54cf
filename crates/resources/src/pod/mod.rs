//! Pods and pod templates: defaults, rules, updates, table.
mod apparmor;
mod defaults;
mod kind;
mod qos;
mod table;
#[cfg(test)]
mod tests;
mod update;
mod validate;
mod warnings;

pub(crate) use defaults::aggregate;
pub use defaults::{canonical_quantities, canonical_quantity, claim_spec, template as default_template};
pub use kind::Pods;
pub use validate::{driver_name, node_selector, template as check_template, tolerations, topology_terms};
pub use warnings::{template as template_warnings, template_at as template_warnings_at};
