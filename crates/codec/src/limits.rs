//! What documents may measure, whatever their encoding; how much memory and work they may take is said by `budget`.

/// Nesting allowed in any document; below the limit that `serde_json` has for reading a stored record again.
pub const NESTING_DEPTH_MAX: usize = 120;
/// Bytes of one request body, and of any YAML text; the limit of the published API server for resource bodies. Documents
/// that are no request (a list that a client reads) go through [`crate::json::decode`] and [`crate::proto::decode_as`], which bound
/// nothing but nesting ([`crate::Limits::TRUSTED`]); who calls them bounds what it reads.
pub const DOCUMENT_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Strict findings kept for one document.
pub const STRICT_ERRORS_MAX: usize = 100;
