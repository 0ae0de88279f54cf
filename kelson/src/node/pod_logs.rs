//! The directory of a node's pod logs: `/var/log/pods`, which log collectors read, if this node is the only one on its
//! machine, and a directory in its data directory otherwise. The choice of the first start is kept, because running
//! pods continue to write there.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The directory in Kubernetes' documentation (`podLogsDir`).
pub const POD_LOGS: &str = "/var/log/pods";
/// The directory with a link to each container's log (upstream: `DefaultContainerLogsDir`).
pub const CONTAINER_LOGS: &str = "/var/log/containers";
/// The file in [`POD_LOGS`] with the data directory of the node that uses it.
const OWNER: &str = ".kelson-node";
/// The file in a node's directory with the directory of its pod logs.
const CHOICE: &str = "kubelet/pod-logs-directory";

/// Returns the absolute directory of the pod logs for the node of a data directory. Logs why, if it is not
/// [`POD_LOGS`].
pub fn choose(data_dir: &Path) -> PathBuf {
    choose_in(data_dir, Path::new(POD_LOGS))
}

fn choose_in(data_dir: &Path, shared: &Path) -> PathBuf {
    let own = data_dir.join("kubelet").join("pod-logs");
    let choice = data_dir.join(CHOICE);
    if let Ok(chosen) = std::fs::read_to_string(&choice) {
        let chosen = PathBuf::from(chosen.trim());
        // A directory that was emptied is claimed again.
        if chosen != shared || claim(data_dir, shared).is_ok() {
            if chosen != shared {
                say(&chosen, "the directory was chosen at an earlier start");
            }
            return chosen;
        }
    }
    let chosen = match why_not(data_dir, &own, shared) {
        None => shared.to_owned(),
        Some(why) => {
            say(&own, &why);
            own
        }
    };
    // Not fatal: the choice is made again at the next start.
    let noted = choice.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = noted.and_then(|()| std::fs::write(&choice, chosen.display().to_string())) {
        tracing::warn!(%error, file = %choice.display(), "storing the choice of the pod log directory failed; it is chosen again at the next start");
    }
    chosen
}

fn say(chosen: &Path, why: &str) {
    tracing::info!(
        directory = %chosen.display(),
        why,
        "pod logs are not in {POD_LOGS}; point log collectors to this directory, or set podLogsDir in --kubelet-config"
    );
}

/// Returns why the shared directory cannot be this node's; `None` when it is claimed.
fn why_not(data_dir: &Path, own: &Path, shared: &Path) -> Option<String> {
    let has_any =
        |dir: &Path| std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|e| e.file_name() != OWNER));
    if has_any(own) {
        return Some("pods of this node already log there".to_owned());
    }
    match claim(data_dir, shared) {
        Err(why) => Some(why),
        Ok(Claim::Again) => None,
        // Another kubelet, for instance upstream's, uses it without a mark.
        Ok(Claim::New) if has_any(shared) => {
            let _ = std::fs::remove_file(shared.join(OWNER));
            Some(format!("{} has logs of another kubelet", shared.display()))
        }
        Ok(Claim::New) => None,
    }
}

enum Claim {
    /// No node had claimed it.
    New,
    /// This node had claimed it before.
    Again,
}

/// Claims the directory for this node.
fn claim(data_dir: &Path, shared: &Path) -> Result<Claim, String> {
    let text = |e: std::io::Error| format!("{}: {e}", shared.display());
    std::fs::create_dir_all(shared).map_err(text)?;
    let mark = shared.join(OWNER);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::options().write(true).create_new(true).open(&mark)?;
        file.write_all(data_dir.as_os_str().as_encoded_bytes())
    };
    match write() {
        Ok(()) => return Ok(Claim::New),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(text(e)),
    }
    let owner = PathBuf::from(std::fs::read_to_string(&mark).map_err(text)?.trim());
    if owner == data_dir {
        return Ok(Claim::Again);
    }
    if owner.join("kubelet").exists() {
        return Err(format!("{} belongs to the node in {}", shared.display(), owner.display()));
    }
    // That node was removed without `kelson cleanup`, so its logs belong to no pod. Two nodes that find this at the same instant
    // both claim the directory, and the later one wins.
    if let Some(error) = remove_pods(shared) {
        tracing::warn!(directory = %shared.display(), %error, "cannot remove the logs of a node that no longer exists");
    }
    std::fs::remove_file(&mark).and_then(|()| write()).map_err(text)?;
    Ok(Claim::Again)
}

