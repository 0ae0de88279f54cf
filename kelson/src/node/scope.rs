//! Kelson's containerd in a scope of systemd: the end of the unit that Kelson runs in does not end containers then, whatever the unit says.
use std::error::Error;

use async_trait::async_trait;
use kelson_check::Host;
use kelson_cri::containerd::ProcessScope;
use kelson_kubelet::systemd::bus::Bus;
use kelson_kubelet::systemd::units::Slices;

/// Creates scopes for the containerd of one data directory.
#[derive(Debug)]
pub struct RuntimeScope {
    slices: Slices,
    id: String,
}

impl RuntimeScope {
    /// Finds the scope for the node with this network ID. Returns `None` if systemd does not manage this process. In a
    /// container the bus may be the host's, whose systemd knows other process IDs: there process 1 is another program.
    pub fn find(host: &Host, id: &str) -> Option<Self> {
        let is_managed = host.has("/run/systemd/system") && host.text("/proc/1/comm").trim() == "systemd";
        is_managed.then(|| Self { slices: Slices::new(&Bus::system()), id: id.to_owned() })
    }
}

#[async_trait]
impl ProcessScope for RuntimeScope {
    async fn enter(&self, pid: i32) -> Result<(), Box<dyn Error + Send + Sync>> {
        // The process ID is in the name because shims of an earlier containerd keep its scope.
        let name = format!("kelson-{}-containerd-{pid}.scope", self.id);
        let description = format!("Container runtime of Kelson node {}", self.id);
        Ok(self.slices.scope(&name, &description, u32::try_from(pid)?).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_made_only_by_the_systemd_of_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::fake(dir.path(), &[]);
        let is_found = || RuntimeScope::find(&host, "1a2b3c4d").is_some();
        assert!(!is_found(), "another service manager");
        std::fs::create_dir_all(dir.path().join("run/systemd/system")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc/1")).unwrap();
        std::fs::write(dir.path().join("proc/1/comm"), "kelson\n").unwrap();
        assert!(!is_found(), "a container with the host's /run");
        std::fs::write(dir.path().join("proc/1/comm"), "systemd\n").unwrap();
        assert!(is_found());
    }
}
