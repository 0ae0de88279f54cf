//! Machines of files, for tests.
use std::path::Path;

use tempfile::TempDir;

use crate::finding::{Finding, Level};
use crate::host::{Host, Purpose};

/// A machine with these files; a content that begins with `-> ` is a link.
pub fn machine(files: &[(&str, &str)], outputs: &[(&str, &str)]) -> (TempDir, Host) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.strip_prefix("-> ") {
            Some(to) => std::os::unix::fs::symlink(to, path).unwrap(),
            None => std::fs::write(path, text).unwrap(),
        }
    }
    let host = Host::fake(dir.path(), outputs);
    (dir, host)
}

/// A server with a node.
pub fn purpose() -> Purpose {
    Purpose {
        server: true,
        node: true,
        data_dir: Path::new("/var/lib/kelson").to_owned(),
        secure_port: 6443,
        kubelet_port: 10250,
        foreign_runtime: false,
        built_s: 1_767_225_600,
    }
}

/// A control plane alone.
pub fn control_plane() -> Purpose {
    Purpose { node: false, ..purpose() }
}

/// Levels of findings.
pub fn levels(findings: &[Finding]) -> Vec<Level> {
    findings.iter().map(|finding| finding.level).collect()
}
