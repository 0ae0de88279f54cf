//! `util/intstr` IntOrString.
use serde::Deserialize;

/// A number, or text: a percentage such as `25%`, or the name of a container's port, as its field says.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number.
    Int(i32),
    /// Text.
    Text(String),
}
