//! How long built-in kinds are there: in which minor version of Kubernetes 1 they came, are deprecated, and go.
use crate::generated::lifecycles::LIFECYCLES;

/// The published lifecycle of a kind that is or was served for a limited number of releases.
#[derive(Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version, such as `v1beta1`.
    pub version: &'static str,
    /// The kind that lives so.
    pub kind: &'static str,
    /// The minor version in which it came; 0 where nothing is said.
    pub introduced: u16,
    /// The one since which it is deprecated; 0 where it is not.
    pub deprecated: u16,
    /// The one that does not serve it any more; 0 where it stays.
    pub removed: u16,
    /// The replacement as `GROUP/VERSION KIND`; empty where none is named.
    pub instead: &'static str,
}

/// The lifecycle of a kind, if one is published.
pub fn lifecycle(group: &str, version: &str, kind: &str) -> Option<&'static Lifecycle> {
    let key = |row: &Lifecycle| (row.group, row.version, row.kind);
    let at = LIFECYCLES.binary_search_by(|row| key(row).cmp(&(group, version, kind))).ok()?;
    LIFECYCLES.get(at)
}

/// Whether a version of a group is or was there, by the lifecycles that are published.
pub fn is_known_version(group: &str, version: &str) -> bool {
    LIFECYCLES.iter().any(|row| (row.group, row.version) == (group, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found() {
        for row in LIFECYCLES {
            assert_eq!(lifecycle(row.group, row.version, row.kind), Some(row));
        }
        assert_eq!(lifecycle("", "v1", "Nothing"), None);
        let life = lifecycle("storage.k8s.io", "v1beta1", "VolumeAttributesClass").expect("a beta has one");
        assert_eq!((life.introduced, life.instead), (31, "storage.k8s.io/v1 VolumeAttributesClass"));
    }
}
