//! The shape of a schema for merge and apply.
use std::sync::Arc;

use kelson_schema::shape::{DynamicShape, ScalarType, ValueForm};
use kelson_schema::{ListType, Shape};
use serde_json::Value;

use crate::schema::{Child, Flags, Node, Type};

/// Returns the shape of a node. Nodes are shared, so this does not copy.
pub fn shape(node: &Arc<Node>) -> Shape {
    Shape::Dynamic(node.clone())
}

fn dynamic(child: &Child) -> Arc<dyn DynamicShape> {
    child.arc().clone()
}

fn has_other_format(node: &Node) -> bool {
    let format = node.values().and_then(|values| values.format.as_ref());
    format.is_some_and(|(_, name)| &**name != "byte")
}

impl DynamicShape for Node {
    fn child(&self, key: &str) -> Option<Arc<dyn DynamicShape>> {
        self.field(key).map(dynamic)
    }
    fn declares(&self, key: &str) -> bool {
        self.property(key).is_some()
    }
    fn is_closed(&self) -> bool {
        Node::is_closed(self)
    }
    fn element(&self) -> Option<Arc<dyn DynamicShape>> {
        self.items().map(dynamic)
    }
    fn list_type(&self) -> Option<ListType> {
        Node::list_type(self)
    }
    fn map_keys(&self) -> Vec<String> {
        Node::map_keys(self).iter().map(ToString::to_string).collect()
    }
    fn is_atomic(&self) -> bool {
        self.is(Flags::ATOMIC)
    }
    fn default_value(&self) -> Option<Value> {
        Node::default_value(self).cloned()
    }
    fn is_embedded(&self) -> bool {
        self.is(Flags::EMBEDDED)
    }
    fn form(&self) -> ValueForm {
        match self.ty() {
            Type::Object => ValueForm::Map,
            Type::Array => ValueForm::List,
            Type::Integer | Type::Number => ValueForm::Scalar(ScalarType::Numeric),
            // Upstream's converter accepts a value of any type for a string with another format.
            Type::String if has_other_format(self) => ValueForm::AnyScalar,
            Type::String => ValueForm::Scalar(ScalarType::Text),
            Type::Boolean => ValueForm::Scalar(ScalarType::Boolean),
            Type::None if self.is(Flags::INT_OR_STRING) => ValueForm::AnyScalar,
            Type::None => ValueForm::Any,
        }
    }
}
