//! The Common Expression Language (CEL) as Kubernetes 1.36 uses it: parsing, checking against declared types, the estimated and the
//! actual cost of an expression, evaluation directly on JSON, and the libraries of Kubernetes' environment. This crate uses no sockets,
//! no clock and no async code; the authorizer that an expression may call is a trait.
//!
//! An [`Env`] declares variables, [`Env::compile`] makes a [`Program`], and [`Program::eval`] evaluates it with an [`Activation`]
//! within a [`Budget`].
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `syntax/` | the parser, and macros |
//! | `types/` | types of expressions and of data |
//! | `value/` | values of an evaluation; JSON is not copied |
//! | `library/`, `re2/`, `cost/`, `check/` | one file for each library, where a row has signature, implementation and price; the price rules, before and during evaluation; the checker |
//! | `eval/` | nodes, budget, programs |
//! | `env` | the interface of the crate |
//! | `admission`, `device` | variables of the environments of admission and of device selectors |
//!
//! A function is one row. Its cost is part of the API, and only `cost/` decides it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admission;
mod check;
mod cost;
pub mod device;
mod env;
mod eval;
mod library;
pub mod re2;
mod syntax;
mod types;
mod value;

pub use cost::range::Range as CostRange;
pub use env::{CompileError, Env, EnvBuilder, authorizer_type, request_resource_type};
pub use eval::activation::{Activation, Bound, NamedPrograms, Values};
pub use eval::budget::{Budget, MATCH_CONDITIONS_BUDGET, PER_CALL_LIMIT, REQUEST_BUDGET};
pub use eval::program::Program;
pub use syntax::source::Issue;
pub use types::decl::{DeclField, DeclKind, DeclType, Format, ListKind, MAX_REQUEST_BYTES, UNBOUNDED};
pub use types::escape::{escape, unescape};
pub use types::ty::Type;
pub use value::error::EvalError;
pub use value::opaque::{AccessRequest, Authorizer, Decision, Opaque};
pub use value::time::Timestamp;
pub use value::{List, Map, Struct, Text, Value};

#[cfg(test)]
mod tests;
