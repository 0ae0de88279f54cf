//! JSON: one pass from bytes to the canonical tree, checked against the schema as it goes.
//! `lexer` knows the grammar, `decode` the types.
pub(crate) mod decode;
mod lexer;

pub use decode::{decode, decode_within, peek};
