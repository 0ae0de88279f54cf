//! Reports containers that the runtime put outside of their pods' cgroups.
use std::path::Path;

use kelson_client::EventType;
use kelson_tasks::FILES;

use super::execute::Executor;
use crate::cgroups::location::ForeignCgroup;
use crate::config::cgroups::CgroupDriver;
use crate::pod;

/// Reason of the events about the pod and the node.
const REASON: &str = "ContainerOutsidePodCgroup";

impl Executor {
    /// Checks the location of a container that has just started, until one of its RuntimeClass was found in the right cgroup.
    pub(super) async fn check_location(&self, container: &str, id: &str) {
        let (parts, uid) = (&self.parts, pod::uid(&self.pod).to_owned());
        let class = pod::runtime_class(&self.pod).to_owned();
        if !parts.cgroups.is_unchecked(&class) {
            return;
        }
        // A runtime that reports no process is not checked.
        let Ok(status) = parts.effects.runtime.container_status(id, true).await else { return };
        let Some(pid) = status.info.get("info").and_then(|info| process_id(info)) else { return };
        let cgroups = parts.cgroups.clone();
        let check = move || cgroups.check_location(Path::new("/proc"), (&class, &uid, pid));
        let Ok(Some(ForeignCgroup { found, expected })) = FILES.run(check).await else { return };
        let message = format!(
            "Container {container} runs in the cgroup {found}, which is not below the pod's {expected}: limits of the pod and its QoS class \
             have no effect. Set the runtime's cgroup driver (SystemdCgroup, cgroup_manager) to the kubelet's: {}",
            parts.cgroups.driver().map(CgroupDriver::name).unwrap_or_default()
        );
        tracing::error!(pod = %pod::format_pod(&self.pod), "{message}");
        parts.effects.events.pod(&self.pod, EventType::Warning, REASON, message.clone());
        parts.effects.events.node(EventType::Warning, REASON, message);
    }
}

/// Returns the process ID in a container's verbose information, in which containerd and CRI-O have it under the same name.
fn process_id(info: &str) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_container_is_in_its_verbose_information() {
        assert_eq!(process_id(r#"{"sandboxID": "s", "pid": 4711, "runtimeSpec": {}}"#), Some(4711));
        for info in [r#"{"pid": 0}"#, r#"{"pid": "7"}"#, "{}", "not JSON", r#"{"pid": 4294967296}"#] {
            assert_eq!(process_id(info), None, "{info}");
        }
    }
}
