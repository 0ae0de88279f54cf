//! Target of a handler, and the outcome.
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler succeeded.
    Success,
    /// The handler succeeded with a warning; the value is the event's message.
    Warning(String),
    /// The handler failed; the value is the event's message.
    Failure(String),
    /// An HTTPS hook succeeded over HTTP, because the server does not support TLS; the value is the event's message.
    FellBack(String),
    /// The handler could not run; the attempt does not count.
    Unknown(String),
}

impl Outcome {
    /// Label value in metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Success | Self::Warning(_) | Self::FellBack(_) => "successful",
            Self::Failure(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// The container that a handler is for.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The runtime's ID of the container.
    pub container_id: String,
    /// Address of the pod.
    pub pod_ip: String,
    /// Named ports of the container.
    pub ports: Vec<(String, i32)>,
}

impl Target {
    /// Creates the target of a container.
    pub fn new(c: &Container, container_id: &str, pod_ip: &str) -> Self {
        let ports = c.ports.iter().flatten().filter_map(|p| Some((p.name.clone()?, p.container_port))).collect();
        Self { container_id: container_id.to_owned(), pod_ip: pod_ip.to_owned(), ports }
    }
    /// Resolves a port by number or name.
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
