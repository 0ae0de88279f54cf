//! The versions of OpenAPI.

/// A version of OpenAPI. They differ in references and nullability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenApiVersion {
    V2,
    V3,
}
