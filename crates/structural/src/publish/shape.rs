//! A schema as those who merge and apply see it.
use std::sync::Arc;

use kelson_schema::shape::{DynamicShape, ScalarType};
use kelson_schema::{ListType, Shape};
use serde_json::Value;

use crate::schema::{Child, Flags, Node, Type};

/// The shape of a place. Places are shared, so that this costs nothing.
pub fn shape(node: &Arc<Node>) -> Shape {
    Shape::Dynamic(node.clone())
}

fn dynamic(child: &Child) -> Arc<dyn DynamicShape> {
    child.arc().clone()
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
    fn scalar(&self) -> Option<ScalarType> {
        match self.ty() {
            Type::Integer | Type::Number => Some(ScalarType::Numeric),
            Type::String => Some(ScalarType::Text),
            Type::Boolean => Some(ScalarType::Boolean),
            Type::None | Type::Object | Type::Array => None,
        }
    }
}
