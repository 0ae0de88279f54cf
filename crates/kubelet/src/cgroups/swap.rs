//! How much of their memory containers may have on disk (KEP-2400; upstream: `kuberuntime_container_linux.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_cri::proto as cri;

use crate::config::cgroups::SwapBehavior;
use crate::pod;

/// The bound of a cgroup's swap, as the unified tree has it.
const SWAP_MAX: &str = "memory.swap.max";

/// How the kernel bounds swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapControl {
    /// It does not.
    #[default]
    Absent,
    /// Together with memory (v1).
    WithMemory,
    /// By a bound of its own (v2).
    Apart,
}

impl SwapControl {
    /// The machine's, where the kernel's tree is mounted at `mount`; `own` is `/proc/self/cgroup`. The root of a unified tree has no
    /// bounds, so the one looks in which this process is.
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

/// What containers of this node may have on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapRules {
    /// Whether they may have anything.
    pub behavior: SwapBehavior,
    /// How they are held to it.
    pub control: SwapControl,
    /// Memory of the machine, bytes.
    pub memory: i64,
    /// Swap of the machine, bytes.
    pub swap: i64,
}

impl SwapRules {
    /// Says it in what the runtime is told of a container, after its memory.
    pub fn bind(&self, pod: &Pod, c: &Container, resources: &mut cri::LinuxContainerResources) {
        match self.control {
            SwapControl::Absent => {}
            // What is bounded is the sum: no more than the memory alone may be. Without a bound of memory there is none.
            SwapControl::WithMemory => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
            SwapControl::Apart => {
                let bytes = self.bytes(pod, c).unwrap_or(0);
                resources.unified.insert(SWAP_MAX.to_owned(), bytes.to_string());
            }
        }
    }

    /// The container's part; `None`: it gets none.
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

    fn told(rules: SwapRules, metadata: &Value, priority: i32, resources: &Value) -> cri::LinuxContainerResources {
        let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": resources},
            {"name": "d", "resources": {"requests": {"cpu": "1"}}}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("pod");
        let mut out = cri::LinuxContainerResources { memory_limit_in_bytes: 7, ..Default::default() };
        rules.bind(&pod, &pod.spec.as_ref().expect("spec").containers[0], &mut out);
        out
    }

    #[test]
    fn a_burstable_container_has_as_much_of_it_as_of_the_memory() {
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
            let found = told(limited, metadata, priority, resources);
            assert_eq!(found.unified.get(SWAP_MAX), Some(&bytes.to_string()), "{what}");
            assert_eq!(found.memory_swap_limit_in_bytes, 0, "{what}");
        }
        let none = SwapRules { behavior: SwapBehavior::NoSwap, ..limited };
        assert_eq!(told(none, &plain, 0, &quarter).unified.get(SWAP_MAX), Some(&"0".to_owned()));
        let split = SwapRules { control: SwapControl::WithMemory, ..none };
        let found = told(split, &plain, 0, &quarter);
        assert!(found.unified.is_empty() && found.memory_swap_limit_in_bytes == 7);
        let absent = SwapRules { control: SwapControl::Absent, ..none };
        assert!(told(absent, &plain, 0, &quarter).unified.is_empty());
    }

    #[test]
    fn the_kernels_way_is_seen_in_its_tree() {
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
