//! Who may read the files that hold keys and tokens, looked at when a server starts: what is the server's own is closed to others, of what
//! it was given it says so.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::fs;
use std::path::{Path, PathBuf};

use kelson_platform::files::{close_to_others, open_to_others};

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

/// Keys, kubeconfigs, the join token, and the store's files.
fn own(dir: &Path) -> Vec<PathBuf> {
    let mut files = vec![dir.join("node-token"), dir.join("admin.kubeconfig")];
    for (below, secret) in [("pki", ".key"), ("store", "")] {
        let entries = fs::read_dir(dir.join(below)).into_iter().flatten().filter_map(Result::ok);
        files.extend(entries.map(|e| e.path()).filter(|p| p.to_string_lossy().ends_with(secret)));
    }
    files
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
        check(dir.path(), &[&given]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!([mode(&key), mode(&store), mode(&token)], [0o600; 3]);
        assert_eq!(mode(&certificate), 0o644, "everybody may read a certificate");
        assert_eq!(mode(&given), 0o640, "what others own is named and left");
        assert!(open_to_others(&given).is_some());
    }
}
