//! The types of expressions, the types of Kubernetes' data, and the identifiers of fields in expressions.
pub(crate) mod decl;
pub(crate) mod escape;
pub(crate) mod signature;
pub(crate) mod ty;
