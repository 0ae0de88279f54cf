//! The node's own docker configuration: the first sound file on the search path, read again when it changed.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; at start before pods are")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::docker::{self, DockerConfig, DockerConfigFormat};

/// Finds and reads the node's configuration; cheap to ask again.
#[derive(Debug, Default)]
pub struct NodeConfig {
    places: Vec<(PathBuf, DockerConfigFormat)>,
    last: Mutex<Option<(FileStamps, Arc<DockerConfig>)>>,
}

/// Size and modification time of each file, if it exists.
type FileStamps = Vec<Option<(u64, Option<SystemTime>)>>;

impl NodeConfig {
    /// The usual places: `config.json` in `preferred` (the kubelet's root directory), the working directory,
    /// `$HOME/.docker`, `/.docker`; then `.dockercfg` in `preferred`, the working directory, `$HOME`, `/`.
    pub fn usual(preferred: &Path) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let here = PathBuf::from(".");
        let json = [preferred.to_owned(), here.clone(), home.join(".docker"), PathBuf::from("/.docker")];
        let old = [preferred.to_owned(), here, home, PathBuf::from("/")];
        let json = json.into_iter().map(|d| (d.join("config.json"), DockerConfigFormat::ConfigJson));
        Self::at(json.chain(old.into_iter().map(|d| (d.join(".dockercfg"), DockerConfigFormat::Dockercfg))).collect())
    }

    /// These files, in this order.
    pub fn at(places: Vec<(PathBuf, DockerConfigFormat)>) -> Self {
        Self { places, last: Mutex::new(None) }
    }

    /// Returns the entries of the first valid file; none if there is no such file.
    pub fn read(&self) -> Arc<DockerConfig> {
        let seen: FileStamps = self
            .places
            .iter()
            .map(|(p, _)| fs::metadata(p).ok().filter(|m| m.is_file()).map(|m| (m.len(), m.modified().ok())))
            .collect();
        let mut last = self.last.lock();
        if let Some((_, config)) = last.as_ref().filter(|(s, _)| *s == seen) {
            return config.clone();
        }
        let config = Arc::new(self.read_files());
        *last = Some((seen, config.clone()));
        config
    }

    fn read_files(&self) -> DockerConfig {
        let mut faults = Vec::new();
        for (path, form) in &self.places {
            let data = match read_file(path) {
                Ok(data) => data,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => {
                    faults.push(format!("{}: {e}", path.display()));
                    continue;
                }
            };
            let mut config = docker::parse(*form, &data);
            let unreadable = config.entries.is_empty() && !config.faults.is_empty();
            faults.extend(config.faults.drain(..).map(|f| format!("{}: {f}", path.display())));
            if !unreadable {
                config.faults = faults;
                return config;
            }
        }
        if !faults.is_empty() {
            tracing::debug!(faults = %faults.join("; "), "skipping invalid entries of the node's docker configuration");
        }
        DockerConfig { faults, ..Default::default() }
    }
}

fn read_file(path: &Path) -> std::io::Result<zeroize::Zeroizing<Vec<u8>>> {
    let mut data = zeroize::Zeroizing::new(Vec::new());
    fs::File::open(path)?.take(docker::FILE_BYTES_MAX as u64 + 1).read_to_end(&mut data)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sound_file_and_its_changes() {
        let dir = tempfile::tempdir().unwrap();
        let p = |n: &str| dir.path().join(n);
        let node = NodeConfig::at(vec![
            (p("a"), DockerConfigFormat::ConfigJson),
            (p("b"), DockerConfigFormat::ConfigJson),
            (p("c"), DockerConfigFormat::Dockercfg),
        ]);
        let keys = || node.read().entries.keys().cloned().collect::<Vec<_>>();
        assert!(keys().is_empty());
        fs::write(p("c"), r#"{"c.io":{"username":"u"}}"#).unwrap();
        assert_eq!(keys(), ["c.io"]);
        fs::write(p("a"), "broken").unwrap();
        assert_eq!(keys(), ["c.io"]);
        assert!(node.read().faults[0].ends_with("a: is not JSON of a docker configuration"));
        fs::write(p("b"), r#"{"auths":{"b.io":{"username":"u"},"bb.io":{}}}"#).unwrap();
        assert_eq!(keys(), ["b.io", "bb.io"]);
        fs::remove_file(p("b")).unwrap();
        assert_eq!(keys(), ["c.io"]);
    }
}
