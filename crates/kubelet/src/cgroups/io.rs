//! I/O of a cgroup on block devices, on v1 and v2.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::collections::BTreeMap;
use std::path::Path;

use super::tree::Tree;

/// Requests and bytes of one device since the cgroup was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Path of the device, such as `/dev/sda`; its numbers (`8:0`) if it has no name.
    pub device: String,
    /// Read and write requests.
    pub requests: [u64; 2],
    /// Bytes read and written.
    pub bytes: [u64; 2],
}

/// Reads the I/O of the cgroup at `path`. `devices` is the kernel's directory of block devices by number (`/sys/dev/block`).
pub(super) fn read(tree: &Tree, path: &str, devices: &Path) -> Vec<DeviceIo> {
    let text = |name: &str| std::fs::read_to_string(tree.file(path, "blkio", name)).unwrap_or_default();
    let mut all = match tree.is_unified() {
        true => unified(&text("io.stat")),
        false => split(&text("blkio.throttle.io_serviced"), &text("blkio.throttle.io_service_bytes")),
    };
    all.iter_mut().for_each(|io| io.device = name(devices, &io.device));
    all
}

/// Parses lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn unified(text: &str) -> Vec<DeviceIo> {
    let one = |line: &str| {
        let (device, fields) = line.split_once(' ')?;
        let get = |name: &str| fields.split(' ').find_map(|f| f.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        let pair = |read, write| [get(read).unwrap_or(0), get(write).unwrap_or(0)];
        Some(DeviceIo { device: device.to_owned(), requests: pair("rios", "wios"), bytes: pair("rbytes", "wbytes") })
    };
    text.lines().filter_map(one).collect()
}

/// Parses lines such as `8:0 Read 3` of requests and of bytes.
fn split(requests: &str, bytes: &str) -> Vec<DeviceIo> {
    let mut all: BTreeMap<&str, DeviceIo> = BTreeMap::new();
    let lines = requests.lines().map(|line| (false, line)).chain(bytes.lines().map(|line| (true, line)));
    for (is_bytes, line) in lines {
        let mut words = line.split(' ');
        let (Some(device), Some(kind), Some(Ok(n))) = (words.next(), words.next(), words.next().map(str::parse)) else {
            continue;
        };
        let Some(at) = ["Read", "Write"].iter().position(|name| *name == kind) else { continue };
        let io = all.entry(device).or_insert_with(|| DeviceIo { device: device.to_owned(), ..DeviceIo::default() });
        if is_bytes { io.bytes[at] = n } else { io.requests[at] = n }
    }
    all.into_values().collect()
}

/// Returns the path of a device by its numbers.
fn name(devices: &Path, numbers: &str) -> String {
    let about = std::fs::read_to_string(devices.join(numbers).join("uevent")).unwrap_or_default();
    let name = about.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map_or_else(|| numbers.to_owned(), |name| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_on_cgroup_v1_and_v2() {
        let dir = tempfile::tempdir().expect("a directory");
        for (file, text) in [
            ("one/p/io.stat", "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n253:1 \n"),
            ("two/blkio/p/blkio.throttle.io_serviced", "8:0 Read 1\n8:0 Write 2\n8:0 Sync 3\n253:1 Read 0\nTotal 3\n"),
            ("two/blkio/p/blkio.throttle.io_service_bytes", "8:0 Read 4096\n8:0 Write 8192\nTotal 12288\n"),
            ("devices/8:0/uevent", "MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n"),
        ] {
            let at = dir.path().join(file);
            std::fs::create_dir_all(at.parent().expect("a directory")).expect("made");
            std::fs::write(at, text).expect("written");
        }
        let (one, two) = (Tree::Unified(dir.path().join("one")), Tree::Split(dir.path().join("two")));
        for tree in [&one, &two] {
            let found = read(tree, "p", &dir.path().join("devices"));
            let mut found = found.into_iter();
            let disk = found.find(|io| io.device == "/dev/sda").expect("the disk");
            assert_eq!((disk.requests, disk.bytes), ([1, 2], [4096, 8192]));
            assert_eq!(read(tree, "absent", &dir.path().join("devices")), []);
        }
        assert!(read(&one, "p", Path::new("/nowhere")).iter().any(|io| io.device == "253:1"));
    }
}
