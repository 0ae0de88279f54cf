//! The first entry of a bundle, which says what the others are.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::BundleError;

/// The name of the first entry.
pub const MANIFEST: &str = "bundle.json";
/// The format of bundles that this release writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
/// The largest manifest in bytes.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// The contents of a bundle, its time, and the release that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The format of the bundle, [`FORMAT`].
    pub format: u32,
    /// The release of Kelson that wrote it.
    pub kelson_version: String,
    /// The release of Kubernetes that it served.
    pub kubernetes_version: String,
    /// When it was written.
    pub created: Timestamp,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
    /// The objects; absent in a bundle of keys only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSummary>,
}

/// The objects of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreSummary {
    /// The revision of the snapshot.
    pub revision: u64,
    /// The number of objects.
    pub objects: usize,
    /// The number of kinds.
    pub kinds: usize,
    /// The number of objects that are encrypted at rest.
    pub encrypted: usize,
}

impl Manifest {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, BundleError> {
        #[derive(Deserialize)]
        struct Formatted {
            format: u32,
        }
        let invalid = |e: serde_json::Error| BundleError::Malformed(format!("{MANIFEST}: {e}"));
        let Formatted { format } = serde_json::from_slice(text).map_err(invalid)?;
        if format > FORMAT {
            return Err(BundleError::Format { found: format, known: FORMAT });
        }
        serde_json::from_slice(text).map_err(invalid)
    }
}
