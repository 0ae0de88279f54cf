//! Who may read the files that hold keys and tokens, looked at when a server starts: what is the server's own is closed to others, of what
//! it was given it says so.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::fs;
use std::path::{Path, PathBuf};

use kelson_platform::files::{close_to_others, open_to_others};

use crate::snapshot::DIR;

/// Closes the server's own secret files below `dir` to others, and names those of `given` that others may read.
///
/// Files that are not there are no fault: whoever needs them says so.
pub fn check(dir: &Path, given: &[&Path]) {
    for file in own(dir) {
        if let Some(mode) = open_to_others(&file) {
            let error = close_to_others(&file, mode).err().map(|e| e.to_string());
            tracing::warn!(file = %file.display(), mode = format!("{mode:o}"), error, "a file with secrets was open to others");
        }
    }
    for file in given {
        if let Some(mode) = open_to_others(file) {
            let mode = format!("{mode:o}");
            tracing::warn!(file = %file.display(), mode, "a file with secrets is open to others: chmod 600");
        }
    }
}

/// Keys, kubeconfigs, the join token, and the files of stores: the one in use, those that a restore put aside, and copies.
fn own(dir: &Path) -> Vec<PathBuf> {
    let mut files = vec![dir.join("node-token"), dir.join("admin.kubeconfig")];
    let stores = entries(dir).into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name == "store" || name.to_string_lossy().starts_with("store."))
    });
    let copies = entries(&dir.join(DIR));
    files.extend(stores.chain(copies).flat_map(|store| entries(&store)));
    for keys in ["pki", "kubelet/pki"] {
        below(&dir.join(keys), KEYS_DEPTH, &mut files);
    }
    files
}

/// Directories below those of keys that are looked into.
const KEYS_DEPTH: usize = 3;

/// Files with private keys: keys themselves, and certificates that have theirs beside them, as kubelets keep them.
fn below(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".key") || name.ends_with(".pem") || name.ends_with(".kubeconfig") {
            files.push(path);
        } else if depth > 0 && path.is_dir() && !path.is_symlink() {
            below(&path, depth - 1, files);
        }
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect()
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
        let more =
            ["store.before-17/store.db", "snapshots/x/store.db", "pki/next/ca.key", "kubelet/pki/kubelet-client-1.pem"];
        let more = more.map(|name| file(name, 0o644));
        let token = file("node-token", 0o600);
        let certificate = file("pki/ca.crt", 0o644);
        let given = file("elsewhere/encryption.yaml", 0o640);
        check(dir.path(), &[&given]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!([mode(&key), mode(&store), mode(&token)], [0o600; 3]);
        assert_eq!(more.map(|path| mode(&path)), [0o600; 4], "wherever they are");
        assert_eq!(mode(&certificate), 0o644, "everybody may read a certificate");
        assert_eq!(mode(&given), 0o640, "what others own is named and left");
        assert!(open_to_others(&given).is_some());
    }
}
