//! The object and the type of an event.
use serde::{Deserialize, Serialize};

use crate::Object;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// A normal event.
    Normal,
    /// A warning that may need attention.
    Warning,
}

impl EventType {
    /// Returns the value of `type`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// `v1.ObjectReference` of an event's object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Group and version of the object's kind.
    pub api_version: String,
    /// Kind of the object that the event is about.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects (their events go to `default`).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object that the event is about.
    pub name: String,
    /// UID of the object, which distinguishes it from other objects with the same name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The resourceVersion of the object when the event occurred.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Part of the object, e.g. `spec.containers{app}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

impl ObjectRef {
    /// Returns a reference to an object.
    pub fn of<T: Object>(object: &T) -> Self {
        Self {
            api_version: T::TYPE.api_version(),
            kind: T::TYPE.kind.to_owned(),
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            resource_version: object.resource_version().to_owned(),
            field_path: String::new(),
        }
    }
    /// Returns the reference with the path of a field.
    pub fn at(mut self, field_path: impl Into<String>) -> Self {
        self.field_path = field_path.into();
        self
    }
}