/// Releases the shared directory if it is this node's; returns the error if something could not be removed.
pub fn give_back(data_dir: &Path) -> Option<String> {
    give_back_in(data_dir, Path::new(POD_LOGS))
}

fn give_back_in(data_dir: &Path, shared: &Path) -> Option<String> {
    let mark = shared.join(OWNER);
    let is_own = std::fs::read_to_string(&mark).is_ok_and(|owner| Path::new(owner.trim()) == data_dir);
    if !is_own {
        return None;
    }
    let mut failed = remove_pods(shared);
    // The links of containers whose logs are gone.
    kelson_kubelet::logs::links::sweep(Path::new(CONTAINER_LOGS));
    if failed.is_none()
        && let Err(e) = std::fs::remove_file(&mark)
    {
        failed = Some(format!("remove {}: {e}", mark.display()));
    }
    failed
}

/// Removes the directories of pods, and returns the first failure. Links and other programs' files stay.
fn remove_pods(shared: &Path) -> Option<String> {
    let mut failed = None;
    for (pod, _) in kelson_kubelet::logs::directories::of_pods(shared) {
        if let Err(e) = std::fs::remove_dir_all(&pod) {
            failed.get_or_insert(format!("remove {}: {e}", pod.display()));
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the data directory of a node, and returns it with its own log directory.
    fn node(base: &Path, name: &str) -> (PathBuf, PathBuf) {
        let dir = base.join(name);
        std::fs::create_dir_all(dir.join("kubelet")).unwrap();
        let own = dir.join("kubelet/pod-logs");
        (dir, own)
    }

    #[test]
    fn the_only_node_of_a_machine_logs_where_collectors_look() {
        let base = tempfile::tempdir().unwrap();
        let shared = base.path().join("var/log/pods");
        let (first, _) = node(base.path(), "first");
        let (second, second_own) = node(base.path(), "second");
        assert_eq!(choose_in(&first, &shared), shared);
        assert_eq!(choose_in(&second, &shared), second_own, "another node has it");
        std::fs::create_dir_all(shared.join("ns_p_uid")).unwrap();
        assert_eq!(choose_in(&first, &shared), shared, "its own pods are no reason to go elsewhere");
        // After the release the next node can claim it; a node that has chosen keeps its choice.
        assert_eq!(give_back_in(&second, &shared), None);
        assert!(shared.join("ns_p_uid").exists(), "it was not the second's to give back");
        assert_eq!(give_back_in(&first, &shared), None);
        assert!(!shared.join("ns_p_uid").exists());
        let (third, _) = node(base.path(), "third");
        assert_eq!(choose_in(&third, &shared), shared);
        assert_eq!(choose_in(&second, &shared), second_own);
        // A node that was removed with its directory holds nothing, and its logs are removed.
        std::fs::create_dir_all(shared.join("ns_q_uid/main")).unwrap();
        std::fs::create_dir_all(shared.join("of-another-program")).unwrap();
        std::fs::remove_dir_all(&third).unwrap();
        let (fourth, _) = node(base.path(), "fourth");
        assert_eq!(choose_in(&fourth, &shared), shared);
        assert!(!shared.join("ns_q_uid").exists());
        assert!(shared.join("of-another-program").exists());
    }

    #[test]
    fn logs_that_are_there_are_respected() {
        let base = tempfile::tempdir().unwrap();
        let shared = base.path().join("pods");
        std::fs::create_dir_all(shared.join("kube-system_etcd_1")).unwrap();
        let (dir, own) = node(base.path(), "a");
        assert_eq!(choose_in(&dir, &shared), own, "another kubelet logs there");
        assert!(!shared.join(OWNER).exists());
        let (upgraded, own) = node(base.path(), "b");
        std::fs::create_dir_all(own.join("ns_p_uid")).unwrap();
        assert_eq!(choose_in(&upgraded, &base.path().join("free")), own, "its pods log there since before");
        let (dir, own) = node(base.path(), "c");
        std::fs::write(base.path().join("file"), "").unwrap();
        assert_eq!(choose_in(&dir, &base.path().join("file/pods")), own, "one that cannot be made");
    }
}
