//! Custom resources: kinds that users define while the server runs. A definition (`CustomResourceDefinition`) is itself an
//! object of the API; every commit of one passes through [`registrar::Definitions`], which completes its status before it is
//! stored and has its kinds in the catalog before the writer is answered. Upstream: `apiextensions-apiserver`.
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
