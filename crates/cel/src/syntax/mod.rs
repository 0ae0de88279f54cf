//! From the text of an expression to its tree, with macros expanded.
pub(crate) mod expr;
mod macros;
mod parser;
pub(crate) mod source;
mod text;
mod token;

pub(crate) use macros::ACCU;
pub(crate) use parser::{Parsed, RESERVED, parse};
