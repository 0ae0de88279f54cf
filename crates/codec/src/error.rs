//! The errors of decoding and encoding, with the messages of Kubernetes.
use std::fmt;

/// Why a document could not be decoded. The message is for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The document is not JSON, has a value of the wrong type, or has a value that its type does not accept.
    #[error("{0}")]
    Json(String),
    /// The document is not YAML, or exceeds the limits for YAML.
    #[error("{0}")]
    Yaml(String),
    /// The document is not a protobuf message of this type.
    #[error("{0}")]
    Proto(String),
    /// The document is nested deeper than [`crate::NESTING_DEPTH_MAX`].
    #[error("exceeded max depth")]
    TooDeep,
    /// The document is small, but its tree is too large or takes too much work; see [`crate::Budget`].
    #[error("{0}")]
    OverBudget(crate::Exceeded),
    /// The document is longer than [`crate::DOCUMENT_BYTES_MAX`].
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
    /// The type has no protobuf message. Examples are Table and custom resources.
    #[error("object does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message")]
    NoProtobuf,
    /// The tree does not fit its type. Decoding never produces such a tree.
    #[error("{path}: value does not fit type {expected}")]
    Mismatch {
        /// The name of the innermost field that contains the value.
        path: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The text of a stored object is not JSON.
    #[error("cannot read the stored object: {0}")]
    Stored(DecodeError),
}

/// Unknown and duplicate fields of one document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StrictErrors(pub Vec<String>);

impl StrictErrors {
    /// Reports whether there are no findings.
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
