//! Links to container logs in one directory, `POD_NAMESPACE_CONTAINER-ID.log`, for log collectors (upstream: `kuberuntime_container.go`
//! startContainer, `/var/log/containers`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::io;
use std::path::{Path, PathBuf};

/// Maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// File name extension of the links.
const ENDING: &str = ".log";

/// Path of the link to a container's log; a name that is too long for a file system is cut.
pub fn path(dir: &Path, (namespace, pod): (&str, &str), container: &str, id: &str) -> PathBuf {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    // Names of these objects and IDs are ASCII.
    while name.len() > NAME_BYTES_MAX - ENDING.len() {
        name.pop();
    }
    dir.join(name + ENDING)
}

/// Creates the link, replacing an existing one. Does nothing if the log does not exist.
///
/// # Errors
/// The error of the system call.
pub fn make(link: &Path, log: &Path) -> io::Result<()> {
    if !log.exists() {
        return Ok(());
    }
    if let Some(dir) = link.parent() {
        std::fs::create_dir_all(dir)?;
    }
    remove(link)?;
    std::os::unix::fs::symlink(log, link)
}

/// Removes the link. A missing link is not an error; something that is not a link is not removed.
///
/// # Errors
/// The error of the system call, or the path is not a link.
pub fn remove(link: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(link) {
        Ok(found) if found.is_symlink() => std::fs::remove_file(link),
        Ok(_) => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is not a symbolic link", link.display())))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes the links whose logs no longer exist, for example of containers that were removed while no kubelet ran.
pub fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let link = entry.path();
        let is_link = entry.file_type().is_ok_and(|t| t.is_symlink()) && link.extension().is_some_and(|e| e == "log");
        if is_link && matches!(std::fs::metadata(&link), Err(e) if e.kind() == io::ErrorKind::NotFound) {
            let _ = std::fs::remove_file(&link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_its_log_and_goes_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, links) = (dir.path().join("0.log"), dir.path().join("containers"));
        let link = path(&links, ("ns", "p"), "c", "abc");
        assert_eq!(link, links.join("p_ns_c-abc.log"));
        make(&link, &log).expect("nothing to do");
        assert!(!links.exists(), "there is no log yet");
        for text in ["first", "second"] {
            std::fs::write(&log, text).expect("written");
            make(&link, &log).expect("made");
            assert_eq!(std::fs::read_to_string(&link).expect("read"), text);
        }
        let long = path(&links, (&"n".repeat(63), &"p".repeat(253)), "c", "abc");
        make(&long, &log).expect("made, as its name is cut");
        sweep(&links);
        assert!(link.exists() && long.exists());
        std::fs::remove_file(&log).expect("removed");
        std::fs::write(links.join("own.log"), "").expect("written");
        sweep(&links);
        let left: Vec<_> = std::fs::read_dir(&links).expect("read").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["own.log"], "a file that is not a link stays");
        remove(&link).expect("it is gone already");
        assert!(remove(&links.join("own.log")).is_err());
    }
}
