//! Tests of the crate from outside: a model of the rules without a kernel, and the kernel itself.
#![allow(clippy::unwrap_used)]

mod interpreter;
mod kernel;
mod model;
