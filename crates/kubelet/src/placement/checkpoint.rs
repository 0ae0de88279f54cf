//! What containers have to themselves, on disk, in upstream's form and under its names, so that either kubelet takes over from the
//! other (`cpu_manager_state`, `memory_manager_state`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checksum;
use super::cpus::ByContainer;
use super::memory::{MemoryBlock, NodesMemory};
use crate::config::cpuset::CpuSet;

/// In the kubelet's directory.
pub const CPU_FILE: &str = "cpu_manager_state";
/// In the kubelet's directory.
pub const MEMORY_FILE: &str = "memory_manager_state";

/// The state of the processors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuState {
    /// The policy under which it was written.
    pub policy_name: String,
    /// Where those run that have none of their own.
    #[serde(rename = "defaultCpuSet", alias = "defaultCPUSet", default)]
    pub shared: String,
    /// Whose are the others.
    #[serde(rename = "entries", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: ByContainer<String>,
    #[serde(default)]
    checksum: u64,
}

/// The state of the memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    /// The policy under which it was written.
    pub policy_name: String,
    /// What each part of the machine has left.
    #[serde(rename = "machineState", default)]
    pub nodes: NodesMemory,
    /// What containers were promised.
    #[serde(rename = "entries", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: ByContainer<Vec<MemoryBlock>>,
    #[serde(default)]
    checksum: u64,
}

impl CpuState {
    /// To be written.
    pub fn new(policy: &str, shared: &CpuSet, held: &ByContainer<CpuSet>) -> Self {
        let text = |all: &BTreeMap<String, CpuSet>| all.iter().map(|(n, s)| (n.clone(), s.to_string())).collect();
        let held: ByContainer<String> = held.iter().map(|(pod, all)| (pod.clone(), text(all))).collect();
        let shared = shared.to_string();
        let checksum = checksum::of_cpus(policy, &shared, &held);
        Self { policy_name: policy.to_owned(), shared, held, checksum }
    }

    /// What an earlier kubelet left under the same policy; `None` where it left nothing.
    ///
    /// # Errors
    /// When it is damaged or was written under another policy: then somebody must look, as upstream has it.
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
    /// To be written.
    pub fn new(policy: &str, nodes: &NodesMemory, held: &ByContainer<Vec<MemoryBlock>>) -> Self {
        let checksum = checksum::of_memory(policy, nodes, held);
        Self { policy_name: policy.to_owned(), nodes: nodes.clone(), held: held.clone(), checksum }
    }

    /// What an earlier kubelet left under the same policy; `None` where it left nothing.
    ///
    /// # Errors
    /// As of [`CpuState::read`].
    pub fn read(dir: &Path, policy: &str) -> Result<Option<Self>, String> {
        read::<Self>(&dir.join(MEMORY_FILE), policy, "memory", |s| {
            (s.policy_name.as_str(), s.checksum, checksum::of_memory(&s.policy_name, &s.nodes, &s.held))
        })
    }
}

/// Reads a state file; `about` tells its policy, the sum that it has and the one that it should have.
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
    // Zero is the sum of a file that had none yet.
    if sum != 0 && sum != expected {
        return Err(fault("checkpoint is corrupted".into()));
    }
    if written_by != policy {
        return Err(fault(format!("configured policy {policy:?} differs from state checkpoint policy {written_by:?}")));
    }
    Ok(Some(state))
}

/// Writes a state, whole or not at all.
///
/// # Errors
/// The system's.
pub fn write(dir: &Path, file: &str, state: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_vec(state).map_err(|e| e.to_string())?;
    kelson_pki::write_secret(&dir.join(file), &text, true).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_told() {
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
    fn what_upstreams_kubelet_left_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,
            "systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},
            "entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;
        std::fs::write(dir.path().join(MEMORY_FILE), text).expect("a file");
        let state = MemoryState::read(dir.path(), "static").expect("whole").expect("there");
        assert_eq!(state.held["pod"]["container1"][0].size, 512);
    }
}
