//! Why a plugin gave no credentials, in words that hold none.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::protocol::ResponseError;

/// The kind of a fault; the word in events and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultReason {
    /// The executable cannot be started.
    Start,
    /// Killed after its time was over.
    Timeout,
    /// Ended with a status other than zero, or by a signal.
    Exit,
    /// More output than allowed.
    TooLarge,
    /// No JSON, or fields that do not belong.
    InvalidResponse,
    /// Another `apiVersion` than configured.
    WrongApiVersion,
    /// The answer's `kind` is not `CredentialProviderResponse`.
    WrongKind,
    /// The token came back as a password, and is not to be kept for other pods.
    EchoedToken,
    /// The service account could not be read.
    ServiceAccount,
    /// No token for the service account.
    Token,
    /// Too soon after a failure.
    BackOff,
    /// The run was ended from outside.
    Cancelled,
}

impl FaultReason {
    pub(super) fn of(e: &ResponseError) -> Self {
        match e {
            ResponseError::ApiVersion { .. } => Self::WrongApiVersion,
            ResponseError::Kind => Self::WrongKind,
            _ => Self::InvalidResponse,
        }
    }

    /// Whether it speaks of one pod's identity only, so that other pods should try for themselves.
    pub(super) fn of_one_pod(self) -> bool {
        matches!(self, Self::Token | Self::ServiceAccount)
    }
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The error of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFault {
    /// The class of the error, used by metrics and events.
    pub reason: FaultReason,
    /// One sentence, free of credentials.
    pub message: String,
    /// Tail of stderr, bounded and free of credentials; empty: nothing was written.
    pub stderr: String,
}

impl PluginFault {
    /// Creates an error; the caller guarantees that no part contains a credential.
    pub fn new(reason: FaultReason, message: impl Into<String>, stderr: impl Into<String>) -> Self {
        Self { reason, message: message.into(), stderr: stderr.into() }
    }
}

/// Why a provider gave no answer for an image, for the pod's owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error execing credential provider plugin {plugin} for image {image}: {}", words(.fault))]
pub struct PluginError {
    /// Name of the provider.
    pub plugin: String,
    /// Repository that credentials were wanted for.
    pub image: String,
    /// The fault; shared by all that waited for the same run.
    pub fault: Arc<PluginFault>,
    /// The duration of the run.
    pub took: Duration,
    /// Whether the error is new, not a cached one.
    pub fresh: bool,
}

fn words(fault: &PluginFault) -> String {
    match fault.stderr.is_empty() {
        true => fault.message.clone(),
        false => format!("{}: {}", fault.message, fault.stderr),
    }
}
