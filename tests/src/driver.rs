//! A CSI driver for tests (the node's half of CSI): directories and devices of this machine, staged and published by
//! bind mounts.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, ensure};
use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use prost::Message;

use crate::grpc::{GrpcServer, ended, framed};
use crate::sh;

/// A file among the volumes that prevents expansion.
pub const NO_GROWTH: &str = "no-growth";
/// The name of the driver.
pub const DRIVER: &str = "test.kelson.local";

/// The identity of a plugin.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Info {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) versions: Vec<String>,
}

/// The fields of `NodeStageVolume` and `NodePublishVolume` that the driver reads, which have the same numbers.
#[derive(Clone, PartialEq, Message)]
struct VolumeCall {
    #[prost(string, tag = "1")]
    volume: String,
    #[prost(string, tag = "3")]
    staging: String,
    #[prost(string, tag = "4")]
    target: String,
    #[prost(map = "string, string", tag = "8")]
    context: HashMap<String, String>,
}

/// The fields of `NodeExpandVolume`.
#[derive(Clone, PartialEq, Message)]
struct Growth {
    #[prost(string, tag = "1")]
    volume: String,
    #[prost(string, tag = "2")]
    path: String,
    #[prost(message, optional, tag = "3")]
    range: Option<Range>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Range {
    #[prost(int64, tag = "1")]
    required: i64,
}

/// The fields of `NodeUnpublishVolume` and `NodeUnstageVolume`.
#[derive(Clone, PartialEq, Message)]
struct Undone {
    #[prost(string, tag = "1")]
    volume: String,
    #[prost(string, tag = "2")]
    path: String,
}

/// A running driver.
pub struct Driver {
    calls: Arc<Mutex<Vec<String>>>,
    _servers: [GrpcServer; 2],
}

impl Driver {
    /// Listens and registers with the kubelet of this directory. A volume is the directory or the device below
    /// `volumes` with its handle as the name; for an inline volume a directory is created.
    ///
    /// # Errors
    /// Its sockets cannot be created.
    pub fn start(kubelet: &Path, volumes: &Path) -> anyhow::Result<Self> {
        let home = kubelet.join("plugins").join(DRIVER);
        std::fs::create_dir_all(&home)?;
        let endpoint = home.join("csi.sock");
        let info = Info {
            kind: "CSIPlugin".into(),
            name: DRIVER.into(),
            endpoint: endpoint.display().to_string(),
            versions: vec!["1.0.0".into()],
        };
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let (noted, volumes) = (Arc::clone(&calls), volumes.to_owned());
        let serves = GrpcServer::at_socket(&endpoint, move |path, message| {
            let call = path.rsplit('/').next().unwrap_or_default();
            let (answer, status) = match answer(&volumes, call, message) {
                Ok((said, answer)) => {
                    if let Some(said) = said {
                        noted.lock().expect("no holder panics").push(said);
                    }
                    (answer, "0")
                }
                Err(why) => {
                    noted.lock().expect("no holder panics").push(format!("{call} failed: {why:#}"));
                    (Vec::new(), "13")
                }
            };
            stream::iter([Frame::data(framed(&answer)), ended(status)]).boxed()
        })?;
        let registers = GrpcServer::at_socket(&kubelet.join("plugins_registry/kelson-test.sock"), move |path, _| {
            let answer = if path.ends_with("/GetInfo") { info.encode_to_vec() } else { Vec::new() };
            stream::iter([Frame::data(framed(&answer)), ended("0")]).boxed()
        })?;
        Ok(Self { calls, _servers: [serves, registers] })
    }

    /// Returns the calls so far: the call, the volume, and the pod.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("no holder panics").clone()
    }
}

/// Returns the record of a call, and its answer.
fn answer(volumes: &Path, call: &str, message: &[u8]) -> anyhow::Result<(Option<String>, Vec<u8>)> {
    Ok(match call {
        // The driver's name of this node.
        "NodeGetInfo" => (None, b"\x0a\x04here".to_vec()),
        // Two capabilities: staging and expansion.
        "NodeGetCapabilities" => (None, vec![0x0a, 0x04, 0x0a, 0x02, 0x08, 0x01, 0x0a, 0x04, 0x0a, 0x02, 0x08, 0x03]),
        "NodeExpandVolume" => {
            let asked = Growth::decode(message)?;
            ensure!(!volumes.join(NO_GROWTH).exists(), "no room");
            ensure!(is_mounted(&asked.path)?, "it is not mounted");
            let bytes = asked.range.unwrap_or_default().required;
            (Some(format!("grow {} to {} MiB", asked.volume, bytes >> 20)), Vec::new())
        }
        "NodeStageVolume" => {
            let asked = VolumeCall::decode(message)?;
            let source = source(volumes, &asked.volume)?;
            ensure!(Path::new(&asked.staging).is_dir(), "its directory is not there");
            if source.is_dir() && !is_mounted(&asked.staging)? {
                sh(&format!("mount --bind {} {}", source.display(), asked.staging))?;
            }
            (Some(format!("stage {}", asked.volume)), Vec::new())
        }
        "NodePublishVolume" => {
            let asked = VolumeCall::decode(message)?;
            publish(volumes, &asked)?;
            let pod = asked.context.get("csi.storage.k8s.io/pod.name").map_or("", String::as_str);
            (Some(format!("publish {} for {pod}", asked.volume)), Vec::new())
        }
        "NodeUnpublishVolume" | "NodeUnstageVolume" => {
            let undone = Undone::decode(message)?;
            if is_mounted(&undone.path)? {
                sh(&format!("umount {}", undone.path))?;
            }
            let is_staging = call == "NodeUnstageVolume";
            if !is_staging && Path::new(&undone.path).exists() {
                sh(&format!("rmdir {0} 2>/dev/null || rm {0}", undone.path))?;
            }
            let word = if is_staging { "unstage" } else { "unpublish" };
            (Some(format!("{word} {}", undone.volume)), Vec::new())
        }
        _ => (None, Vec::new()),
    })
}

fn publish(volumes: &Path, asked: &VolumeCall) -> anyhow::Result<()> {
    if is_mounted(&asked.target)? {
        return Ok(());
    }
    let is_own = asked.context.get("csi.storage.k8s.io/ephemeral").is_some_and(|v| v == "true");
    let source = match is_own {
        true => {
            let made = volumes.join(&asked.volume);
            std::fs::create_dir_all(&made)?;
            std::fs::write(made.join("for"), asked.context.get("word").map_or("", String::as_str))?;
            made
        }
        false => source(volumes, &asked.volume)?,
    };
    if source.is_dir() {
        std::fs::create_dir_all(&asked.target)?;
        let from = if is_own { source.display().to_string() } else { asked.staging.clone() };
        sh(&format!("mount --bind {from} {}", asked.target))?;
    } else {
        std::fs::write(&asked.target, "")?;
        sh(&format!("mount --bind {} {}", source.display(), asked.target))?;
    }
    Ok(())
}

fn source(volumes: &Path, handle: &str) -> anyhow::Result<PathBuf> {
    volumes.join(handle).canonicalize().with_context(|| format!("volume {handle}"))
}

fn is_mounted(path: &str) -> anyhow::Result<bool> {
    let all = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(all.lines().any(|line| line.split(' ').nth(4) == Some(path)))
}
