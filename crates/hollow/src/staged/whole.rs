//! An object with all that it has, as text: there may be many, and few are looked at at a time.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of any kind.
#[derive(Debug, Default)]
pub struct Whole {
    /// The metadata of the object.
    pub metadata: ObjectMeta,
    /// All of it.
    text: Box<str>,
}

// Watched only at explicit paths.
slim_object!(Whole, ResourceType::cluster("", "v1", "", ""), whole);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(d)?;
        let metadata = ObjectMeta::deserialize(&object["metadata"]).map_err(serde::de::Error::custom)?;
        Ok(Self { metadata, text: object.to_string().into() })
    }
}

impl Whole {
    /// The object as a tree, with all that the server sent.
    pub fn object(&self) -> Value {
        // It was written by this type.
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}
