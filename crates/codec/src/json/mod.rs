//! JSON: one pass from bytes to the canonical tree, checked against the schema as it goes.
//! `lexer` knows the grammar, `decode` the types; `write` is the way back,
//! `declared` the one that answers take, `indent` what people read of them.
mod declared;
pub(crate) mod decode;
mod indent;
mod lexer;
mod write;

pub use declared::{declared_json, write_declared, write_declared_with};
pub(crate) use decode::{canonical_float, document};
pub use decode::{decode, decode_within, peek};
pub use indent::{Indenter, indent};
pub use write::{write, write_text};
