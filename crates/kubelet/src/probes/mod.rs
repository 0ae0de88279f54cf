//! Probes and lifecycle hooks: the handlers as an effect ([`ProbeRunner`]), and one small task per probe of a running
//! container that turns outcomes into results by thresholds. What a result leads to is the pod worker's decision.
mod exec;
mod grpc;
pub mod handlers;
mod http;
pub mod task;
mod tcp;
pub mod view;
pub mod words;

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Which probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Failing means a restart.
    Liveness,
    /// Failing means no traffic.
    Readiness,
    /// Holds the others back until it succeeded.
    Startup,
}

impl ProbeKind {
    /// As events begin.
    pub fn word(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
    /// The container's probe of this kind.
    pub fn of(self, c: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => c.liveness_probe.as_ref(),
            Self::Readiness => c.readiness_probe.as_ref(),
            Self::Startup => c.startup_probe.as_ref(),
        }
    }
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Good.
    Success,
    /// Not good, and why.
    Failure(String),
    /// The handler could not be run: counts as nothing.
    Unknown(String),
}

/// What a handler acts on.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Container ID.
    pub container_id: String,
    /// Address of the pod.
    pub pod_ip: String,
    /// Named ports of the container.
    pub ports: Vec<(String, i32)>,
}

impl Target {
    /// Of a container.
    pub fn new(c: &Container, container_id: &str, pod_ip: &str) -> Self {
        let ports = c.ports.iter().flatten().filter_map(|p| Some((p.name.clone()?, p.container_port))).collect();
        Self { container_id: container_id.to_owned(), pod_ip: pod_ip.to_owned(), ports }
    }
    /// A port by number or name.
    pub fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(n) => Some(*n),
            IntOrString::String(s) => {
                self.ports.iter().find(|(n, _)| n == s).map(|(_, p)| *p).or_else(|| s.parse().ok())
            }
        };
        let valid = number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        valid.ok_or_else(|| format!("couldn't find port: {port:?}"))
    }
}

/// A handler to run.
#[derive(Clone, Debug)]
pub enum Handler {
    /// A command in the container.
    Exec(ExecAction),
    /// An HTTP request.
    Http(HTTPGetAction),
    /// A TCP connection.
    Tcp(TCPSocketAction),
    /// gRPC health checking.
    Grpc(GRPCAction),
    /// Nothing, for a while.
    Sleep(Duration),
}

impl Handler {
    /// The handler of a probe.
    pub fn of_probe(p: &Probe) -> Option<Self> {
        p.exec
            .clone()
            .map(Self::Exec)
            .or_else(|| p.http_get.clone().map(Self::Http))
            .or_else(|| p.tcp_socket.clone().map(Self::Tcp))
            .or_else(|| p.grpc.clone().map(Self::Grpc))
    }
    /// The handler of a hook.
    pub fn of_hook(h: &LifecycleHandler) -> Option<Self> {
        h.exec
            .clone()
            .map(Self::Exec)
            .or_else(|| h.http_get.clone().map(Self::Http))
            .or_else(|| h.tcp_socket.clone().map(Self::Tcp))
            .or_else(|| {
                h.sleep.as_ref().map(|s| Self::Sleep(Duration::from_secs(u64::try_from(s.seconds).unwrap_or(0))))
            })
    }
}

/// Runs handlers.
#[async_trait]
pub trait ProbeRunner: Send + Sync + 'static {
    /// Runs one handler, for at most `limit`.
    async fn run(&self, handler: &Handler, target: &Target, limit: Duration) -> Outcome;
}
