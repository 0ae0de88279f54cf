//! Runtime handlers in addition to runc, for `RuntimeClass` objects: those whose programs are installed, and those in
//! users' files.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::ContainerdError;
use super::programs::{find_program, quote};

/// The way in which containerd runs a handler's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shim {
    /// With containerd's shim for runc, and another program with the same command line.
    Runc,
    /// With a separate shim, by the name of its runtime type.
    Own(&'static str),
}

/// The known handlers: name, program, shim. The names are those in the projects' RuntimeClass examples.
const KNOWN: [(&str, &str, Shim); 10] = [
    ("crun", "crun", Shim::Runc),
    ("youki", "youki", Shim::Runc),
    ("nvidia", "nvidia-container-runtime", Shim::Runc),
    ("nvidia-cdi", "nvidia-container-runtime.cdi", Shim::Runc),
    ("kata", "containerd-shim-kata-v2", Shim::Own("io.containerd.kata.v2")),
    ("runsc", "containerd-shim-runsc-v1", Shim::Own("io.containerd.runsc.v1")),
    ("spin", "containerd-shim-spin-v2", Shim::Own("io.containerd.spin.v2")),
    ("wasmtime", "containerd-shim-wasmtime-v1", Shim::Own("io.containerd.wasmtime.v1")),
    ("wasmedge", "containerd-shim-wasmedge-v1", Shim::Own("io.containerd.wasmedge.v1")),
    ("wasmer", "containerd-shim-wasmer-v1", Shim::Own("io.containerd.wasmer.v1")),
];

/// A handler in addition to runc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handler {
    /// A handler whose program is installed.
    Installed {
        /// The name in a RuntimeClass.
        name: &'static str,
        /// The path of its program.
        program: PathBuf,
        /// The shim that runs the program.
        shim: Shim,
    },
    /// A handler in a user's file.
    Own {
        /// The name, which is that of the file.
        name: String,
        /// The file's tables below the handler's own; the first is that one itself, without a name.
        tables: Vec<(String, Vec<String>)>,
    },
}

impl Handler {
    fn name(&self) -> &str {
        match self {
            Self::Installed { name, .. } => name,
            Self::Own { name, .. } => name,
        }
    }
}

/// Returns the handlers of this machine: those that are installed, and those of files `NAME.toml` in `dir`, which
/// override installed ones with the same name.
///
/// # Errors
/// A file whose name or content is invalid.
pub(crate) fn all(dir: &Path) -> Result<Vec<Handler>, ContainerdError> {
    let mut handlers = own(dir)?;
    let found = |(name, program, shim): (&'static str, &'static str, Shim)| {
        find_program(program, program).ok().map(|program| Handler::Installed { name, program, shim })
    };
    let installed: Vec<Handler> = KNOWN.into_iter().filter_map(found).collect();
    handlers
        .extend(installed.into_iter().filter(|i| !handlers.iter().any(|h| h.name() == i.name())).collect::<Vec<_>>());
    Ok(handlers)
}

/// Returns the directory of users' handler files, in containerd's directory.
pub(crate) fn own_dir(dir: &Path) -> PathBuf {
    dir.join("runtimes")
}

fn own(dir: &Path) -> Result<Vec<Handler>, ContainerdError> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    paths.sort();
    let read = |path: PathBuf| {
        let fail = |why: String| ContainerdError::Handler { path: path.clone(), why };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_label = !name.is_empty()
            && name.len() <= 63
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !is_label || name == "runc" {
            return Err(fail("a handler must have a valid RuntimeClass handler name other than runc".to_owned()));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| fail(e.to_string()))?;
        let tables = tables(&text).map_err(fail)?;
        if !tables[0].1.iter().any(|line| line.split('=').next().is_some_and(|key| key.trim() == "runtime_type")) {
            return Err(fail("it has no runtime_type".to_owned()));
        }
        Ok(Handler::Own { name, tables })
    };
    paths.into_iter().map(read).collect()
}

