//! Draft: a new object on its way to the store. Its `managedFields` may be separate, as the JSON that is stored. They are often half of
//! the object and few steps read them, so that decoding them into a tree is avoided.
use serde_json::Value;

/// An object to be stored.
#[derive(Clone, Default)]
pub struct Draft {
    pub value: Value,
    /// The JSON of `metadata.managedFields`, if they are not in `value`.
    pub managed_fields: Option<String>,
}

/// A draft whose tree contains all fields.
impl From<Value> for Draft {
    fn from(value: Value) -> Self {
        Self { value, managed_fields: None }
    }
}
