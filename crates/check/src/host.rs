//! The machine as probes read it: its files below a root directory, and its programs; tests make both.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: before anything else is started, or by a command that does nothing else"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The intended use of the machine.
#[derive(Debug, Clone)]
pub struct Purpose {
    /// Runs the control plane.
    pub server: bool,
    /// Runs pods, as a node.
    pub node: bool,
    /// The data directory, absolute; it need not exist.
    pub data_dir: PathBuf,
    /// Port of the API.
    pub secure_port: u16,
    /// Port of the kubelet.
    pub kubelet_port: u16,
    /// Another container runtime's socket is used: Kelson starts no containerd.
    pub foreign_runtime: bool,
    /// When this program was built, in seconds since the Unix epoch: the clock cannot be earlier.
    pub built_s: i64,
}

/// Times of writes of 4 KiB that are each made durable, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured(pub Vec<Duration>);

/// A machine, real or made of files by a test.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    /// Output of programs by their command line; `None`: programs are run.
    outputs: Option<BTreeMap<String, String>>,
}

impl Host {
    /// The machine that this program runs on.
    pub fn this() -> Self {
        Self { root: "/".into(), outputs: None }
    }

    /// A simulated machine whose files are below a directory, and whose programs print the given outputs by command
    /// line.
    pub fn fake(root: &Path, outputs: &[(&str, &str)]) -> Self {
        let outputs = outputs.iter().map(|(command, text)| ((*command).to_owned(), (*text).to_owned())).collect();
        Self { root: root.to_owned(), outputs: Some(outputs) }
    }

    /// Whether this is the machine that the program runs on.
    pub fn is_real(&self) -> bool {
        self.outputs.is_none()
    }

    /// A path of the machine as this program opens it.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the content of a file. Empty if it cannot be read, which probes treat as absent.
    pub fn text(&self, path: impl AsRef<Path>) -> String {
        std::fs::read(self.path(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Whether a path is there.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Names in a directory, sorted; none where it cannot be read.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the target of a link.
    pub fn link(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        std::fs::read_link(self.path(path)).ok()
    }

    /// Returns the path of a program in the directories in which services find theirs.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let search = std::env::var("PATH").unwrap_or_default();
        let usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let dirs = search.split(':').filter(|_| self.is_real()).chain(usual.split(':')).filter(|dir| !dir.is_empty());
        dirs.map(|dir| Path::new(dir).join(name)).find(|path| self.path(path).is_file())
    }

    /// Returns the output of a program; `None` when it does not exist or fails.
    pub fn output(&self, command: &[&str]) -> Option<String> {
        if let Some(outputs) = &self.outputs {
            return outputs.get(&command.join(" ")).cloned();
        }
        let (program, args) = command.split_first()?;
        let program = self.program(program)?;
        let out = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

/// The directory itself, or the nearest one above it that exists.
pub fn nearest(host: &Host, dir: &Path) -> PathBuf {
    dir.ancestors().find(|dir| host.has(dir)).unwrap_or(Path::new("/")).to_owned()
}
