//! Reads the state that `kelson status` shows: files of the data directory, `/proc`, the API and the runtime, each of
//! which may be missing.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kelson_check::Host;
use kelson_client::{Client, ListParams};
use kelson_cri::{CriClient, CriResult, Limits, Runtime as _};
use kelson_members::Cluster;
use kelson_meta::version;

use super::facts::{
    ApiFacts, CertificateFacts, ContainerFacts, DiskRoom, Facts, MembersFacts, NodeFacts, ProcessFacts,
};
use crate::lock::LOCK_FILE;
use crate::node::cleanup;
use crate::{ask, certificate, token};

/// The timeout for an answer of the server or the runtime.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The state of a running sandbox (`PodSandboxState`).
const SANDBOX_READY: i32 = 0;

/// Reads the whole state.
///
/// # Errors
/// The directory does not exist or cannot be read.
pub async fn gather(dir: &Path) -> anyhow::Result<Facts> {
    let dir = dir.canonicalize().with_context(|| format!("data directory {}", dir.display()))?;
    if ![LOCK_FILE, "pki", "kubelet"].iter().any(|name| dir.join(name).exists()) {
        bail!("{} is not the data directory of a server or agent", dir.display());
    }
    let host = Host::this();
    let pid = holder(&dir)?;
    let is_server = dir.join("pki").join("ca.crt").exists();
    let client = if is_server && pid.is_some() { token::admin(&dir).ok() } else { None };
    let api = match &client {
        Some(client) => Some(about_api(client).await),
        None => None,
    };
    let containers = match cleanup::runtime_endpoint(&dir) {
        Some(endpoint) => Some(containers(endpoint).await),
        None => None,
    };
    let members = members(&dir, pid.is_some()).await;
    let processes = kelson_check::processes(&host);
    let facts = |pid: u32| ProcessFacts {
        pid,
        command: processes.iter().find(|p| p.pid == pid).map(|p| p.command.clone()).unwrap_or_default(),
        resident_bytes: resident(&host.text(format!("/proc/{pid}/status"))),
    };
    // The command line of Kelson's containerd has its configuration file, that of shims the socket: both are in the
    // directory.
    let below = format!("{}/containerd/", dir.display());
    let runtime = processes.iter().filter(|p| Some(p.pid) != pid && p.command.contains(&below)).map(|p| facts(p.pid));
    let listens = pid.map(|pid| kelson_check::listens(&host, pid)).unwrap_or_default();
    let certificates = certificate::find(&dir).into_iter().map(|row| CertificateFacts {
        name: row.name,
        expires: row.ends,
        renewed: row.renewed,
    });
    Ok(Facts {
        time: Timestamp::now(),
        version: version::KELSON_VERSION.to_owned(),
        is_server,
        process: pid.map(facts),
        runtime: runtime.collect(),
        listens,
        api,
        members,
        certificates: certificates.collect(),
        disk: room(&dir),
        containers,
        data_dir: dir,
    })
}

/// Returns the process that has the directory's lock: the lock file has its process ID, and it has the file open. The
/// lock itself is not tried, because a server that starts at the same time would find it in use.
///
/// # Errors
/// The open files of the process cannot be read.
pub fn holder(dir: &Path) -> anyhow::Result<Option<u32>> {
    let file = dir.join(LOCK_FILE);
    let Ok(text) = std::fs::read_to_string(&file) else { return Ok(None) };
    let Ok(pid) = text.trim().parse::<u32>() else { return Ok(None) };
    let is_open = has_open(pid, &file).with_context(|| format!("read the open files of process {pid}"))?;
    Ok(is_open.then_some(pid))
}

/// Whether a process has a file open.
///
/// # Errors
/// The process belongs to another user.
fn has_open(pid: u32, file: &Path) -> std::io::Result<bool> {
    let identity = |about: std::fs::Metadata| (about.dev(), about.ino());
    let wanted = identity(std::fs::metadata(file)?);
    let open_files = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        open_files => open_files?,
    };
    let mut found = open_files.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok()).map(identity);
    Ok(found.any(|identity| identity == wanted))
}

/// Returns `VmRSS` of `/proc/PID/status` in bytes.
fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn room(dir: &Path) -> DiskRoom {
    let stat = rustix::fs::statvfs(dir).ok();
    stat.map(|s| DiskRoom {
        total_bytes: s.f_blocks.saturating_mul(s.f_frsize),
        free_bytes: s.f_bavail.saturating_mul(s.f_frsize),
    })
    .unwrap_or_default()
}

