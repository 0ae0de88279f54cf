//! The settings of a member on disk, so that a later start needs no flag: `DIR/etcd/member.json`.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use kelson_platform::files;
use serde::{Deserialize, Serialize};

use crate::error::MemberError;
use crate::layout::Layout;
use crate::timing::Timeouts;

/// The format of the file.
const FORMAT: u32 = 1;

/// The way in which etcd gets its first list of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The first member of a new cluster, which has not answered yet.
    New,
    /// A member that was added to a cluster and is not a voter yet.
    Joining,
    /// A voter: etcd has its list of members.
    Member,
}

/// The settings of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    pub(crate) format: u32,
    /// The name of the member, unique in its cluster: that of the server's node.
    pub name: String,
    /// The URL at which other members reach this one, `https://HOST:PORT`.
    pub peer_url: String,
    /// The port on the loopback address on which the API server reaches the member.
    pub client_port: u16,
    /// The phase of the member.
    pub phase: Phase,
    /// etcd's `--initial-cluster`: `NAME=URL,…`. Without effect once etcd has data.
    pub initial_cluster: String,
    /// The minor version of the cluster (5 for 3.5) when the member ran last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_minor: Option<u32>,
    /// etcd's heartbeat interval and election timeout, applied at each start of the member.
    #[serde(default)]
    pub timeouts: Timeouts,
}

impl Settings {
    /// Creates the settings of the only member of a new cluster, or of one whose data was restored from a snapshot.
    pub fn first(name: &str, peer_url: &str, client_port: u16) -> Self {
        Self {
            format: FORMAT,
            initial_cluster: format!("{name}={peer_url}"),
            name: name.to_owned(),
            peer_url: peer_url.to_owned(),
            client_port,
            phase: Phase::New,
            cluster_minor: None,
            timeouts: Timeouts::default(),
        }
    }

    /// Reads the settings; `None` if this server has no member.
    ///
    /// # Errors
    /// The file cannot be read, or a newer release of Kelson has written it.
    pub fn read(layout: &Layout) -> Result<Option<Self>, MemberError> {
        let path = layout.settings();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MemberError::File { path, source }),
        };
        let read: Result<Self, _> = serde_json::from_slice(&text);
        let invalid = |why: String| MemberError::Settings { path: path.clone(), why };
        let settings = read.map_err(|e| invalid(e.to_string()))?;
        match settings.format {
            FORMAT => Ok(Some(settings)),
            other => Err(invalid(format!("format {other} is not supported, only {FORMAT}"))),
        }
    }

    /// Writes the settings, whole or not at all, and creates `DIR/etcd` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, layout: &Layout) -> Result<(), MemberError> {
        let path = layout.settings();
        let io = |source| MemberError::File { path: path.clone(), source };
        files::ensure_private_dir(layout.dir()).map_err(io)?;
        let text = serde_json::to_vec_pretty(self).map_err(|e| io(e.into()))?;
        Ok(kelson_pki::write_secret(&path, &text, true)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(Settings::read(&layout).unwrap(), None);
        let settings = Settings { cluster_minor: Some(5), ..Settings::first("a", "https://10.0.0.1:2380", 2379) };
        settings.write(&layout).unwrap();
        assert_eq!(Settings::read(&layout).unwrap(), Some(settings));
        for (text, why) in [
            ("{", "EOF"),
            (
                "{\"format\":2,\"name\":\"a\",\"peerUrl\":\"\",\"clientPort\":1,\"phase\":\"new\",\"initialCluster\":\"\"}",
                "format 2",
            ),
        ] {
            std::fs::write(layout.settings(), text).unwrap();
            let error = Settings::read(&layout).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
