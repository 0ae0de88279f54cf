//! Custom resources. A definition (`CustomResourceDefinition`) is itself an API object. Each commit of one passes through
//! [`registrar::Definitions`], which completes its status before it is stored, and adds its kinds to the catalog before the client is
//! answered. Upstream: `apiextensions-apiserver`.
pub mod cleanup;
mod columns;
pub mod conditions;
pub mod convert;
pub mod definition;
pub mod forms;
pub mod kind;
pub mod names;
pub mod registrar;
pub mod schema;
pub mod status;
