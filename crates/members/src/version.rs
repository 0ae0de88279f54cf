//! Releases of etcd: which can be a managed member, and in which steps a cluster is upgraded. Pure.

use std::fmt;

/// A release of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version, 3.
    pub major: u32,
    /// The minor version. All members of a cluster have the same one, or two adjacent ones during an upgrade.
    pub minor: u32,
    /// The patch release.
    pub patch: u32,
}

/// The first release whose progress notifications consistent reads can rely on.
pub const OLDEST: Version = Version { major: 3, minor: 5, patch: 13 };
/// The last minor version that this release of Kelson was tested with.
const NEWEST_MINOR: u32 = 7;

/// The reason why a release cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// It lacks what consistent reads need.
    #[error("etcd {0} is too old: {OLDEST} or newer is needed, at most 3.{NEWEST_MINOR}")]
    TooOld(Version),
    /// It is newer than this release of Kelson knows.
    #[error("etcd {0} is too new: this release of Kelson supports {OLDEST} to 3.{NEWEST_MINOR}")]
    TooNew(Version),
    /// Etcd upgrades one minor version at a time.
    #[error(
        "etcd {found} skips a minor version: the cluster runs 3.{cluster}, and etcd upgrades one minor version at a time; \
         install etcd 3.{next} on every server first", next = cluster + 1
    )]
    SkipsMinor {
        /// The release that was found.
        found: Version,
        /// The minor version of the cluster.
        cluster: u32,
    },
    /// Etcd does not run on the data of a newer minor version.
    #[error("etcd {found} is older than the cluster, which runs 3.{cluster}; install etcd 3.{cluster}")]
    OlderThanCluster {
        /// The release that was found.
        found: Version,
        /// The minor version of the cluster.
        cluster: u32,
    },
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Parses `3.5.30`, with or without a suffix such as `-rc.1`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').split(['.', '-', '+', '~']);
        let mut next = || parts.next()?.parse().ok();
        Some(Self { major: next()?, minor: next()?, patch: next()? })
    }

    /// Parses the output of `etcd --version`, whose first line is `etcd Version: VERSION`.
    pub fn of_output(output: &str) -> Option<Self> {
        Self::parse(output.lines().find_map(|line| line.strip_prefix("etcd Version:"))?)
    }

    /// Reports whether a managed member can run this release.
    ///
    /// # Errors
    /// It is older or newer than what is supported.
    pub fn check(self) -> Result<(), VersionError> {
        match self {
            _ if self < OLDEST => Err(VersionError::TooOld(self)),
            Self { major: 3, minor: ..=NEWEST_MINOR, .. } => Ok(()),
            _ => Err(VersionError::TooNew(self)),
        }
    }

    /// Reports whether this release can run in a cluster of the minor version `3.cluster`.
    ///
    /// # Errors
    /// It would skip a minor version, or it is older than the cluster.
    pub fn check_step(self, cluster: u32) -> Result<(), VersionError> {
        match self.minor {
            minor if minor > cluster + 1 => Err(VersionError::SkipsMinor { found: self, cluster }),
            minor if minor < cluster => Err(VersionError::OlderThanCluster { found: self, cluster }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn releases_that_can_be_members() {
        for (text, accepted) in [
            ("3.4.23", false),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.5.30", true),
            ("3.6.0-rc.1", true),
            ("3.7.9", true),
            ("3.8.0", false),
            ("4.0.0", false),
        ] {
            assert_eq!(version(text).check().is_ok(), accepted, "{text}");
        }
        let rejected = version("3.4.23").check().unwrap_err().to_string();
        assert_eq!(rejected, "etcd 3.4.23 is too old: 3.5.13 or newer is needed, at most 3.7");
    }

    #[test]
    fn a_cluster_is_upgraded_one_minor_version_at_a_time() {
        for (found, cluster, accepted) in
            [("3.5.30", 5, true), ("3.6.1", 5, true), ("3.7.0", 5, false), ("3.7.0", 6, true), ("3.5.30", 6, false)]
        {
            assert_eq!(version(found).check_step(cluster).is_ok(), accepted, "{found} in 3.{cluster}");
        }
        let rejected = version("3.7.0").check_step(5).unwrap_err().to_string();
        assert!(rejected.contains("install etcd 3.6 on every server first"), "{rejected}");
    }

    #[test]
    fn the_version_is_in_the_first_line() {
        assert_eq!(
            Version::of_output("etcd Version: 3.5.30\nGit SHA: x\nGo Version: go1.26\n"),
            Some(version("3.5.30"))
        );
        for other in ["", "etcd 3.5", "etcd Version: next", "containerd 1.6.20"] {
            assert_eq!(Version::of_output(other), None, "{other}");
        }
    }
}
