//! Registration of plugins. Each plugin creates a socket in the registration directory; the kubelet asks for its type and name and adds a
//! CSI driver to this node's CSINode. When the socket is removed, the driver is removed from the CSINode (upstream:
//! `pkg/kubelet/pluginmanager`, `pkg/volume/csi`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

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
use super::drivers::{Driver, Drivers, SocketIdentity};
use crate::logs::notify::Watch;
use crate::metrics::StorageMetrics;

/// Delays before a failed registration is retried.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// Annotation of the Node with the drivers' IDs of this node.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
/// Maximum length of a driver's name; its characters are those of a DNS name.
const NAME_MAX: usize = 63;

/// Handles plugins of other types than CSI drivers.
pub trait PluginHandler: Send + Sync {
    /// Type of the plugins, as in `GetInfo`.
    fn kind(&self) -> &'static str;
    /// Registers a plugin with this socket.
    ///
    /// # Errors
    /// Why the plugin is rejected.
    fn admit(&self, socket: &Path, made: SocketIdentity, info: &PluginInfo) -> Result<(), String>;
    /// Unregisters the plugins whose sockets are gone (`stays` returns false).
    fn forget(&self, stays: &dyn Fn(&Path) -> bool);
    /// Returns whether a plugin is registered through exactly this socket.
    fn has_socket(&self, socket: &Path, made: SocketIdentity) -> bool;
}

/// Registers plugins as long as it runs.
#[derive(Clone)]
pub struct Registration {
    /// Client of the API that authenticates as this node.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// Directory of registration sockets.
    pub dir: PathBuf,
    /// Receives CSI drivers.
    pub drivers: Drivers,
    /// Receives plugins of other types.
    pub others: Arc<dyn PluginHandler>,
    /// Metrics of calls to drivers.
    pub metrics: Arc<StorageMetrics>,
}

/// A driver's entry in the CSINode.
#[derive(Debug, PartialEq)]
struct DriverEntry {
    name: String,
    node_id: String,
    topology: BTreeMap<String, String>,
    /// Maximum number of volumes; `None` means no limit.
    volumes_max: Option<i64>,
}

fn entry(name: &str, info: NodeInfo) -> Result<DriverEntry, String> {
    if info.node_id.is_empty() {
        return Err(format!("driver {name} returned an empty node ID"));
    }
    let topology = info.accessible_topology.map(|t| t.segments.into_iter().collect()).unwrap_or_default();
    let volumes_max = Some(info.max_volumes_per_node).filter(|n| *n > 0);
    Ok(DriverEntry { name: name.to_owned(), node_id: info.node_id, topology, volumes_max })
}

/// Checks that the plugin is a CSI driver that this kubelet supports.
fn judge(info: &PluginInfo) -> Result<(), String> {
    if info.r#type != "CSIPlugin" {
        return Err(format!("no handler registered for plugin type: {}", info.r#type));
    }
    if info.name.len() > NAME_MAX || kelson_meta::is_dns1123_subdomain(&info.name.to_ascii_lowercase()).is_err() {
        return Err(format!("{:?} is not a valid driver name", info.name));
    }
    let major = |v: &String| v.trim_start_matches('v').split('.').next().map(str::to_owned);
    if !info.supported_versions.iter().filter_map(major).any(|m| m == "1") {
        return Err(format!("driver {} supports none of the versions 1.x", info.name));
    }
    Ok(())
}

/// Lists the sockets in the directory. A socket that is removed meanwhile is skipped.
fn sockets(dir: &Path) -> io::Result<BTreeMap<PathBuf, SocketIdentity>> {
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

/// Adds or replaces one driver in a CSINode's list.
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
    /// Registers existing and new plugins, and unregisters those whose sockets are removed.
    pub async fn run(self) {
        let mut delay = None;
        while let Err(e) = self.ensure_csi_node().await {
            tracing::info!(error = %e, "creating this node's CSINode failed; retrying");
            tokio::time::sleep(RETRY.after(delay)).await;
            delay = Some(RETRY.after(delay));
        }
        let mut gone = BTreeSet::new();
        loop {
            if let Err(e) = self.follow(&mut gone).await {
                tracing::warn!(dir = %self.dir.display(), error = %e, "cannot watch the plugin registration directory; retrying");
            }
            tokio::time::sleep(RETRY.max).await;
        }
    }

    /// The watch begins before the directory is read, so that no change is missed.
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

    /// Registers new plugins and removes entries of drivers that are gone. `gone` has the names of entries that are still to be removed.
    /// Returns whether everything succeeded.
    async fn settle(&self, sockets: &BTreeMap<PathBuf, SocketIdentity>, gone: &mut BTreeSet<String>) -> bool {
        let mut whole = true;
        self.others.forget(&|s| sockets.contains_key(s));
        gone.extend(self.drivers.forget(|s| sockets.contains_key(s)));
        // A driver that registered again through another socket keeps its entry.
        gone.retain(|name| self.drivers.get(name).is_err());
        for name in gone.clone() {
            tracing::info!(driver = name, "CSI driver unregistered");
            match self.withdraw(&name).await {
                Ok(()) => drop(gone.remove(&name)),
                Err(e) => {
                    tracing::warn!(driver = name, error = %e, "removing an unregistered driver from the CSINode failed; retrying");
                    whole = false;
                }
            }
        }
        let is_known = |s: &Path, made| self.drivers.has_socket(s, made) || self.others.has_socket(s, made);
        for (socket, made) in sockets.iter().filter(|(s, made)| !is_known(s, **made)) {
            if let Err(e) = self.register(socket, *made).await {
                tracing::warn!(socket = %socket.display(), error = e, "registering a plugin failed; retrying");
                whole = false;
            }
        }
        whole
    }

    async fn register(&self, socket: &Path, made: SocketIdentity) -> Result<(), String> {
        let text = |e: kelson_cri::CriError| e.to_string();
        let plugin = PluginClient::new(socket).map_err(text)?;
        let info = plugin.plugin_info().await.map_err(text)?;
        let done = self.admit(socket, made, &info).await;
        plugin
            .notify_outcome(match &done {
                Ok(()) => Ok(()),
                Err(why) => Err(why.as_str()),
            })
            .await
            .map_err(text)?;
        if done.is_ok() {
            tracing::info!(driver = info.name, kind = info.r#type, "plugin registered");
        }
        done
    }

    async fn admit(&self, socket: &Path, made: SocketIdentity, info: &PluginInfo) -> Result<(), String> {
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

    /// Creates this node's CSINode if it does not exist. The scheduler and controllers take it as a sign that the kubelet supports CSI.
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

    /// Updates the topology labels and the node ID annotation of the Node.
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
    fn registrations_are_validated() {
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
    fn entries_in_the_csi_node() {
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
