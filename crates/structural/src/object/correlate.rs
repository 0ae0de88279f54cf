//! Finds the part of the old object that corresponds to a part of the new one (upstream `apiserver/pkg/cel/common`):
//! fields and map entries by their key, elements of lists of type map by their keys. Elements of other lists have no
//! counterpart.
use std::collections::HashMap;

use kelson_schema::ListType;
use serde_json::{Map, Value};

use crate::schema::Node;

/// The value of the old object that corresponds to one of the new object, with the schema of both.
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    /// The old value.
    pub value: &'a Value,
    /// The schema that defines how lists are matched.
    pub node: &'a Node,
}

impl<'a> Old<'a> {
    /// Returns the old value of a field or map entry.
    pub fn key(self, key: &str) -> Option<Self> {
        let node = self.node.field(key)?;
        Some(Self { value: self.value.as_object()?.get(key)?, node })
    }
    /// Returns the old elements of a list, for lookups by new ones. Returns `None` if elements are not matched.
    pub fn elements(self) -> Option<Elements<'a>> {
        if self.node.list_type() != Some(ListType::Map) {
            return None;
        }
        let node = self.node.items()?;
        let by_key = MapList::of(self.node, self.value.as_array()?);
        Some(Elements { node, by_key })
    }
    /// Reports whether a new value is equal. The order of elements with keys does not matter. Parts that the schema
    /// does not describe are never equal.
    pub fn equals(self, new: &Value) -> bool {
        match (self.value, new) {
            (Value::Object(old), Value::Object(fields)) => {
                old.len() == fields.len()
                    && fields.iter().all(|(key, value)| self.key(key).is_some_and(|old| old.equals(value)))
            }
            (Value::Array(old), Value::Array(list)) => {
                old.len() == list.len()
                    && match self.elements() {
                        None => old == list,
                        Some(elements) => {
                            list.iter().all(|element| elements.get(element).is_some_and(|old| old.equals(element)))
                        }
                    }
            }
            (old, new) => old == new,
        }
    }
}

/// The elements of an old list of type map.
pub struct Elements<'a> {
    node: &'a Node,
    by_key: MapList<'a>,
}

impl<'a> Elements<'a> {
    /// Returns the old element with the keys of a new one.
    pub fn get(&self, new: &Value) -> Option<Old<'a>> {
        let value = self.by_key.get(new)?;
        Some(Old { value, node: self.node })
    }
}

/// A list of type map, by its keys.
pub struct MapList<'a> {
    node: &'a Node,
    elements: HashMap<Vec<&'a Value>, &'a Value>,
}

impl<'a> MapList<'a> {
    /// Indexes the elements of a list at this node. The first of several elements with equal keys counts.
    pub fn of(node: &'a Node, list: &'a [Value]) -> Self {
        let mut elements = HashMap::with_capacity(list.len());
        for element in list {
            if let Some(keys) = element.as_object().and_then(|e| keys_of(node, e)) {
                elements.entry(keys).or_insert(element);
            }
        }
        Self { node, elements }
    }
    /// Returns the element with the same keys as this one.
    pub fn get(&self, like: &Value) -> Option<&'a Value> {
        let keys = keys_of(self.node, like.as_object()?)?;
        self.elements.get(keys.as_slice()).copied()
    }
}

/// Returns the values of an element's keys. Returns `None` if one is absent or not a scalar.
fn keys_of<'v>(node: &Node, element: &'v Map<String, Value>) -> Option<Vec<&'v Value>> {
    let scalar = |v: &&Value| matches!(v, Value::Bool(_) | Value::Number(_) | Value::String(_));
    node.map_keys().iter().map(|key| element.get(key.as_ref()).filter(scalar)).collect()
}
