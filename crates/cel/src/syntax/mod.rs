//! Parses the source of an expression to its tree, with macros expanded.
mod build;
pub(crate) mod expr;
mod literal;
mod macros;
mod operators;
mod parser;
pub(crate) mod source;
mod text;
mod token;

pub(crate) use macros::ACCU;
#[cfg(test)]
pub(crate) use parser::parse;
pub(crate) use parser::{Parsed, RESERVED, parse_with};
