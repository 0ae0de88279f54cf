//! The real handlers: commands through the runtime, connections from the node (upstream: `pkg/probe`).
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_cri::Runtime;
use tokio::net::TcpStream;

use super::{Handler, Outcome, ProbeRunner, Target, grpc, http};

/// Bytes of a command's output that are kept for messages.
pub const OUTPUT_MAX: usize = 10 * 1024;

/// Runs handlers on this machine.
pub struct Handlers {
    runtime: Arc<dyn Runtime>,
    http: http::Prober,
}

impl Handlers {
    /// Commands go to `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, http: http::Prober::new() }
    }

    async fn exec(&self, command: &[String], target: &Target, limit: Duration) -> Outcome {
        match self.runtime.exec_sync(&target.container_id, command.to_vec(), limit).await {
            Ok(out) if out.exit_code == 0 => Outcome::Success,
            Ok(out) => {
                let mut bytes = out.stdout;
                bytes.extend(out.stderr);
                bytes.truncate(OUTPUT_MAX);
                Outcome::Failure(String::from_utf8_lossy(&bytes).into_owned())
            }
            Err(e) if e.is_deadline_exceeded() => {
                let words: Vec<String> = command.iter().map(|c| format!("{c:?}")).collect();
                Outcome::Failure(format!("command timed out: {} timed out after {}s", words.join(" "), limit.as_secs()))
            }
            Err(e) => Outcome::Unknown(format!("rpc error: {e}")),
        }
    }
}

async fn tcp(host: &str, port: u16, limit: Duration) -> Outcome {
    match tokio::time::timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(e)) => Outcome::Failure(format!("dial tcp {}: connect: {}", address(host, port), os_text(&e))),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", address(host, port))),
    }
}

/// `host:port`, brackets for IPv6.
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A system error as Go words it.
pub fn os_text(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::ConnectionReset => "connection reset by peer".into(),
        std::io::ErrorKind::HostUnreachable => "no route to host".into(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        _ => e.to_string(),
    }
}

#[async_trait]
impl ProbeRunner for Handlers {
    async fn run(&self, handler: &Handler, target: &Target, limit: Duration) -> Outcome {
        match handler {
            Handler::Exec(e) => self.exec(e.command.as_deref().unwrap_or_default(), target, limit).await,
            Handler::Tcp(t) => match target.port(&t.port) {
                Ok(port) => {
                    let host = t.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(&target.pod_ip);
                    tcp(host, port, limit).await
                }
                Err(e) => Outcome::Unknown(e),
            },
            Handler::Http(h) => match target.port(&h.port) {
                Ok(port) => self.http.get(h, &target.pod_ip, port, limit).await,
                Err(e) => Outcome::Unknown(e),
            },
            Handler::Grpc(g) => match u16::try_from(g.port) {
                Ok(port) => grpc::check(&target.pod_ip, port, g.service.as_deref().unwrap_or_default(), limit).await,
                Err(_) => Outcome::Unknown(format!("invalid port {}", g.port)),
            },
            Handler::Sleep(d) => {
                tokio::time::sleep(*d).await;
                Outcome::Success
            }
        }
    }
}
