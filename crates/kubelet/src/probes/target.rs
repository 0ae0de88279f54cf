//! What a handler acts on, and how that ended.
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The container is well, as far as this handler can tell.
    Success,
    /// The container is well, and whoever wrote the probe should know this; the text of the event.
    Warning(String),
    /// The container is not well; the text of the event.
    Failure(String),
    /// It went well by another way than asked for: a hook over HTTPS whose server speaks plain HTTP. The text of the event.
    FellBack(String),
    /// The handler could not be run: counts as nothing.
    Unknown(String),
}

impl Outcome {
    /// As metrics name it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Success | Self::Warning(_) | Self::FellBack(_) => "successful",
            Self::Failure(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// What a handler acts on.
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
