//! The two forms of OpenAPI that documents are published in.

/// Which form of OpenAPI is written; they differ in references and nullability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenApiVersion {
    V2,
    V3,
}
