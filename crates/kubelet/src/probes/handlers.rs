//! The real handlers of probes and hooks, one file each (upstream: `pkg/probe`). A new one is its file, a variant of
//! [`Handler`] with its field of the API, and its line here.
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_cri::Runtime;

use super::{Handler, Outcome, ProbeRunner, Target, exec, grpc, http, tcp};

/// Runs handlers on this machine: commands through the runtime, connections from the node.
pub struct Handlers {
    runtime: Arc<dyn Runtime>,
    http: http::Prober,
}

impl Handlers {
    /// Commands go to `runtime`.
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
