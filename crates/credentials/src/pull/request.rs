//! What is asked of the pull manager, what it answers, and what it does to the world.
use std::time::Duration;

use async_trait::async_trait;

use crate::keyring::{Candidate, PullSecret};
use crate::plugin::PodIdentity;
use crate::records::Policy;
use crate::reference;

/// Limits and policy of a node's pulls.
#[derive(Clone, Debug, PartialEq)]
pub struct PullOptions {
    /// `serializeImagePulls`: one after the other.
    pub serialize: bool,
    /// `maxParallelImagePulls`, where not serialized; `None`: no limit.
    pub parallel_max: Option<usize>,
    /// `registryPullQPS`; zero: no limit.
    pub qps: f64,
    /// Pulls that may begin at once before the rate counts (`registryBurst`).
    pub burst: u32,
    /// The time without progress after which a pull is cancelled, if the runtime reports progress.
    pub progress_deadline: Option<Duration>,
    /// The policy for images that are already present.
    pub policy: Policy,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            serialize: true,
            parallel_max: None,
            qps: 5.0,
            burst: 10,
            progress_deadline: Some(Duration::from_secs(60)),
            policy: Policy::default(),
        }
    }
}

/// An image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The reference to run the image by; never empty.
    pub reference: String,
    /// The image's size on disk as the runtime says it, in bytes.
    pub size: u64,
    /// Numeric user, if it names one.
    pub uid: Option<i64>,
    /// Textual user, if it names one.
    pub user: String,
}

/// The effects of one call of [`PullManager::ensure`]; created for each call, so that it can contain sandbox, runtime
/// handler and object reference.
#[async_trait]
pub trait PullEffects: Send + Sync {
    /// Whether the image is there.
    async fn status(&self, image: &str) -> Result<Option<Present>, String>;
    /// Pulls; answers the runtime's reference. Dropping the call gives the pull up.
    async fn pull(&self, image: &str, auth: Option<&Candidate>) -> Result<String, String>;
    /// Bytes of the image that are there so far; `None`: the runtime does not say.
    async fn progress(&self, _image: &str) -> Option<u64> {
        None
    }
    /// Records an event of the container; `warning` or normal.
    fn event(&self, warning: bool, reason: &'static str, message: String);
}

/// When an image is pulled (`imagePullPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Asks the registry at every start of a container.
    Always,
    /// Pulls what is not there yet.
    IfNotPresent,
    /// Uses what is there or fails.
    Never,
}

impl PullPolicy {
    /// From the field, or from the image where the field is not set.
    pub fn of(field: Option<&str>, image: &str) -> Self {
        match field.filter(|f| !f.is_empty()).unwrap_or_else(|| reference::default_policy(image)) {
            "Always" => Self::Always,
            "Never" => Self::Never,
            _ => Self::IfNotPresent,
        }
    }
}

/// An image for a container.
#[derive(Debug)]
pub struct EnsureRequest<'a> {
    /// The pod whose secrets and service account are used.
    pub pod: &'a PodIdentity,
    /// The container's `image`.
    pub image: &'a str,
    /// When to pull.
    pub policy: PullPolicy,
    /// Pull secrets of the pod and its service account, as far as they could be read.
    pub secrets: &'a [PullSecret],
}

/// Why a container's image is not available: the reason and the message of its waiting state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct EnsureError {
    /// `ErrImagePull`, `ImagePullBackOff`, `ErrImageNeverPull`, `ImageInspectError`, `InvalidImageName`,
    /// `RegistryUnavailable`, `SignatureValidationFailed`.
    pub reason: &'static str,
    /// The error for the pod's events, without credentials.
    pub message: String,
}

impl EnsureError {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
