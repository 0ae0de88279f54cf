//! How drivers come and go: each puts a socket into the directory for registrations, is asked who it is, and is entered in
//! this node's CSINode; when the socket goes, so does the entry (upstream: `pkg/kubelet/pluginmanager`, `pkg/volume/csi`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kelson_client::{Client, ClientError, PatchKind, WriteOptions};
use kelson_meta::Backoff;
use kelson_tasks::FILES;
use serde_json::{Value, json};

use super::client::{NodeInfo, PluginClient, PluginInfo};
use super::drivers::{Driver, Drivers, Made};
use crate::logs::notify::Watch;
use crate::metrics::StorageMetrics;

/// Pauses before a driver that could not be registered is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// On a node: what each driver calls it.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
/// Longest name of a driver, and what it may consist of is what a DNS name may.
const NAME_MAX: usize = 63;

/// Whoever works with plugins of another kind.
pub trait PluginHandler: Send + Sync {
    /// The kind, as plugins name it.
    fn kind(&self) -> &'static str;
    /// A plugin registers by this socket.
    ///
    /// # Errors
    /// Why it may not.
    fn admit(&self, socket: &Path, made: Made, info: &PluginInfo) -> Result<(), String>;
    /// Those that registered by sockets which `stays` says are no more are gone.
    fn forget(&self, stays: &dyn Fn(&Path) -> bool);
    /// Whether the plugin that registered by this very socket is known.
    fn has_socket(&self, socket: &Path, made: Made) -> bool;
}

/// Registers drivers for as long as it runs.
#[derive(Clone)]
pub struct Registration {
    /// As the node.
    pub client: Client,
    /// The node's name.
    pub node: String,
    /// Where sockets appear.
    pub dir: PathBuf,
    /// Receives who registered.
    pub drivers: Drivers,
    /// Receives plugins that are no drivers of volumes.
    pub others: Arc<dyn PluginHandler>,
    /// What counts drivers' answers.
    pub metrics: Arc<StorageMetrics>,
}

/// What is entered for a driver.
#[derive(Debug, PartialEq)]
struct DriverEntry {
    name: String,
    node_id: String,
    topology: BTreeMap<String, String>,
    /// `None`: as many as one likes.
    volumes_max: Option<i64>,
}

fn entry(name: &str, info: NodeInfo) -> Result<DriverEntry, String> {
    if info.node_id.is_empty() {
        return Err(format!("driver {name} does not say what it calls this node"));
    }
    let topology = info.accessible_topology.map(|t| t.segments.into_iter().collect()).unwrap_or_default();
    let volumes_max = Some(info.max_volumes_per_node).filter(|n| *n > 0);
    Ok(DriverEntry { name: name.to_owned(), node_id: info.node_id, topology, volumes_max })
}

