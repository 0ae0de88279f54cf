//! Kelson patch: JSON patch, merge patch, strategic merge patch and server-side apply. All of them work by the schema
//! (`kelson_schema::Shape`); this crate knows no kind, store or HTTP. The result of a patch is a tree that the caller
//! decodes, defaults and validates like any other.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `index` | lookups in lists |
//! | `json_patch`, `merge_patch`, `strategic`, `apply/` | one kind of patch each |
//!
//! In `apply/`: sets of fields, the walk through a document, comparison and merge, managed entries, then `changes`,
//! `conflict` and `manager`. `added` is a shortcut for creates. `across` handles entries of other versions, which the
//! caller converts. `scale` converts entries for the `scale` subresource. Nothing in this crate sets defaults,
//! validates or stores.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod apply;
mod index;
mod json_patch;
#[cfg(test)]
mod json_patch_tests;
mod merge_patch;
mod printed;
mod strategic;

pub use apply::{ApplyError, Conflict, FieldManager, FieldSet, PathElement};
pub use json_patch::{JSON_PATCH_OPERATIONS_MAX, json_patch, json_patch_within};
pub use merge_patch::merge_patch;
pub use printed::printed;
pub use strategic::{strategic_merge_patch, strategic_merge_patch_within};

/// The kinds of patches, by media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    /// JSON patch, `application/json-patch+json`.
    Json,
    /// Merge patch, `application/merge-patch+json`.
    Merge,
    /// Strategic merge patch, `application/strategic-merge-patch+json`.
    StrategicMerge,
    /// Server-side apply, `application/apply-patch+yaml`.
    Apply,
}

impl PatchType {
    /// Returns the patch type of a `Content-Type`. Parameters are ignored.
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::StrategicMerge),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }

    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::StrategicMerge => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// Why a patch was rejected. Each variant names the HTTP response of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// 400 BadRequest: the patch itself is malformed.
    #[error("{0}")]
    BadRequest(String),
    /// 422 with only a message: the patch does not apply to this object.
    #[error("{0}")]
    Unprocessable(String),
    /// 500 with only a message: a strategic merge patch, or the object, has an unexpected form.
    #[error("{0}")]
    Internal(String),
    /// 413 RequestEntityTooLarge: the patch has too many operations, or exceeds the memory or work limits of a
    /// [`kelson_codec::Budget`].
    #[error("{0}")]
    TooLarge(String),
}

impl From<kelson_codec::Exceeded> for PatchError {
    fn from(exceeded: kelson_codec::Exceeded) -> Self {
        match exceeded {
            kelson_codec::Exceeded::Depth => Self::BadRequest(exceeded.to_string()),
            _ => Self::TooLarge(exceeded.to_string()),
        }
    }
}
