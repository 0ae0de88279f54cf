//! The size limits of documents in all encodings. `budget` has the limits for memory and work.

/// The nesting depth allowed in any document. It is below the limit of `serde_json`, which reads stored records.
pub const NESTING_DEPTH_MAX: usize = 120;
/// The size limit of one request body and of any YAML document, in bytes. It is Kubernetes' limit for the bodies of
/// resources. Other documents, such as a list that a client reads, go through [`crate::json::decode`] and
/// [`crate::proto::decode_as`], which bound only the nesting ([`crate::Limits::TRUSTED`]); their callers bound what
/// they read.
pub const DOCUMENT_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The most strict findings that are kept for one document.
pub const STRICT_ERRORS_MAX: usize = 100;