/// Whether the plugin is a driver this kubelet can speak to.
fn judge(info: &PluginInfo) -> Result<(), String> {
    if info.r#type != "CSIPlugin" {
        return Err(format!("no handler registered for plugin type: {}", info.r#type));
    }
    if info.name.len() > NAME_MAX || kelson_meta::is_dns1123_subdomain(&info.name.to_ascii_lowercase()).is_err() {
        return Err(format!("{:?} is no name of a driver", info.name));
    }
    let major = |v: &String| v.trim_start_matches('v').split('.').next().map(str::to_owned);
    if !info.supported_versions.iter().filter_map(major).any(|m| m == "1") {
        return Err(format!("driver {} supports none of the versions 1.x", info.name));
    }
    Ok(())
}

/// The sockets in the directory. One that goes while this looks is not there.
fn sockets(dir: &Path) -> io::Result<BTreeMap<PathBuf, Made>> {
    let mut all = BTreeMap::new();
    for e in std::fs::read_dir(dir)? {
        let e = e?;
        let Ok(found) = e.metadata() else { continue };
        if found.file_type().is_socket() && !e.file_name().to_string_lossy().starts_with('.') {
            all.insert(e.path(), (found.ino(), found.mtime(), found.mtime_nsec()));
        }
    }
    Ok(all)
}

/// A CSINode's drivers with one entered anew.
fn entered(mut drivers: Vec<Value>, entry: &DriverEntry) -> Vec<Value> {
    let mut new = json!({"name": entry.name, "nodeID": entry.node_id,
        "topologyKeys": entry.topology.keys().collect::<Vec<_>>()});
    if let Some(max) = entry.volumes_max {
        new["allocatable"] = json!({"count": max.min(i64::from(i32::MAX))});
    }
    drivers.retain(|d| d["name"] != entry.name);
    drivers.push(new);
    drivers
}

impl Registration {
    /// Registers what is there and what comes; forgets what goes.
    pub async fn run(self) {
        let mut delay = None;
        while let Err(e) = self.ensure_csi_node().await {
            tracing::info!(error = %e, "this node's CSINode not made yet");
            tokio::time::sleep(RETRY.after(delay)).await;
            delay = Some(RETRY.after(delay));
        }
        let mut gone = BTreeSet::new();
        loop {
            if let Err(e) = self.follow(&mut gone).await {
                tracing::warn!(dir = %self.dir.display(), error = %e, "drivers cannot register");
            }
            tokio::time::sleep(RETRY.max).await;
        }
    }

    /// The watch begins before the first look, so that nothing that comes between is missed.
    async fn follow(&self, gone: &mut BTreeSet<String>) -> io::Result<()> {
        let made = self.dir.clone();
        FILES.run(move || std::fs::create_dir_all(made)).await.map_err(io::Error::other)??;
        let watch = Watch::new(&self.dir)?;
        let mut delay = None;
        loop {
            let dir = self.dir.clone();
            let sockets = FILES.run(move || sockets(&dir)).await.map_err(io::Error::other)??;
            let whole = self.settle(&sockets, gone).await;
            delay = if whole { None } else { Some(RETRY.after(delay)) };
            let again = async {
                match delay {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { changed = watch.changed() => changed?, () = again => {} }
        }
    }

    /// Whether all that is there could be registered, and all that is gone taken out; `gone` holds what is still to be.
    async fn settle(&self, sockets: &BTreeMap<PathBuf, Made>, gone: &mut BTreeSet<String>) -> bool {
        let mut whole = true;
        self.others.forget(&|s| sockets.contains_key(s));
        gone.extend(self.drivers.forget(|s| sockets.contains_key(s)));
        // One that has come back by another socket meanwhile stays in.
        gone.retain(|name| self.drivers.get(name).is_err());
        for name in gone.clone() {
            tracing::info!(driver = name, "a driver of volumes is gone");
            match self.withdraw(&name).await {
                Ok(()) => drop(gone.remove(&name)),
                Err(e) => {
                    tracing::warn!(driver = name, error = %e, "a driver that is gone is still in the CSINode");
                    whole = false;
                }
            }
        }
        let is_known = |s: &Path, made| self.drivers.has_socket(s, made) || self.others.has_socket(s, made);
        for (socket, made) in sockets.iter().filter(|(s, made)| !is_known(s, **made)) {
            if let Err(e) = self.register(socket, *made).await {
                tracing::warn!(socket = %socket.display(), error = e, "a plugin is not registered");
                whole = false;
            }
        }
        whole
    }

    async fn register(&self, socket: &Path, made: Made) -> Result<(), String> {
        let text = |e: kelson_cri::CriError| e.to_string();
        let plugin = PluginClient::new(socket).map_err(text)?;
        let info = plugin.who().await.map_err(text)?;
        let done = self.admit(socket, made, &info).await;
        plugin
            .tell(match &done {
                Ok(()) => Ok(()),
                Err(why) => Err(why.as_str()),
            })
            .await
            .map_err(text)?;
        if done.is_ok() {
            tracing::info!(driver = info.name, kind = info.r#type, "a plugin has registered");
        }
        done
    }

    async fn admit(&self, socket: &Path, made: Made, info: &PluginInfo) -> Result<(), String> {
        if info.r#type == self.others.kind() {
            return self.others.admit(socket, made, info);
        }
        judge(info)?;
        let endpoint = if info.endpoint.is_empty() { socket } else { Path::new(&info.endpoint) };
        let client = PluginClient::new(endpoint).map_err(|e| e.to_string())?;
        let client = client.counted(Arc::clone(&self.metrics), &info.name);
        let node = client.node().await.map_err(|e| e.to_string())?;
        let entry = entry(&info.name, node)?;
        self.enter(&entry).await.map_err(|e| e.to_string())?;
        self.drivers.put(&info.name, Driver { client, socket: socket.to_owned(), made });
        Ok(())
    }

    /// Makes this node's CSINode, where there is none: others see by it that the kubelet knows drivers.
    async fn ensure_csi_node(&self) -> Result<(), ClientError> {
        if self.client.get_opt::<CSINode>("", &self.node).await?.is_some() {
            return Ok(());
        }
        let node = self.client.get::<Node>("", &self.node).await?;
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node.metadata.uid});
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": {"name": self.node, "ownerReferences": [owner]}, "spec": {"drivers": []}});
        match self.client.create::<CSINode>("", &object).await {
            Err(e) if !e.is_already_exists() => Err(e),
            _ => Ok(()),
        }
    }

    async fn enter(&self, entry: &DriverEntry) -> Result<(), ClientError> {
        let ids = |mut ids: BTreeMap<String, String>| {
            ids.insert(entry.name.clone(), entry.node_id.clone());
            ids
        };
        self.change_node(&entry.topology, ids).await?;
        self.change_drivers(|all| entered(all, entry)).await
    }

    async fn withdraw(&self, name: &str) -> Result<(), ClientError> {
        self.change_drivers(|mut all| {
            all.retain(|d| d["name"] != name);
            all
        })
        .await?;
        let ids = |mut ids: BTreeMap<String, String>| {
            ids.remove(name);
            ids
        };
        self.change_node(&BTreeMap::new(), ids).await
    }

    async fn change_drivers(&self, change: impl FnOnce(Vec<Value>) -> Vec<Value>) -> Result<(), ClientError> {
        self.ensure_csi_node().await?;
        let now = self.client.get::<CSINode>("", &self.node).await?;
        let tree = serde_json::to_value(&now.spec.drivers).unwrap_or_default();
        let drivers = change(tree.as_array().cloned().unwrap_or_default());
        let patch =
            json!({"metadata": {"resourceVersion": now.metadata.resource_version}, "spec": {"drivers": drivers}});
        let options = WriteOptions::default();
        self.client.patch::<CSINode>("", &self.node, "", PatchKind::Merge, &patch, &options).await
    }

    /// The node's labels by which volumes find it, and what drivers call it.
    async fn change_node(
        &self,
        topology: &BTreeMap<String, String>,
        ids: impl FnOnce(BTreeMap<String, String>) -> BTreeMap<String, String>,
    ) -> Result<(), ClientError> {
        let node = self.client.get::<Node>("", &self.node).await?;
        let said = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID));
        let said: BTreeMap<String, String> = said.and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default();
        let wanted = ids(said.clone());
        let labels = node.metadata.labels.unwrap_or_default();
        if wanted == said && topology.iter().all(|(k, v)| labels.get(k) == Some(v)) {
            return Ok(());
        }
        let ids = if wanted.is_empty() { Value::Null } else { json!(json!(wanted).to_string()) };
        let patch = json!({"metadata": {"labels": topology, "annotations": {NODE_ID: ids}}});
        let options = WriteOptions::default();
        self.client.patch::<Node>("", &self.node, "", PatchKind::Merge, &patch, &options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_register() {
        let info = |kind: &str, name: &str, versions: &[&str]| PluginInfo {
            r#type: kind.into(),
            name: name.into(),
            endpoint: String::new(),
            supported_versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        };
        let rows = [
            (info("CSIPlugin", "d.example.com", &["1.0.0"]), true),
            (info("CSIPlugin", "d.example.com", &["0.3.0", "v1.2.0"]), true),
            (info("CSIPlugin", "d.example.com", &["0.3.0"]), false),
            (info("CSIPlugin", "../d", &["1.0.0"]), false),
            (info("CSIPlugin", "", &["1.0.0"]), false),
            (info("DevicePlugin", "d.example.com", &["1.0.0"]), false),
        ];
        for (info, want) in rows {
            assert_eq!(judge(&info).is_ok(), want, "{info:?}");
        }
        let why = judge(&info("DevicePlugin", "d", &[])).unwrap_err();
        assert_eq!(why, "no handler registered for plugin type: DevicePlugin");
    }

    #[test]
    fn what_is_entered() {
        let node =
            |id: &str, max: i64| NodeInfo { node_id: id.into(), max_volumes_per_node: max, accessible_topology: None };
        assert!(entry("d", node("", 0)).is_err());
        let mut one = entry("d", node("n-1", 7)).expect("an entry");
        one.topology.insert("zone".into(), "x".into());
        let others = vec![json!({"name": "e", "nodeID": "x"}), json!({"name": "d", "nodeID": "old"})];
        let want = json!([{"name": "e", "nodeID": "x"},
            {"name": "d", "nodeID": "n-1", "topologyKeys": ["zone"], "allocatable": {"count": 7}}]);
        assert_eq!(json!(entered(others, &one)), want);
    }
}
