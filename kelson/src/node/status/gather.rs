//! Gathers what `kelson status` shows: files of the data directory, `/proc`, the API and the runtime, each of which may be missing.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kelson_check::Host;
use kelson_client::{Client, ListParams};
use kelson_cri::{CriClient, CriResult, Limits, Runtime as _};
use kelson_meta::version;

use super::facts::{ApiFacts, CertificateFacts, ContainerFacts, DiskRoom, Facts, NodeFacts, ProcessFacts};
use crate::lock::DataDirLock;
use crate::node::cleanup;
use crate::{certificate, token};

/// How long a server or runtime may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// State of a sandbox that runs (`PodSandboxState`).
const SANDBOX_READY: i32 = 0;

/// Everything there is to know.
///
/// # Errors
/// The directory is not there or cannot be read.
pub async fn gather(dir: &Path) -> anyhow::Result<Facts> {
    let dir = dir.canonicalize().with_context(|| format!("data directory {}", dir.display()))?;
    if !["kelson.lock", "pki", "kubelet"].iter().any(|name| dir.join(name).exists()) {
        bail!("{} is not the data directory of a server or agent", dir.display());
    }
    let host = Host::this();
    let pid = holder(&dir)?;
    let is_server = dir.join("pki").join("ca.crt").exists();
    let client = if is_server && pid.is_some() { token::admin(&dir).ok() } else { None };
    let api = match &client {
        Some(client) => Some(ask(client).await),
        None => None,
    };
    let containers = match cleanup::runtime_endpoint(&dir) {
        Some(endpoint) => Some(containers(endpoint).await),
        None => None,
    };
    let processes = kelson_check::processes(&host);
    let facts = |pid: u32| ProcessFacts {
        pid,
        command: processes.iter().find(|p| p.pid == pid).map(|p| p.command.clone()).unwrap_or_default(),
        resident_bytes: resident(&host.text(format!("/proc/{pid}/status"))),
    };
    // Its own containerd names its configuration, shims name the socket: both are in the directory.
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
        certificates: certificates.collect(),
        disk: room(&dir),
        containers,
        data_dir: dir,
    })
}

/// The process that has the directory's lock.
///
/// # Errors
/// The lock's file cannot be opened.
pub fn holder(dir: &Path) -> anyhow::Result<Option<u32>> {
    let file = dir.join("kelson.lock");
    if !file.exists() || DataDirLock::is_free(dir)? {
        return Ok(None);
    }
    Ok(std::fs::read_to_string(&file).ok().and_then(|pid| pid.trim().parse().ok()))
}

/// `VmRSS` of `/proc/PID/status`, bytes.
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

/// Whether the API's server is ready, and which nodes it has.
async fn ask(client: &Client) -> ApiFacts {
    let late = || format!("no answer within {} s", ANSWER_MAX.as_secs());
    let ready = tokio::time::timeout(ANSWER_MAX, client.call(Method::GET, "/readyz", "", Bytes::new())).await;
    let not_ready = match ready {
        Ok(Ok(_)) => None,
        Ok(Err(e)) => Some(e.to_string()),
        Err(_) => Some(late()),
    };
    let nodes = tokio::time::timeout(ANSWER_MAX, client.list::<Node>("", &ListParams::default())).await;
    let nodes = nodes.ok().and_then(Result::ok).map(|list| list.items).unwrap_or_default();
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
