//! Types of expressions, types of Kubernetes' data, and how names of fields are written in expressions.
pub(crate) mod decl;
pub(crate) mod escape;
pub(crate) mod signature;
pub(crate) mod ty;
