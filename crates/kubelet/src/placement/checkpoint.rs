//! Checkpoints of exclusive CPUs and memory (`cpu_manager_state`, `memory_manager_state`), under upstream's file names and in its format,
//! so that Kelson's and upstream's kubelet can replace each other.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checksum;
use super::cpus::ByContainer;
use super::memory::{MemoryBlock, NodesMemory};
use crate::config::cpuset::CpuSet;

/// File name in the kubelet's root directory.
pub const CPU_FILE: &str = "cpu_manager_state";
/// File name in the kubelet's root directory.
pub const MEMORY_FILE: &str = "memory_manager_state";

/// Checkpoint of CPU assignments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuState {
    /// Policy under which it was written.
    pub policy_name: String,
    /// CPUs of the shared pool.
    #[serde(rename = "defaultCpuSet", alias = "defaultCPUSet", default)]
    pub shared: String,
    /// Exclusive CPUs of containers.
    #[serde(rename = "entries", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: ByContainer<String>,
    #[serde(default)]
    checksum: u64,
}

/// Checkpoint of memory assignments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    /// Policy under which it was written.
    pub policy_name: String,
    /// State of each NUMA node's memory.
    #[serde(rename = "machineState", default)]
    pub nodes: NodesMemory,
    /// Memory that is reserved for containers.
    #[serde(rename = "entries", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: ByContainer<Vec<MemoryBlock>>,
    #[serde(default)]
    checksum: u64,
}

impl CpuState {
    /// Creates a checkpoint with its checksum.
    pub fn new(policy: &str, shared: &CpuSet, held: &ByContainer<CpuSet>) -> Self {
        let text = |all: &BTreeMap<String, CpuSet>| all.iter().map(|(n, s)| (n.clone(), s.to_string())).collect();
        let held: ByContainer<String> = held.iter().map(|(pod, all)| (pod.clone(), text(all))).collect();
        let shared = shared.to_string();
        let checksum = checksum::of_cpus(policy, &shared, &held);
        Self { policy_name: policy.to_owned(), shared, held, checksum }
    }

    /// Reads the checkpoint of an earlier kubelet: the shared pool and the exclusive CPUs. `None` if there is none.
    ///
    /// # Errors
    /// It is damaged or was written under another policy. Like upstream, an operator must then remove it.
    pub fn read(dir: &Path, policy: &str) -> Result<Option<(CpuSet, ByContainer<CpuSet>)>, String> {
        let found = read::<Self>(&dir.join(CPU_FILE), policy, "CPU", |s| {
            (s.policy_name.as_str(), s.checksum, checksum::of_cpus(&s.policy_name, &s.shared, &s.held))
        })?;
        let Some(state) = found else { return Ok(None) };
        let set = |text: &String| text.parse::<CpuSet>().map_err(|e| format!("could not parse cpuset {text:?}: {e}"));
        let mut held = ByContainer::new();
        for (pod, containers) in &state.held {
            for (container, text) in containers {
                held.entry(pod.clone()).or_default().insert(container.clone(), set(text)?);
            }
        }
        Ok(Some((set(&state.shared)?, held)))
    }
}

impl MemoryState {
    /// Creates a checkpoint with its checksum.
    pub fn new(policy: &str, nodes: &NodesMemory, held: &ByContainer<Vec<MemoryBlock>>) -> Self {
        let checksum = checksum::of_memory(policy, nodes, held);
        Self { policy_name: policy.to_owned(), nodes: nodes.clone(), held: held.clone(), checksum }
    }

    /// Reads the checkpoint of an earlier kubelet; `None` if there is none.
    ///
    /// # Errors
    /// As for [`CpuState::read`].
    pub fn read(dir: &Path, policy: &str) -> Result<Option<Self>, String> {
        read::<Self>(&dir.join(MEMORY_FILE), policy, "memory", |s| {
            (s.policy_name.as_str(), s.checksum, checksum::of_memory(&s.policy_name, &s.nodes, &s.held))
        })
    }
}

/// Reads a checkpoint file. `about` returns its policy, its checksum, and the computed checksum.
fn read<T: serde::de::DeserializeOwned>(
    path: &Path,
    policy: &str,
    manager: &str,
    about: impl Fn(&T) -> (&str, u64, u64),
) -> Result<Option<T>, String> {
    let fault = |why: String| {
        let path = path.display();
        format!(
            "could not restore state from checkpoint: {why}, please drain this node and delete the {manager} manager checkpoint \
             file \"{path}\" before restarting Kubelet"
        )
    };
    let text = match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| fault(e.to_string()))?,
    };
    let state: T = serde_json::from_slice(&text).map_err(|e| fault(e.to_string()))?;
    let (written_by, sum, expected) = about(&state);
    // Zero means that the file has no checksum.
    if sum != 0 && sum != expected {
        return Err(fault("checkpoint is corrupted".into()));
    }
    if written_by != policy {
        return Err(fault(format!("configured policy {policy:?} differs from state checkpoint policy {written_by:?}")));
    }
    Ok(Some(state))
}

/// Writes a checkpoint atomically.
///
/// # Errors
/// The error of the system call.
pub fn write(dir: &Path, file: &str, state: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_vec(state).map_err(|e| e.to_string())?;
    kelson_pki::write_secret(&dir.join(file), &text, true).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_round_trip_and_damage_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(CpuState::read(dir.path(), "static"), Ok(None));
        let set = |text: &str| text.parse::<CpuSet>().expect("a set");
        let held = ByContainer::from([("u".to_owned(), [("c".to_owned(), set("2-3"))].into())]);
        write(dir.path(), CPU_FILE, &CpuState::new("static", &set("0-1"), &held)).expect("written");
        assert_eq!(CpuState::read(dir.path(), "static"), Ok(Some((set("0-1"), held))));
        let why = CpuState::read(dir.path(), "none").expect_err("another policy");
        assert!(why.contains("configured policy \"none\" differs from state checkpoint policy \"static\""), "{why}");
        let text = std::fs::read_to_string(dir.path().join(CPU_FILE)).expect("a file");
        std::fs::write(dir.path().join(CPU_FILE), text.replace("2-3", "2-4")).expect("a file");
        let why = CpuState::read(dir.path(), "static").expect_err("changed");
        assert!(why.contains("checkpoint is corrupted") && why.contains("cpu_manager_state"), "{why}");
    }

    #[test]
    fn upstreams_checkpoint_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,
            "systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},
            "entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;
        std::fs::write(dir.path().join(MEMORY_FILE), text).expect("a file");
        let state = MemoryState::read(dir.path(), "static").expect("whole").expect("there");
        assert_eq!(state.held["pod"]["container1"][0].size, 512);
    }
}
