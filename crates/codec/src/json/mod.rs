//! JSON: bytes are decoded to the canonical tree in one pass that checks them against the schema. `lexer` implements the grammar and
//! `decode` the types. `write` encodes a tree, `declared` encodes it for responses, and `indent` formats those for people.
mod declared;
pub(crate) mod decode;
mod indent;
mod lexer;
pub(crate) mod tape;
mod words;
mod write;

pub use declared::{declared_json, write_declared, write_declared_with};
pub(crate) use decode::{canonical_float, document};
pub use decode::{decode, decode_within, peek};
pub use indent::{Indenter, indent};
pub use words::unescaped;
pub use write::{write, write_text};
