//! Errors of decoding and encoding, in the words that Kubernetes' clients know.
use std::fmt;

/// Why a document could not be decoded. The text is meant for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not JSON, a value of the wrong type, or a value its type does not accept.
    #[error("{0}")]
    Json(String),
    /// Not YAML, or YAML beyond the limits.
    #[error("{0}")]
    Yaml(String),
    /// Not a protobuf message of this type.
    #[error("{0}")]
    Proto(String),
    /// Nested deeper than [`crate::NESTING_DEPTH_MAX`].
    #[error("exceeded max depth")]
    TooDeep,
    /// Small as bytes, too large or too much work as a tree; see [`crate::Budget`].
    #[error("{0}")]
    OverBudget(crate::Exceeded),
    /// Longer than [`crate::DOCUMENT_BYTES_MAX`].
    #[error("document is larger than {} bytes", crate::DOCUMENT_BYTES_MAX)]
    TooLarge,
}

impl From<crate::Exceeded> for DecodeError {
    fn from(exceeded: crate::Exceeded) -> Self {
        match exceeded {
            crate::Exceeded::Depth => Self::TooDeep,
            other => Self::OverBudget(other),
        }
    }
}

/// Why a tree could not be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The type has no protobuf message (a Table, a custom resource).
    #[error("object does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message")]
    NoProtobuf,
    /// The tree does not fit its type; trees made by decoding always do.
    #[error("{path}: value does not fit type {expected}")]
    Mismatch {
        /// Name of the innermost field that holds the value.
        path: String,
        /// What the type wants.
        expected: &'static str,
    },
}

/// Unknown and duplicate fields of one document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StrictErrors(pub Vec<String>);

impl StrictErrors {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `strict decoding error: unknown field "spec.foo", duplicate field "spec.bar"`.
impl fmt::Display for StrictErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "strict decoding error: {}", self.0.join(", "))
    }
}
