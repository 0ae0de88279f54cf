//! Links to containers' logs in one directory, `POD_NAMESPACE_CONTAINER-ID.log`, by which log collectors find them (upstream:
//! `kuberuntime_container.go` startContainer, `/var/log/containers`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::io;
use std::path::{Path, PathBuf};

/// Longest name of a file.
const NAME_BYTES_MAX: usize = 255;
/// How the names end.
const ENDING: &str = ".log";

/// Where the link to a container's log is; its name is cut where it would be too long for a file system.
pub fn path(dir: &Path, (namespace, pod): (&str, &str), container: &str, id: &str) -> PathBuf {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    // Names of these objects and IDs are ASCII.
    while name.len() > NAME_BYTES_MAX - ENDING.len() {
        name.pop();
    }
    dir.join(name + ENDING)
}

/// Makes the link; one of the name that is there is replaced. Nothing is made for a log that is not there.
///
/// # Errors
/// The system's.
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

/// Removes the link; none is no error, and what is no link stays.
///
/// # Errors
/// The system's.
pub fn remove(link: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(link) {
        Ok(found) if found.is_symlink() => std::fs::remove_file(link),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is no link", link.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes the links of a directory whose logs are gone, such as those of containers that went while no kubelet ran.
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
        assert_eq!(left, ["own.log"], "what is no link stays");
        remove(&link).expect("it is gone already");
        assert!(remove(&links.join("own.log")).is_err());
    }
}
