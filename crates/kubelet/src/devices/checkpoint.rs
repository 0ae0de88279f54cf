//! Checkpoint of device assignments, under upstream's file name and in its format, so that Kelson's and upstream's kubelet can replace each
//! other. The checksum differs, because upstream computes it over its in-memory structures; upstream then logs an error and starts without
//! the checkpoint.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::messages::ContainerAllocation;
use super::table::{DeviceHolder, HeldDevices, Table};

/// File name in the directory of plugin sockets.
pub const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CheckpointFile {
    data: CheckpointData,
    #[serde(default)]
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct CheckpointData {
    pod_device_entries: Option<Vec<CheckpointEntry>>,
    registered_devices: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct CheckpointEntry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    devices: BTreeMap<i64, BTreeSet<String>>,
    /// The plugin's `AllocateResponse` as protobuf in base64.
    #[serde(rename = "AllocResp")]
    answer: String,
}

/// Reads the checkpoint; an empty table if there is none.
///
/// # Errors
/// The file is damaged or cannot be read.
pub fn read(dir: &Path, now: Instant) -> io::Result<Table> {
    let text = match std::fs::read(dir.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Table::default()),
        other => other?,
    };
    let file: CheckpointFile = serde_json::from_slice(&text).map_err(io::Error::other)?;
    let mut held = BTreeMap::new();
    for entry in file.data.pod_device_entries.into_iter().flatten() {
        let bytes = STANDARD.decode(&entry.answer).map_err(io::Error::other)?;
        let answer = ContainerAllocation::decode(bytes.as_slice()).map_err(io::Error::other)?;
        let whose = DeviceHolder { pod: entry.pod, container: entry.container, resource: entry.resource };
        held.insert(whose, HeldDevices { near: entry.devices, answer: Some(answer) });
    }
    let resources = file.data.registered_devices.into_iter().flatten().map(|(name, _)| name);
    Ok(Table::remembered(resources, held, now))
}

/// Writes the checkpoint atomically.
///
/// # Errors
/// The error of the system call.
pub fn write(dir: &Path, (resources, held): (Vec<String>, Vec<(DeviceHolder, HeldDevices)>)) -> io::Result<()> {
    let entries = held.into_iter().map(|(whose, held)| CheckpointEntry {
        pod: whose.pod,
        container: whose.container,
        resource: whose.resource,
        devices: held.near,
        answer: STANDARD.encode(held.answer.unwrap_or_default().encode_to_vec()),
    });
    let registered = resources.into_iter().map(|name| (name, Vec::new())).collect();
    let data = CheckpointData { pod_device_entries: Some(entries.collect()), registered_devices: Some(registered) };
    let text = serde_json::to_vec(&CheckpointFile { data, checksum: 0 }).map_err(io::Error::other)?;
    kelson_pki::write_secret(&dir.join(FILE), &text, true).map_err(io::Error::other)
}

/// Removes the sockets of plug-ins that registered with an earlier kubelet, so that they register again.
///
/// # Errors
/// The error of the system call.
pub fn clear(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() != FILE && !entry.file_type()?.is_dir() {
            match std::fs::remove_file(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::messages::DeviceSpec;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let now = Instant::now();
        assert_eq!(read(dir.path(), now).expect("nothing").lasting(), (Vec::new(), Vec::new()));
        let file = DeviceSpec { container_path: "/dev/x".into(), host_path: "/dev/y".into(), permissions: "rw".into() };
        let answer = ContainerAllocation { devices: vec![file], ..Default::default() };
        let whose = DeviceHolder { pod: "u".into(), container: "c".into(), resource: "example.com/x".into() };
        let near = BTreeMap::from([(-1, BTreeSet::from(["a".to_owned()])), (1, BTreeSet::from(["b".to_owned()]))]);
        let lasting = (vec!["example.com/x".to_owned()], vec![(whose, HeldDevices { near, answer: Some(answer) })]);
        write(dir.path(), lasting.clone()).expect("written");
        std::fs::write(dir.path().join("plugin.sock"), "").expect("a file");
        clear(dir.path()).expect("cleared");
        assert!(!dir.path().join("plugin.sock").exists());
        assert_eq!(read(dir.path(), now).expect("what was written").lasting(), lasting);
        std::fs::write(dir.path().join(FILE), "{").expect("a file");
        assert!(read(dir.path(), now).is_err(), "damaged");
    }

    #[test]
    fn upstreams_checkpoint_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        // The response sets the environment variable A=1.
        let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"example.com/x",
            "DeviceIDs":{"-1":["a"],"0":["b","c"]},"AllocResp":"CgYKAUESATE="}],
            "RegisteredDevices":{"example.com/x":["a","b","c"]}},"Checksum":4087293241}"#;
        std::fs::write(dir.path().join(FILE), text).expect("a file");
        let (resources, held) = read(dir.path(), Instant::now()).expect("read").lasting();
        assert_eq!(resources, ["example.com/x"]);
        assert_eq!(held[0].1.ids().into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(held[0].1.answer.as_ref().expect("an answer").envs["A"], "1");
    }
}
