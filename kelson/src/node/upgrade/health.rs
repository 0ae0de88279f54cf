//! Whether the server or agent of a data directory works after a restart: another process has the data directory, its API is ready, and
//! its node, if it had one that worked, is ready and has been heard of since.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError};
use kelson_pki::CertInfo;
use serde::Deserialize;

use crate::certificate;
use crate::node::servers;
use crate::node::status::gather;

/// The interval at which the service is checked.
const TURN: Duration = Duration::from_secs(1);
/// The time for which the service must be healthy without a break. A process that ends soon after its start does not
/// reach it.
const STEADY: Duration = Duration::from_secs(5);
/// The time that one look may take.
const LOOK_MAX: Duration = Duration::from_secs(20);
/// A node whose lease is older than this does not work.
const LEASE_MAX_S: i64 = 60;
/// The namespace of nodes' leases.
const LEASES: &str = "kube-node-lease";

/// The parts that worked before the restart.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// The process with the data directory.
    pub pid: Option<u32>,
    /// Whether its node was ready.
    pub node_works: bool,
    /// The minor version of the API server that the node belongs to.
    pub server_minor: Option<u16>,
}

/// A node's own way to the API.
struct NodeClient {
    client: Client,
    name: String,
}

impl NodeClient {
    /// Reads the kubelet's certificate. Returns `None` if the data directory has no node.
    fn of(dir: &Path) -> Option<Self> {
        let pem = certificate::kubelet_certificate(dir)?;
        let name = CertInfo::from_pem(&pem).ok()?.common_name.strip_prefix("system:node:")?.to_owned();
        let config = servers::among_known(dir, Config::load(&dir.join("kubelet").join("kubeconfig")).ok()?);
        Some(Self { client: Client::new(Arc::new(Remote::new(config).ok()?), "upgrade"), name })
    }

    /// Whether the node is ready and has renewed its lease since then.
    async fn works(&self, since: Timestamp) -> Result<(), String> {
        let fault = |e: ClientError| format!("node {}: {e}", self.name);
        let node: Node = self.client.get("", &self.name).await.map_err(fault)?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        match conditions.iter().find(|condition| condition.type_ == "Ready") {
            Some(condition) if condition.status == "True" => {}
            Some(condition) => {
                return Err(format!(
                    "node {} is not ready: {}",
                    self.name,
                    condition.message.as_deref().unwrap_or_default()
                ));
            }
            None => return Err(format!("node {} has not reported yet", self.name)),
        }
        let lease: Lease = self.client.get(LEASES, &self.name).await.map_err(fault)?;
        match lease.spec.and_then(|spec| spec.renew_time) {
            Some(renewed) if renewed.0 >= since => Ok(()),
            _ => Err(format!("node {} has not been heard of since the restart", self.name)),
        }
    }

    async fn server_minor(&self) -> Option<u16> {
        #[derive(Deserialize)]
        struct Version {
            minor: String,
        }
        let answer = self.client.call(http::Method::GET, "/version", "", bytes::Bytes::new()).await.ok()?;
        let version: Version = kelson_meta::from_json(&answer).ok()?;
        version.minor.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
    }
}

/// Returns the parts that work in a data directory now.
pub async fn before(dir: &Path, pid: Option<u32>, is_server: bool) -> Before {
    let mut before = Before { pid, ..Before::default() };
    let Some(node) = pid.and_then(|_| NodeClient::of(dir)) else { return before };
    let since = Timestamp::now() - Duration::from_secs(LEASE_MAX_S.unsigned_abs());
    let asked = async {
        before.node_works = node.works(since).await.is_ok();
        // A server's own node is of its version in any case.
        before.server_minor = if is_server { None } else { node.server_minor().await };
    };
    // Without an answer it counts as not working, and is not waited for later.
    let _ = tokio::time::timeout(LOOK_MAX, asked).await;
    before
}

/// Waits until the service works, steadily, and gives the ID of its process; or what is missing when `limit` is over.
pub async fn wait(dir: &Path, before: &Before, restarted: Timestamp, limit: Duration) -> Result<u32, String> {
    let look = async || -> Result<u32, String> {
        let late = |_| format!("no answer within {} s", LOOK_MAX.as_secs());
        tokio::time::timeout(LOOK_MAX, works(dir, before, restarted)).await.map_err(late)?
    };
    steady(look, limit).await
}

/// Looks again and again until the same process has been healthy for [`STEADY`]. It must be healthy when `limit` is over, and may then
/// still have to show that it stays so.
async fn steady(mut look: impl AsyncFnMut() -> Result<u32, String>, limit: Duration) -> Result<u32, String> {
    let begun = tokio::time::Instant::now();
    let mut healthy: Option<(u32, tokio::time::Instant)> = None;
    loop {
        let now = tokio::time::Instant::now();
        let (missing, limit) = match look().await {
            Ok(pid) => {
                let (same, since) = healthy.filter(|(same, _)| *same == pid).unwrap_or((pid, now));
                if now.duration_since(since) >= STEADY {
                    return Ok(pid);
                }
                healthy = Some((same, since));
                (format!("process {pid} works only since {} s", now.duration_since(since).as_secs()), limit + STEADY)
            }
            Err(missing) => {
                healthy = None;
                (missing, limit)
            }
        };
        if begun.elapsed() >= limit {
            return Err(missing);
        }
        tokio::time::sleep(TURN).await;
    }
}

async fn works(dir: &Path, before: &Before, restarted: Timestamp) -> Result<u32, String> {
    let facts = gather::gather(dir).await.map_err(|e| e.to_string())?;
    let Some(process) = facts.process else { return Err("no process runs with the data directory".to_owned()) };
    if before.pid == Some(process.pid) {
        return Err(format!("process {} has not ended yet", process.pid));
    }
    match facts.api {
        Some(api) => {
            if let Some(why) = api.not_ready {
                return Err(format!("the API is not ready: {why}"));
            }
        }
        None if facts.is_server => return Err("the API cannot be asked".to_owned()),
        None => {}
    }
    if before.node_works {
        match NodeClient::of(dir) {
            Some(node) => node.works(restarted).await?,
            None => return Err("the node's certificate cannot be read".to_owned()),
        }
    }
    Ok(process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks that give these results, the last one again and again; what [`steady`] makes of them and how long it takes, in seconds.
    async fn outcome(looks: &[Result<u32, &str>], limit_s: u64) -> (Result<u32, String>, u64) {
        let mut looks = looks.iter().map(|look| look.map_err(str::to_owned)).collect::<std::collections::VecDeque<_>>();
        let begun = tokio::time::Instant::now();
        let look = async || if looks.len() > 1 { looks.pop_front().unwrap() } else { looks[0].clone() };
        (steady(look, Duration::from_secs(limit_s)).await, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_healthy_when_it_stays_so() {
        assert_eq!(outcome(&[Ok(7)], 60).await, (Ok(7), 5));
        assert_eq!(outcome(&[Err("starts"), Err("starts"), Ok(7)], 60).await, (Ok(7), 7));
        // It ends again and again, and is another process each time.
        let looks = [Ok(7), Ok(7), Err("gone"), Ok(8), Ok(8), Ok(8), Ok(9), Err("gone")];
        assert_eq!(outcome(&looks, 30).await, (Err("gone".to_owned()), 30));
        // Healthy within the limit, and beyond it.
        assert_eq!(outcome(&[Err("starts"), Err("starts"), Ok(7)], 3).await, (Ok(7), 7));
        assert_eq!(outcome(&[Err("starts")], 10).await, (Err("starts".to_owned()), 10));
    }
}
