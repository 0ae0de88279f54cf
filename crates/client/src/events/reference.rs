//! What an event is about, and how grave it is.
use serde::{Deserialize, Serialize};

use crate::Object;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something went as it should.
    Normal,
    /// Something to look at.
    Warning,
}

impl EventType {
    /// As `type` names it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// `v1.ObjectReference` of what an event is about.
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
    /// Its UID, so that a namesake's events are told apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The version of the object that was looked at.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Part of the object, e.g. `spec.containers{app}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

impl ObjectRef {
    /// A reference to a whole object.
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
    /// The same, of one part.
    pub fn at(mut self, field_path: impl Into<String>) -> Self {
        self.field_path = field_path.into();
        self
    }
}