/// Reads whether the API server is ready, and its nodes.
async fn about_api(client: &Client) -> ApiFacts {
    let not_ready = ask::get(client, "/readyz", ANSWER_MAX).await.err().map(|e| e.to_string());
    let nodes = ask::within(ANSWER_MAX, client.list::<Node>("", &ListParams::default())).await;
    let nodes = nodes.map(|list| list.items).unwrap_or_default();
    ApiFacts { not_ready, nodes: nodes.iter().map(node).collect() }
}

fn node(node: &Node) -> NodeFacts {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let not_ready = match ready {
        Some(condition) if condition.status == "True" => None,
        Some(condition) => Some(condition.message.clone().or_else(|| condition.reason.clone()).unwrap_or_default()),
        None => Some("it has not reported yet".to_owned()),
    };
    NodeFacts {
        name: node.metadata.name.clone().unwrap_or_default(),
        not_ready,
        version: status
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
        unschedulable: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default(),
    }
}

/// Lists the etcd members through that of this server; `None` if it has none or does not run.
async fn members(dir: &Path, runs: bool) -> Option<MembersFacts> {
    let has_member = kelson_members::settings(dir).await.is_ok_and(|settings| settings.is_some());
    if !has_member || !runs {
        return None;
    }
    let listed = async { Cluster::open(dir).await?.list().await };
    let (unavailable, members) = match tokio::time::timeout(ANSWER_MAX * 2, listed).await {
        Ok(Ok(members)) => (None, members),
        Ok(Err(e)) => (Some(e.to_string()), Vec::new()),
        Err(_) => (Some("no answer in time".to_owned()), Vec::new()),
    };
    Some(MembersFacts { unavailable, members })
}

async fn containers(endpoint: String) -> ContainerFacts {
    let asked = async {
        let client = CriClient::new(&endpoint, Limits { request: ANSWER_MAX })?;
        let version = client.version().await?;
        let (images, sandboxes) = (client.list_images(None).await?, client.list_pod_sandbox(None).await?);
        CriResult::Ok((format!("{} {}", version.runtime_name, version.runtime_version), images, sandboxes))
    };
    let (runtime, images, sandboxes) = match asked.await {
        Ok(answers) => answers,
        Err(e) => return ContainerFacts { endpoint, unavailable: Some(e.to_string()), ..ContainerFacts::default() },
    };
    ContainerFacts {
        endpoint,
        runtime,
        unavailable: None,
        images: images.len(),
        image_bytes: images.iter().map(|image| image.size).sum(),
        pods: sandboxes.iter().filter(|sandbox| sandbox.state == SANDBOX_READY).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::DataDirLock;

    #[test]
    fn a_look_never_keeps_a_server_from_starting() {
        const STARTS: u32 = 500;
        let dir = tempfile::tempdir().unwrap();
        drop(DataDirLock::take(dir.path()).unwrap());
        let has_ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(std::sync::atomic::Ordering::Relaxed) {
                    holder(dir.path()).unwrap();
                }
            });
            let failed = (0..STARTS).filter(|_| DataDirLock::take(dir.path()).is_err()).count();
            has_ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(failed, 0, "starts that found the directory in use");
        });
    }

    #[test]
    fn another_process_with_the_number_is_not_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(LOCK_FILE);
        std::fs::write(&lock, std::process::id().to_string()).unwrap();
        assert_eq!(holder(dir.path()).unwrap(), None, "the number was given to another process");
        let open = std::fs::File::open(&lock).unwrap();
        assert_eq!(holder(dir.path()).unwrap(), Some(std::process::id()));
        drop(open);
        std::fs::write(&lock, "x").unwrap();
        assert_eq!(holder(dir.path()).unwrap(), None);
    }

    #[tokio::test]
    async fn a_directory_without_a_process_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        assert!(gather(dir.path()).await.is_err(), "an empty directory is no data directory");
        let held = DataDirLock::take(dir.path()).unwrap();
        let facts = gather(dir.path()).await.unwrap();
        assert_eq!(facts.process.map(|process| process.pid), Some(std::process::id()));
        drop(held);
        let facts = gather(dir.path()).await.unwrap();
        assert!(facts.process.is_none() && facts.api.is_none() && facts.disk.total_bytes > 0);
    }

    #[test]
    fn memory_of_a_process() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t   2048 kB\n"), 2 << 20);
        assert_eq!(resident(""), 0);
    }
}
