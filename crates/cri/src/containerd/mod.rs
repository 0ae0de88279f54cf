//! The containerd that Kelson starts, configures and watches under its data directory when it is given no runtime of
//! its own choice. Containers are the shims' children and outlive both containerd and Kelson.

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
pub use config::{ContainerdConfig, Version};
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
        /// Name of the executable, as it was looked for in PATH.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// A file or process of the host.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A user's file of a runtime handler cannot be followed.
    #[error("runtime handler {}: {why}", path.display())]
    Handler {
        /// Where the file is.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The data directory's path leaves no room for a socket.
    #[error("{}: socket path is longer than {max} bytes; choose a shorter --data-dir", path.display())]
    PathTooLong {
        /// The socket's path.
        path: PathBuf,
        /// The most bytes that a path of a socket may have.
        max: usize,
    },
    /// containerd ended, or does not answer.
    #[error("containerd {what}; last lines of {}:\n{tail}", log.display())]
    NotReady {
        /// What became of the process or its socket.
        what: String,
        /// Where containerd says more.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A call to containerd failed.
    #[error("{what}: {source}")]
    Call {
        /// What was being done.
        what: String,
        /// What containerd answered to the call.
        source: crate::CriError,
    },
    /// An image archive cannot be used.
    #[error(transparent)]
    Archive(#[from] crate::image::ArchiveError),
    /// There is no pause program for this processor.
    #[error("no pause image for architecture {0}; give --container-runtime-endpoint")]
    NoPause(&'static str),
}

impl ContainerdError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ContainerdError {
        let what = what.into();
        move |source| ContainerdError::Io { what, source }
    }

    /// Blocking work that gave no result.
    pub(crate) fn lane(what: impl Into<String>) -> impl FnOnce(kelson_tasks::LaneError) -> ContainerdError {
        let what = what.into();
        move |source| ContainerdError::Io { what, source: std::io::Error::other(source) }
    }

    pub(crate) fn call(what: impl Into<String>) -> impl FnOnce(crate::CriError) -> ContainerdError {
        let what = what.into();
        move |source| ContainerdError::Call { what, source }
    }
}
