//! Draft: a new object on its way to the store. Its `managedFields` may stand beside it as the JSON that is stored: they are half of
//! many an object, hardly a step looks at them, and so they need not become a tree.
use serde_json::Value;

/// An object that is to be stored.
#[derive(Clone, Default)]
pub struct Draft {
    pub value: Value,
    /// `metadata.managedFields` where they are not in the object.
    pub managed_fields: Option<String>,
}

/// All of it is in the tree.
impl From<Value> for Draft {
    fn from(value: Value) -> Self {
        Self { value, managed_fields: None }
    }
}
