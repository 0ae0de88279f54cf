//! Names and paths of cgroups: plain directories, or nested slices of systemd. Pure (upstream: `pkg/kubelet/cm/cgroup_manager_linux.go`).
use crate::config::cgroups::CgroupDriver;

const SUFFIX: &str = ".slice";

/// A cgroup, as the parts of its name from the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// Parses a value such as `cgroupRoot`: a path, or a slice for the systemd driver.
    pub fn parse(text: &str, driver: CgroupDriver) -> Self {
        let text = text.trim_matches('/');
        let parts: Vec<String> = match driver {
            CgroupDriver::Systemd if text.ends_with(SUFFIX) => {
                let last = text.rsplit('/').next().unwrap_or_default().trim_end_matches(SUFFIX);
                last.split('-').map(|part| part.replace('_', "-")).collect()
            }
            _ => text.split('/').map(str::to_owned).collect(),
        };
        Self(parts.into_iter().filter(|p| !p.is_empty()).collect())
    }

    /// Returns a child.
    #[must_use]
    pub fn join(&self, part: impl Into<String>) -> Self {
        Self(self.0.iter().cloned().chain([part.into()]).collect())
    }

    /// Returns the ancestors, from the root down.
    pub fn above(&self) -> Vec<Self> {
        (1..self.0.len()).map(|n| Self(self.0[..n].to_vec())).collect()
    }

    /// Returns the path relative to a controller's mount point, without a leading slash.
    pub fn path(&self, driver: CgroupDriver) -> String {
        match driver {
            CgroupDriver::Cgroupfs => self.0.join("/"),
            CgroupDriver::Systemd => {
                let slices: Vec<String> = (1..=self.0.len()).map(|n| slice(&self.0[..n])).collect();
                slices.join("/")
            }
        }
    }

    /// Returns the names of its slice and of the parent slice.
    pub fn slice(&self) -> (String, String) {
        let above = self.0.len().saturating_sub(1);
        (slice(&self.0), slice(&self.0[..above]))
    }
}

/// Returns the slice name, which includes all ancestors. Dashes separate the parts and are escaped within them.
fn slice(parts: &[String]) -> String {
    if parts.is_empty() {
        return format!("-{SUFFIX}");
    }
    let parts: Vec<String> = parts.iter().map(|p| p.replace('-', "_")).collect();
    parts.join("-") + SUFFIX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_names_match_runtimes_and_kubeadm() {
        for (root, parts, plain, slices) in [
            ("", &["kubepods"][..], "kubepods", "kubepods.slice"),
            ("/", &["kubepods", "burstable"], "kubepods/burstable", "kubepods.slice/kubepods-burstable.slice"),
            (
                "",
                &["kubepods", "besteffort", "pod1234-abcd-5678-efgh"],
                "kubepods/besteffort/pod1234-abcd-5678-efgh",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_abcd_5678_efgh.slice",
            ),
            ("", &["kubepods", "podu"], "kubepods/podu", "kubepods.slice/kubepods-podu.slice"),
            ("kelson-1a2b", &["kubepods"], "kelson-1a2b/kubepods", "kelson_1a2b.slice/kelson_1a2b-kubepods.slice"),
        ] {
            for (driver, wanted) in [(CgroupDriver::Cgroupfs, plain), (CgroupDriver::Systemd, slices)] {
                let name = parts.iter().fold(CgroupName::parse(root, driver), |name, part| name.join(*part));
                assert_eq!(name.path(driver), wanted);
            }
        }
    }

    #[test]
    fn slices_and_their_parents() {
        let driver = CgroupDriver::Systemd;
        let top = CgroupName::parse("", driver);
        assert_eq!(top.join("kubepods").slice(), ("kubepods.slice".to_owned(), "-.slice".to_owned()));
        let pod = top.join("kubepods").join("burstable").join("poda-b");
        assert_eq!(pod.slice(), ("kubepods-burstable-poda_b.slice".into(), "kubepods-burstable.slice".into()));
        // A slice as the root, by name or by path.
        for root in ["/node.slice/node-a_b.slice", "node-a_b.slice"] {
            let name = CgroupName::parse(root, driver);
            assert_eq!(name.path(driver), "node.slice/node-a_b.slice", "{root}");
            assert_eq!(name.path(CgroupDriver::Cgroupfs), "node/a-b");
        }
        assert_eq!(CgroupName::parse("/a/b.slice", CgroupDriver::Cgroupfs).path(CgroupDriver::Cgroupfs), "a/b.slice");
    }
}
