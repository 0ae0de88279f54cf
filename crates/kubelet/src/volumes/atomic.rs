//! Atomic updates of a set of files. The files are in a timestamped directory, the link `..data` points to it, and each visible name is a
//! link through `..data`. A reader therefore sees either the old or the new set (upstream: `volume/util/atomic_writer.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// One file of a payload. Its `Debug` output omits the content.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Content of the file.
    pub data: Vec<u8>,
    /// Permission bits of the file.
    pub mode: u32,
    /// Owner; `None` for the kubelet's user.
    pub owner: Option<u32>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({} bytes, {:o})", self.data.len(), self.mode)
    }
}

/// Files, by path relative to the volume.
pub type Payload = BTreeMap<String, File>;

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";
/// Maximum length of a path in a volume, as in the API.
const PATH_MAX: usize = 4096;

/// Checks that a path stays in the volume.
pub fn check_path(path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > PATH_MAX || path.starts_with('/') {
        return Err(format!("invalid path: must be a relative path: {path:?}"));
    }
    if path.split('/').any(|p| p == "..") || path.starts_with("..") {
        return Err(format!("invalid path: must not contain '..': {path:?}"));
    }
    Ok(())
}

/// Makes `dir` show `payload`, with `group` as the group of all files. Returns whether anything changed.
pub fn write(dir: &Path, payload: &Payload, group: Option<u32>, stamp: &str) -> io::Result<bool> {
    for path in payload.keys() {
        check_path(path).map_err(io::Error::other)?;
    }
    let old = fs::read_link(dir.join(DATA)).ok();
    if let Some(old) = &old
        && same(&dir.join(old), payload)
    {
        link_names(dir, payload)?;
        return Ok(false);
    }
    let name = format!("..{stamp}");
    let fresh = dir.join(&name);
    fs::create_dir(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    own(&fresh, None, group)?;
    for (path, file) in payload {
        put(&fresh, path, file, group)?;
    }
    let tmp = dir.join(DATA_TMP);
    let _ = fs::remove_file(&tmp);
    symlink(&name, &tmp)?;
    fs::rename(&tmp, dir.join(DATA))?;
    link_names(dir, payload)?;
    if let Some(old) = old {
        let _ = fs::remove_dir_all(dir.join(old));
    }
    Ok(true)
}

fn put(root: &Path, path: &str, file: &File, group: Option<u32>) -> io::Result<()> {
    let target = root.join(path);
    let mut parents: Vec<&Path> = Path::new(path).ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
    parents.reverse();
    for p in parents {
        let p = root.join(p);
        if !p.exists() {
            fs::create_dir(&p)?;
            fs::set_permissions(&p, fs::Permissions::from_mode(0o755))?;
            own(&p, None, group)?;
        }
    }
    fs::write(&target, &file.data)?;
    // The owner is set before the mode, because a change of the owner clears mode bits.
    own(&target, file.owner, group)?;
    fs::set_permissions(&target, fs::Permissions::from_mode(file.mode))
}

fn own(path: &Path, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    if user.is_none() && group.is_none() {
        return Ok(());
    }
    std::os::unix::fs::lchown(path, user, group)
}

/// Returns whether the directory has exactly the files of the payload.
fn same(dir: &Path, payload: &Payload) -> bool {
    let mut found = BTreeSet::new();
    walk(dir, "", &mut found);
    found.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            let at = dir.join(path);
            let mode = fs::metadata(&at).map(|m| m.permissions().mode() & 0o7777);
            found.contains(path) && mode.is_ok_and(|m| m == file.mode) && fs::read(&at).is_ok_and(|d| d == file.data)
        })
}

fn walk(dir: &Path, prefix: &str, out: &mut BTreeSet<String>) {
    for e in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", e.file_name().to_string_lossy());
        if e.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&e.path(), &format!("{name}/"), out);
        } else {
            out.insert(name);
        }
    }
}

/// Creates the visible names (the first component of each path) as links through `..data`, and removes names of an older payload.
fn link_names(dir: &Path, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload.keys().map(|p| p.split('/').next().unwrap_or(p)).collect();
    for name in &wanted {
        let at = dir.join(name);
        if fs::symlink_metadata(&at).is_err() {
            symlink(format!("{DATA}/{name}"), &at)?;
        }
    }
    for e in fs::read_dir(dir)?.flatten() {
        let name = e.file_name();
        let name = name.to_string_lossy();
        let ours = e.file_type().is_ok_and(|t| t.is_symlink());
        if ours && !name.starts_with("..") && !wanted.contains(&*name) {
            fs::remove_file(e.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |d: &str| File { data: d.as_bytes().to_vec(), mode: 0o640, owner: None };
        files.iter().map(|(p, d)| ((*p).to_owned(), file(d))).collect()
    }

    #[test]
    fn replaces_all_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let d = dir.path();
        assert!(write(d, &payload(&[("a", "1"), ("sub/b", "2")]), None, "1").expect("write"));
        assert_eq!(fs::read_to_string(d.join("sub/b")).expect("read"), "2");
        assert_eq!(fs::read_link(d.join("a")).expect("link"), Path::new("..data/a"));
        assert_eq!(fs::metadata(d.join("a")).expect("stat").permissions().mode() & 0o777, 0o640);
        assert!(!write(d, &payload(&[("a", "1"), ("sub/b", "2")]), None, "2").expect("write"), "nothing changed");
        assert!(write(d, &payload(&[("a", "3")]), None, "3").expect("write"));
        assert_eq!(fs::read_to_string(d.join("a")).expect("read"), "3");
        assert!(!d.join("sub").exists() && !d.join("..1").exists());
    }

    #[test]
    fn paths_stay_inside() {
        for bad in ["", "/a", "../a", "a/../b", "..a"] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
        assert!(check_path("a/b..c").is_ok());
    }
}
