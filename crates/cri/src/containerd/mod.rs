//! The containerd that Kelson starts, configures and supervises in its data directory when no other runtime is
//! configured. Containers are the shims' children and outlive both containerd and Kelson.

mod cleanup;
mod config;
mod handlers;
mod import;
mod preload;
pub(crate) mod process;
mod programs;
mod shims;
mod supervisor;

pub use cleanup::{cleanup, remove_from_runtime};
pub use config::{ContainerdConfig, ProcessScope, Version};
pub use import::{ImportedImage, Importer};
pub use preload::load_into;
pub use supervisor::Containerd;

use std::path::PathBuf;

/// Why there is no working containerd.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// A program that containers need is not installed.
    #[error("{program} not found in PATH; install {package} or give --container-runtime-endpoint")]
    Missing {
        /// The name of the executable that is not in PATH.
        program: &'static str,
        /// The package that contains it.
        package: &'static str,
    },
    /// An error with a file or process of the host.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed, for the message.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A user's file of a runtime handler is invalid.
    #[error("runtime handler {}: {why}", path.display())]
    Handler {
        /// The path of the file.
        path: PathBuf,
        /// The error that was found.
        why: String,
    },
    /// The data directory's path is too long for a socket.
    #[error("{}: socket path is longer than {max} bytes; choose a shorter --data-dir", path.display())]
    PathTooLong {
        /// The path of the socket.
        path: PathBuf,
        /// The maximum length of a socket path in bytes.
        max: usize,
    },
    /// containerd ended, or does not answer.
    #[error("containerd {what}; last lines of {}:\n{tail}", log.display())]
    NotReady {
        /// The event of the process or its socket.
        what: String,
        /// The path of its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A call to containerd failed.
    #[error("{what}: {source}")]
    Call {
        /// The operation that failed, for the message.
        what: String,
        /// The error of the call.
        source: crate::CriError,
    },
    /// An image archive is invalid.
    #[error(transparent)]
    Archive(#[from] crate::image::ArchiveError),
    /// There is no pause program for this CPU architecture.
    #[error("no pause image for architecture {0}; give --container-runtime-endpoint")]
    NoPause(&'static str),
}

impl ContainerdError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ContainerdError {
        let what = what.into();
        move |source| ContainerdError::Io { what, source }
    }

    /// Converts the error of blocking work without a result.
    pub(crate) fn lane(what: impl Into<String>) -> impl FnOnce(kelson_tasks::LaneError) -> ContainerdError {
        let what = what.into();
        move |source| ContainerdError::Io { what, source: std::io::Error::other(source) }
    }

    pub(crate) fn call(what: impl Into<String>) -> impl FnOnce(crate::CriError) -> ContainerdError {
        let what = what.into();
        move |source| ContainerdError::Call { what, source }
    }
}
