//! Tables of what schemas do to objects.
mod columns;
mod definition;
mod definition_schema;
mod fit;
mod publish;
mod rules;
mod validate;

use crate::Structural;
use serde_json::Value;

/// The schema of a tree that must be one.
fn schema(tree: Value) -> Structural {
    Structural::parse(&tree).unwrap()
}
