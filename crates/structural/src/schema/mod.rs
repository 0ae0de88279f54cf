//! A structural schema as a tree, which is parsed once, shared and never changed.
mod format;
mod node;
mod parse;
pub mod pattern;
mod table;

use std::sync::Arc;

use serde_json::{Value, json};

pub use format::Format;
pub use node::{Additional, Bound, Child, Flags, Name, Node, Rare, Rule, Type, Values};
pub use parse::SchemaError;

/// The schema of one version of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structural {
    declared: Arc<Node>,
    resource: Arc<Node>,
}

impl Structural {
    /// Reads the `openAPIV3Schema` of a version.
    ///
    /// # Errors
    /// A schema that structural schemas cannot express; a definition with such a schema is rejected when it is written.
    pub fn parse(schema: &Value) -> Result<Self, SchemaError> {
        let declared = parse::parse(schema)?;
        let resource = table::node(declared.as_embedded()).0;
        Ok(Self { declared, resource })
    }
    /// The root as in the definition.
    pub fn declared(&self) -> &Arc<Node> {
        &self.declared
    }
    /// The root with the fields of every object: `apiVersion`, `kind` and `metadata` need not be in the schema.
    pub fn resource(&self) -> &Arc<Node> {
        &self.resource
    }
    /// The memory of the schema in bytes, if it shared no nodes with others.
    pub fn bytes(&self) -> usize {
        self.declared.bytes()
    }
}

/// Reports whether an int-or-string has one of the forms that structural schemas allow: `anyOf` an integer and a
/// string, alone or as the first of `allOf`.
pub(crate) fn is_int_or_string_pattern(schema: &Value) -> bool {
    is_either(&schema["anyOf"]) || is_either(&schema["allOf"][0]["anyOf"])
}

pub(crate) fn is_either(any_of: &Value) -> bool {
    *any_of == json!([{"type": "integer"}, {"type": "string"}])
}
