//! Why a container does not start, as its waiting state reports it.

/// Reason of a waiting state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// `ErrImagePull`: the pull failed.
    ImagePull,
    /// Another failure of the image, as the pull manager names it: `ImagePullBackOff`, `InvalidImageName` and others.
    Image(&'static str),
    /// `CreateContainerConfigError`: something that the specification refers to is missing or invalid.
    Config,
    /// `CreateContainerError`: the runtime could not create the container.
    Create,
    /// `RunContainerError`: the runtime could not start the container.
    Run,
    /// `PostStartHookError`: the container started and its postStart hook failed.
    PostStartHook,
}

impl StartReason {
    /// Value of `state.waiting.reason`.
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

    /// Converts the pull manager's reason.
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
    /// Creates an error with reason and message.
    pub fn new(reason: StartReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Why the pull manager could not be set up at start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory of pull records could not be created.
    #[error("cannot create {path}: {source}")]
    Directory {
        /// Path of the directory.
        path: String,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The configuration of credential providers is invalid; has every error.
    #[error(transparent)]
    CredentialProviders(#[from] kelson_credentials::config::ConfigError),
}
