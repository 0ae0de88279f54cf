//! Pods and pod templates: defaults, rules, updates, table.
mod apparmor;
mod defaults;
mod image;
mod kind;
mod qos;
mod resize;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod update;
mod validate;
mod warnings;

pub(crate) use defaults::aggregate;
pub use defaults::{canonical_quantities, claim_spec, template as default_template};
pub use kind::Pods;
pub use validate::{
    container_requirements, container_resource_name, is_standard_resource, node_selector, overcommit, resource_value,
    template as check_template, tolerations, topology_terms,
};
pub use warnings::{template as template_warnings, template_at as template_warnings_at};
