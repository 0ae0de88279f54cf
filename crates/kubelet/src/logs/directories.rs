//! The log directories of pods, which are named `NAMESPACE_NAME_UID`.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};

/// Returns the log directories of pods in a directory, and the UIDs of the pods. Links and other files are left out.
pub fn of_pods(dir: &Path) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let directories = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let of_pods = directories.filter_map(|e| {
        let name = e.file_name().into_string().ok()?;
        let [_, _, uid] = *name.split('_').collect::<Vec<_>>() else { return None };
        Some((e.path(), uid.to_owned()))
    });
    of_pods.collect()
}
