//! Why a container does not start, as its waiting state says it.

/// The reason of a waiting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// The image was asked for and did not come.
    ImagePull,
    /// Another fault of the image, in the words of the pull: `ImagePullBackOff`, `InvalidImageName` …
    Image(&'static str),
    /// Something the container's specification refers to is missing or cannot be used.
    Config,
    /// The runtime did not make the container.
    Create,
    /// The runtime made it and did not start it.
    Run,
    /// It was started, and its postStart hook failed.
    PostStartHook,
}

impl StartReason {
    /// As `state.waiting.reason` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ImagePull => "ErrImagePull",
            Self::Image(word) => word,
            Self::Config => "CreateContainerConfigError",
            Self::Create => "CreateContainerError",
            Self::Run => "RunContainerError",
            Self::PostStartHook => "PostStartHookError",
        }
    }

    /// From the word of an image pull.
    pub fn of_image(word: &'static str) -> Self {
        if word == Self::ImagePull.as_str() { Self::ImagePull } else { Self::Image(word) }
    }
}

/// Why a container does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// Reason of the waiting state.
    pub reason: StartReason,
    /// Message of the waiting state.
    pub message: String,
}

impl StartError {
    /// From its parts.
    pub fn new(reason: StartReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Why the pulls could not be set up at the kubelet's start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory of the pulls' records could not be made.
    #[error("cannot create {path}: {source}")]
    Directory {
        /// Which directory it was.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The credential providers' configuration is not sound; every fault at once.
    #[error(transparent)]
    CredentialProviders(#[from] kelson_credentials::config::ConfigError),
}
