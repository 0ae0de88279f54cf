//! Handlers of probes and hooks, one file each (upstream: `pkg/probe`). A new handler needs a file, a variant of [`Handler`], and a branch
//! in `judge`.
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction};
use kelson_cri::Runtime;

use super::target::{Outcome, Target};
use super::{exec, grpc, http, tcp};

/// A handler to run.
#[derive(Clone, Debug)]
pub enum Handler {
    /// Runs a command in the container.
    Exec(ExecAction),
    /// Sends an HTTP request; the status code decides.
    Http(HTTPGetAction),
    /// Sends the HTTP request of a lifecycle hook; any response is a success.
    HttpHook(HTTPGetAction),
    /// Opens a TCP connection.
    Tcp(TCPSocketAction),
    /// Calls the gRPC health service.
    Grpc(GRPCAction),
    /// Sleeps for a duration.
    Sleep(Duration),
}

impl Handler {
    /// Returns the handler of a probe.
    pub fn of_probe(p: &Probe) -> Option<Self> {
        p.exec
            .clone()
            .map(Self::Exec)
            .or_else(|| p.http_get.clone().map(Self::Http))
            .or_else(|| p.tcp_socket.clone().map(Self::Tcp))
            .or_else(|| p.grpc.clone().map(Self::Grpc))
    }
    /// Returns the handler of a lifecycle hook.
    pub fn of_hook(h: &LifecycleHandler) -> Option<Self> {
        h.exec
            .clone()
            .map(Self::Exec)
            .or_else(|| h.http_get.clone().map(Self::HttpHook))
            .or_else(|| h.tcp_socket.clone().map(Self::Tcp))
            .or_else(|| {
                h.sleep.as_ref().map(|s| Self::Sleep(Duration::from_secs(u64::try_from(s.seconds).unwrap_or(0))))
            })
    }
}

/// Runs handlers of probes and hooks. A trait, so that tests need no containers.
#[async_trait]
pub trait ProbeRunner: Send + Sync + 'static {
    /// Runs one handler, for at most `limit`.
    async fn run(&self, handler: &Handler, target: &Target, limit: Duration) -> Outcome;
}

/// Runs handlers on this machine: commands through the runtime, connections from the node.
pub struct Handlers {
    runtime: Arc<dyn Runtime>,
    http: http::Prober,
}

impl Handlers {
    /// Creates the handlers; commands run through `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, http: http::Prober::new() }
    }

    async fn judge(&self, handler: &Handler, target: &Target, limit: Duration) -> Result<Outcome, String> {
        let ip = target.pod_ip.as_str();
        Ok(match handler {
            Handler::Exec(e) => {
                let command = e.command.as_deref().unwrap_or_default();
                exec::run(&*self.runtime, &target.container_id, command, limit).await
            }
            Handler::Tcp(t) => {
                let host = t.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip);
                tcp::connect(host, target.port(&t.port)?, limit).await
            }
            Handler::HttpHook(h) => self.http.call(h, ip, target.port(&h.port)?, limit).await,
            Handler::Http(h) => self.http.get(h, ip, target.port(&h.port)?, limit).await,
            Handler::Grpc(g) => {
                let port = u16::try_from(g.port).map_err(|_| format!("invalid port {}", g.port))?;
                grpc::check(ip, port, g.service.as_deref().unwrap_or_default(), limit).await
            }
            Handler::Sleep(d) => {
                tokio::time::sleep(*d).await;
                Outcome::Success
            }
        })
    }
}

#[async_trait]
impl ProbeRunner for Handlers {
    async fn run(&self, handler: &Handler, target: &Target, limit: Duration) -> Outcome {
        self.judge(handler, target, limit).await.unwrap_or_else(Outcome::Unknown)
    }
}
