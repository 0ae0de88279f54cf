//! Checks the permissions of files with keys and tokens when a server starts: the server's own files are closed to
//! other users, and for configured files a warning is logged.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::fs;
use std::path::{Path, PathBuf};

use kelson_platform::files::{close_to_others, open_to_others};

use crate::at_rest::CONFIG_FILE;

/// Removes other users' permissions from the server's own secret files below `dir`, and logs those of `given` that
/// other users can read.
///
/// Missing files are ignored here; the component that needs one reports it.
pub fn check(dir: &Path, given: &[&Path]) {
    for file in own(dir) {
        if let Some(mode) = open_to_others(&file) {
            let error = close_to_others(&file, mode).err().map(|e| e.to_string());
            tracing::warn!(file = %file.display(), mode = format!("{mode:o}"), error, "file with secrets was readable by other users; restricting its mode");
        }
    }
    for file in given {
        if let Some(mode) = open_to_others(file) {
            let mode = format!("{mode:o}");
            tracing::warn!(file = %file.display(), mode, "file with secrets is readable by other users; run chmod 600 on it");
        }
    }
}

/// Returns keys, kubeconfigs, the join token, the store's files and their snapshots, and the directories that contain
/// them.
fn own(dir: &Path) -> Vec<PathBuf> {
    let mut files = ["node-token", "admin.kubeconfig", CONFIG_FILE].map(|name| dir.join(name)).to_vec();
    let named = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    add(&dir.join("pki"), &|path| named(path).ends_with(".key"), &mut files);
    // A kubelet's key is in one file with its certificate.
    add(&dir.join("kubelet").join("pki"), &|path| !named(path).ends_with(".crt"), &mut files);
    add(&dir.join("store"), &|_| true, &mut files);
    add(&dir.join("snapshots"), &|_| true, &mut files);
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let replaced = |path: &PathBuf| ["store.", "pki."].iter().any(|prefix| named(path).starts_with(prefix));
    for replaced in entries.filter(replaced) {
        add(&replaced, &|_| true, &mut files);
    }
    files
}

/// Adds a directory and its secret files, at every depth.
fn add(dir: &Path, is_secret: &dyn Fn(&Path) -> bool, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    files.push(dir.to_owned());
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        match fs::symlink_metadata(&path) {
            Ok(about) if about.is_dir() => add(&path, is_secret, files),
            Ok(_) if is_secret(&path) => files.push(path),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn files_with_secrets_are_closed_to_others() {
        use std::fs::Permissions;
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let key = file("pki/ca.key", 0o644);
        let store = file("store/store.db", 0o660);
        let token = file("node-token", 0o600);
        let certificate = file("pki/ca.crt", 0o644);
        let given = file("elsewhere/encryption.yaml", 0o640);
        let more = [
            "kubelet/pki/kubelet-client-current.pem",
            "store.before-1/store.db",
            "snapshots/monday/store.db",
            "pki/next/ca.key",
        ];
        let more = more.map(|name| file(name, 0o644));
        let directories = ["pki", "store", "kubelet/pki", "snapshots", "snapshots/monday", "store.before-1"];
        for name in directories {
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(0o755)).unwrap();
        }
        check(dir.path(), &[&given]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!([mode(&key), mode(&store), mode(&token)], [0o600; 3]);
        assert_eq!(more.each_ref().map(|path| mode(path)), [0o600; 4]);
        assert_eq!(directories.map(|name| mode(&dir.path().join(name))), [0o700; 6]);
        assert_eq!(mode(&certificate), 0o644, "everybody may read a certificate");
        assert_eq!(mode(&given), 0o640, "what others own is named and left");
        assert!(open_to_others(&given).is_some());
    }
}
