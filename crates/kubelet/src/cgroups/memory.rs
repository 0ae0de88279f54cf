//! Memory settings of a container besides its limit, on cgroup v2: whether the OOM killer ends all processes, protected memory, and
//! throttling (KEP-2570; upstream: `kuberuntime_container_linux.go`).
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_cri::proto as cri;

use super::bounds::{MEMORY_LOW, MEMORY_MIN};
use super::tree::Tree;
use crate::config::cgroups::{MemoryConfig, MemoryQos};
use crate::pod;

/// File of the amount above which the cgroup is throttled.
const MEMORY_HIGH: &str = "memory.high";
/// File that says whether the OOM killer ends all processes of the cgroup.
const OOM_GROUP: &str = "memory.oom.group";

/// Memory rules for the containers of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryRules {
    /// Whether the OOM killer ends all processes of a container.
    pub kills_group: bool,
    /// Memory protection and throttling; `None` disables both.
    pub qos: Option<MemoryQos>,
    /// Memory in bytes that all pods may use, which replaces the limit of a container without one; 0 if unknown.
    pub allocatable: i64,
    /// Page size in bytes.
    pub page: i64,
}

impl MemoryRules {
    /// Detects the rules for this machine, whose cgroups are mounted at `mount`.
    ///
    /// # Errors
    /// The configuration requires cgroup v2 but the machine has v1.
    pub fn detect(mount: &Path, config: MemoryConfig, allocatable: i64) -> Result<Self, String> {
        let is_unified = Tree::detect(mount).is_ok_and(|tree| tree.is_unified());
        if !is_unified && config.kills_one == Some(false) {
            return Err("singleProcessOOMKill must not be explicitly set to false when using cgroup v1".to_owned());
        }
        let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
        if !is_unified {
            return Ok(Self { allocatable, page, ..Self::default() });
        }
        Ok(Self { kills_group: config.kills_one != Some(true), qos: config.qos, allocatable, page })
    }

    /// Adds the settings to the container's resources for the runtime.
    pub fn bind(&self, pod: &Pod, c: &Container, resources: &mut cri::LinuxContainerResources) {
        let mut say = |name: &str, value: i64| drop(resources.unified.insert(name.to_owned(), value.to_string()));
        if self.kills_group {
            say(OOM_GROUP, 1);
        }
        let Some(qos) = self.qos else { return };
        let asked = pod::request(c, "memory").map_or(0, |q| q.value());
        let limit = pod::limit(c, "memory").map_or(0, |q| q.value());
        match (asked != 0 && qos.is_tiered, pod::qos_class(pod)) {
            (true, "Guaranteed") => say(MEMORY_MIN, asked),
            (true, _) => say(MEMORY_LOW, asked),
            (false, _) => {
                say(MEMORY_MIN, 0);
                say(MEMORY_LOW, 0);
            }
        }
        let most = if limit == 0 { self.allocatable } else { limit };
        if asked != limit && most > 0 {
            let high = (asked as f64 + (most as f64 - asked as f64) * qos.throttling).floor() as i64;
            let high = high / self.page * self.page;
            if high > asked {
                say(MEMORY_HIGH, high);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: i64 = 1 << 20;

    fn applied(rules: MemoryRules, resources: &Value) -> Vec<String> {
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        let mut out = cri::LinuxContainerResources::default();
        rules.bind(&pod, &pod.spec.as_ref().expect("spec").containers[0], &mut out);
        out.unified.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn the_oom_killer_ends_all_processes_on_cgroup_v2_by_default() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").expect("write");
        let rules = |kills_one| {
            let config = MemoryConfig { kills_one, ..MemoryConfig::default() };
            MemoryRules::detect(dir.path(), config, 0)
        };
        for (said, expected) in
            [(None, &["memory.oom.group=1"][..]), (Some(false), &["memory.oom.group=1"]), (Some(true), &[])]
        {
            assert_eq!(applied(rules(said).expect("unified"), &json!({})), expected, "{said:?}");
        }
        std::fs::create_dir(dir.path().join("memory")).expect("mkdir");
        std::fs::write(dir.path().join("memory/tasks"), "").expect("write");
        assert_eq!(applied(rules(None).expect("split"), &json!({})), Vec::<String>::new());
        assert!(rules(Some(true)).is_ok());
        assert!(rules(Some(false)).expect_err("split").contains("when using cgroup v1"));
    }

    #[test]
    fn memory_qos_requires_cgroup_v2() {
        let dir = tempfile::tempdir().expect("tempdir");
        let qos = Some(MemoryQos { throttling: 0.9, is_tiered: true });
        let config = MemoryConfig { qos, ..MemoryConfig::default() };
        assert_eq!(MemoryRules::detect(dir.path(), config, 7).expect("nothing is mounted").qos, None);
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").expect("write");
        let rules = MemoryRules::detect(dir.path(), config, 7).expect("unified");
        assert!(rules.qos == qos && rules.allocatable == 7 && rules.page >= 4096);
    }

    #[test]
    fn memory_protection_and_throttling() {
        let tiered = MemoryRules {
            kills_group: false,
            qos: Some(MemoryQos { throttling: 0.9, is_tiered: true }),
            allocatable: 1000 * MIB,
            page: 4096,
        };
        let plain = MemoryRules { qos: Some(MemoryQos { throttling: 0.5, is_tiered: false }), ..tiered };
        let guaranteed = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
        let burstable = json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}});
        let open = json!({"requests": {"memory": "100Mi"}});
        for (rules, resources, wanted) in [
            (tiered, &guaranteed, "memory.min=67108864".to_owned()),
            // 190 MiB, which is a whole number of pages.
            (tiered, &burstable, format!("memory.high={} memory.low=104857600", 190 * MIB)),
            (tiered, &open, format!("memory.high={} memory.low=104857600", 910 * MIB)),
            (tiered, &json!({}), "memory.low=0 memory.min=0".to_owned()),
            (plain, &guaranteed, "memory.low=0 memory.min=0".to_owned()),
            (plain, &burstable, format!("memory.high={} memory.low=0 memory.min=0", 150 * MIB)),
            // Rounded down to 100 pages from 100.5.
            (
                plain,
                &json!({"requests": {"memory": "4096"}, "limits": {"memory": "819200"}}),
                "memory.high=409600 memory.low=0 memory.min=0".to_owned(),
            ),
            (MemoryRules { allocatable: 0, ..plain }, &open, "memory.low=0 memory.min=0".to_owned()),
        ] {
            assert_eq!(applied(rules, resources).join(" "), wanted, "{resources}");
        }
    }
}