/// Parses the tables of a file; the first is what precedes any table. Supports the part of TOML that handlers need,
/// with each setting on one line.
fn tables(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut tables = vec![(String::new(), Vec::new())];
    for (number, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let is_name = !name.is_empty() && !name.contains(['[', ']', ' ', '\n']);
            if !is_name {
                return Err(format!("line {number}: must be the name of a table"));
            }
            tables.push((name.to_owned(), Vec::new()));
            continue;
        }
        let is_setting = line.split_once('=').is_some_and(|(key, value)| {
            let key = key.trim();
            let is_key = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'"' | b'.'));
            !key.is_empty() && is_key && !value.trim().is_empty()
        });
        let last = tables.last_mut().filter(|_| is_setting);
        last.ok_or_else(|| format!("line {number}: not of the form key = value"))?.1.push(line.to_owned());
    }
    Ok(tables)
}

/// Formats the tables of handlers below `runtimes`, the path of containerd's table of runtimes.
pub(crate) fn render(runtimes: &str, handlers: &[Handler], systemd_cgroup: bool) -> String {
    let mut out = String::new();
    for handler in handlers {
        let table = format!("{runtimes}.\"{}\"", handler.name());
        let _ = match handler {
            Handler::Installed { program, shim: Shim::Runc, .. } => write!(
                out,
                "\n[{table}]\nruntime_type = \"io.containerd.runc.v2\"\n\n[{table}.options]\nBinaryName = {}\n\
                 SystemdCgroup = {systemd_cgroup}\n",
                quote(program)
            ),
            // The path of its shim, for one that is not in PATH.
            Handler::Installed { program, shim: Shim::Own(kind), .. } => {
                write!(out, "\n[{table}]\nruntime_type = \"{kind}\"\nruntime_path = {}\n", quote(program))
            }
            Handler::Own { tables, .. } => tables.iter().try_for_each(|(name, lines)| {
                let below = if name.is_empty() { String::new() } else { format!(".{name}") };
                writeln!(out, "\n[{table}{below}]\n{}", lines.join("\n"))
            }),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_have_their_tables() {
        let handler = |name, program: &str, shim| Handler::Installed { name, program: program.into(), shim };
        let handlers = [
            handler("crun", "/usr/bin/crun", Shim::Runc),
            handler("kata", "/opt/k/containerd-shim-kata-v2", Shim::Own("io.containerd.kata.v2")),
        ];
        assert_eq!(
            render("plugins.x.runtimes", &handlers, true),
            "\n[plugins.x.runtimes.\"crun\"]\nruntime_type = \"io.containerd.runc.v2\"\n\n\
             [plugins.x.runtimes.\"crun\".options]\nBinaryName = \"/usr/bin/crun\"\nSystemdCgroup = true\n\n\
             [plugins.x.runtimes.\"kata\"]\nruntime_type = \"io.containerd.kata.v2\"\n\
             runtime_path = \"/opt/k/containerd-shim-kata-v2\"\n"
        );
        assert_eq!(render("x", &[], false), "");
    }

    #[test]
    fn handlers_of_users_stay_and_their_faults_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fast.toml");
        let text = "# mine\nruntime_type = \"io.containerd.runc.v2\"\n\n[options]\nBinaryName = \"/opt/fast\"\n";
        std::fs::write(&path, text).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "ignored").unwrap();
        let found = own(dir.path()).unwrap();
        assert_eq!(
            render("r", &found, false),
            "\n[r.\"fast\"]\nruntime_type = \"io.containerd.runc.v2\"\n\n[r.\"fast\".options]\nBinaryName = \"/opt/fast\"\n"
        );
        for (name, text, fault) in [
            ("Fast.toml", text, "a valid RuntimeClass handler name"),
            ("runc.toml", text, "other than runc"),
            ("x.toml", "[options]\nBinaryName = \"y\"\n", "no runtime_type"),
            ("x.toml", "runtime_type\n", "line 1: not of the form"),
            ("x.toml", "runtime_type = \"y\"\n[[options]]\n", "line 2: must be the name of a table"),
            ("x.toml", "runtime_type = \"y\"\n]\n[plugins]\n", "line 2: not of the form"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(name), text).unwrap();
            let error = own(dir.path()).expect_err(name).to_string();
            assert!(error.contains(fault) && error.contains(name), "{error}");
        }
        assert_eq!(own(&dir.path().join("none")).unwrap(), []);
    }
}
