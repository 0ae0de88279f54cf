//! Swap limits of containers (KEP-2400; upstream: `kuberuntime_container_linux.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_cri::proto as cri;

use crate::config::cgroups::SwapBehavior;
use crate::pod;

/// File of the swap limit on cgroup v2.
const SWAP_MAX: &str = "memory.swap.max";

/// The kernel's interface for swap limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapControl {
    /// It has no swap limits.
    #[default]
    Absent,
    /// One limit for the sum of memory and swap (v1).
    WithMemory,
    /// A separate limit for swap (v2).
    Apart,
}

impl SwapControl {
    /// Detects the machine's control from the hierarchy at `mount`. `own` is the content of `/proc/self/cgroup`: the root of a v2 hierarchy
    /// has no limits, so this process's cgroup is checked.
    pub fn detect(mount: &Path, own: &str) -> Self {
        if mount.join("memory/memory.memsw.limit_in_bytes").exists() {
            return Self::WithMemory;
        }
        let own = own.lines().find_map(|l| l.strip_prefix("0::/"));
        let is_unified = mount.join("cgroup.controllers").exists();
        match own.filter(|_| is_unified) {
            Some(own) if mount.join(own).join(SWAP_MAX).exists() => Self::Apart,
            _ => Self::Absent,
        }
    }
}

/// Swap rules for containers of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapRules {
    /// The containers that may use swap.
    pub behavior: SwapBehavior,
    /// The interface for setting limits.
    pub control: SwapControl,
    /// Memory of the machine in bytes.
    pub memory: i64,
    /// Swap of the machine in bytes.
    pub swap: i64,
}

impl SwapRules {
    /// Checks that the machine's swap suits the configuration.
    ///
    /// # Errors
    /// Swap cannot be limited as configured, or `failSwapOn` does not allow it.
    pub fn check(&self, fail_swap_on: bool) -> Result<(), String> {
        if self.behavior == SwapBehavior::LimitedSwap && self.control == SwapControl::WithMemory {
            return Err("swap feature is enabled and LimitedSwap but it is only supported with cgroupv2".to_owned());
        }
        if fail_swap_on && self.swap > 0 {
            let why = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Adds the limit to the container's resources for the runtime. Called after the memory limit is set.
    pub fn bind(&self, pod: &Pod, c: &Container, resources: &mut cri::LinuxContainerResources) {
        match self.control {
            SwapControl::Absent => {}
            // The limit is for the sum, so no swap means the memory limit. Without a memory limit there is none.
            SwapControl::WithMemory => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
            SwapControl::Apart => {
                let bytes = self.bytes(pod, c).unwrap_or(0);
                resources.unified.insert(SWAP_MAX.to_owned(), bytes.to_string());
            }
        }
    }

    /// Swap that the container may use in bytes; `None` means no swap.
    fn bytes(&self, pod: &Pod, c: &Container) -> Option<i64> {
        if self.behavior == SwapBehavior::NoSwap || pod::is_critical(pod) || pod::qos_class(pod) != "Burstable" {
            return None;
        }
        let asked = pod::request(c, "memory").map_or(0, |q| q.value());
        let limit = pod::limit(c, "memory").map_or(0, |q| q.value());
        if asked == limit || asked > self.memory || self.memory <= 0 {
            return None;
        }
        let part = i128::from(asked) * i128::from(self.swap) / i128::from(self.memory);
        i64::try_from(part).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: i64 = 1 << 30;

    fn applied(rules: SwapRules, metadata: &Value, priority: i32, resources: &Value) -> cri::LinuxContainerResources {
        let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": resources},
            {"name": "d", "resources": {"requests": {"cpu": "1"}}}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("pod");
        let mut out = cri::LinuxContainerResources { memory_limit_in_bytes: 7, ..Default::default() };
        rules.bind(&pod, &pod.spec.as_ref().expect("spec").containers[0], &mut out);
        out
    }

    #[test]
    fn fail_swap_on_rejects_a_machine_with_swap() {
        let none = SwapRules { control: SwapControl::WithMemory, memory: 4, ..SwapRules::default() };
        let some = SwapRules { swap: 2, ..none };
        assert_eq!((some.check(false), none.check(true)), (Ok(()), Ok(())));
        assert!(some.check(true).expect_err("swap is on").contains("--fail-swap-on"));
        let limited = SwapRules { behavior: SwapBehavior::LimitedSwap, ..none };
        assert!(limited.check(true).expect_err("no swap limit").contains("cgroupv2"));
        assert_eq!(SwapRules { control: SwapControl::Apart, ..limited }.check(true), Ok(()));
    }

    #[test]
    fn burstable_containers_get_swap_in_proportion_to_their_memory_request() {
        let limited = SwapRules {
            behavior: SwapBehavior::LimitedSwap,
            control: SwapControl::Apart,
            memory: 4 * GIB,
            swap: 2 * GIB,
        };
        let quarter = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        let (plain, of_file) = (json!({}), json!({"annotations": {"kubernetes.io/config.source": "file"}}));
        for (what, metadata, priority, resources, bytes) in [
            ("a quarter", &plain, 0, &quarter, GIB / 2),
            ("without a limit", &plain, 0, &json!({"requests": {"memory": "4Gi"}}), 2 * GIB),
            ("all it may use", &plain, 0, &json!({"limits": {"memory": "1Gi"}}), 0),
            ("no memory asked for", &plain, 0, &json!({}), 0),
            ("more than there is", &plain, 0, &json!({"requests": {"memory": "5Gi"}}), 0),
            ("the cluster's own", &plain, 2_000_000_000, &quarter, 0),
            ("static", &of_file, 0, &quarter, 0),
        ] {
            let found = applied(limited, metadata, priority, resources);
            assert_eq!(found.unified.get(SWAP_MAX), Some(&bytes.to_string()), "{what}");
            assert_eq!(found.memory_swap_limit_in_bytes, 0, "{what}");
        }
        let none = SwapRules { behavior: SwapBehavior::NoSwap, ..limited };
        assert_eq!(applied(none, &plain, 0, &quarter).unified.get(SWAP_MAX), Some(&"0".to_owned()));
        let split = SwapRules { control: SwapControl::WithMemory, ..none };
        let found = applied(split, &plain, 0, &quarter);
        assert!(found.unified.is_empty() && found.memory_swap_limit_in_bytes == 7);
        let absent = SwapRules { control: SwapControl::Absent, ..none };
        assert!(applied(absent, &plain, 0, &quarter).unified.is_empty());
    }

    #[test]
    fn swap_control_is_detected_from_the_hierarchy() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |own: &str| SwapControl::detect(dir.path(), own);
        assert_eq!(at("0::/a\n"), SwapControl::Absent);
        std::fs::create_dir_all(dir.path().join("a")).expect("mkdir");
        std::fs::write(dir.path().join("a").join(SWAP_MAX), "max\n").expect("write");
        assert_eq!(at("0::/a\n"), SwapControl::Absent, "beside a split tree it bounds nothing");
        std::fs::write(dir.path().join("cgroup.controllers"), "memory\n").expect("write");
        assert_eq!(
            (at("0::/a\n"), at("0::/b\n"), at("")),
            (SwapControl::Apart, SwapControl::Absent, SwapControl::Absent)
        );
        std::fs::create_dir_all(dir.path().join("memory")).expect("mkdir");
        std::fs::write(dir.path().join("memory/memory.memsw.limit_in_bytes"), "1\n").expect("write");
        assert_eq!(at("0::/a\n"), SwapControl::WithMemory);
    }
}
