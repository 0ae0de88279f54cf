//! A fake CSI driver on real sockets: it registers, a volume is staged and published for two pods, and unpublished and unstaged after the
//! last one.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventRecorder;
use kelson_kubelet::config::Config;
use kelson_kubelet::csi::client::PluginClient;
use kelson_kubelet::csi::client::{Expand, NodeInfo, PluginInfo, Publish, Stage, Unpublish, Unstage};
use kelson_kubelet::csi::drivers::{Driver, Drivers};
use kelson_kubelet::csi::in_use::InUse;
use kelson_kubelet::csi::registration::Registration;
use kelson_kubelet::dra::drivers::DraDrivers;
use kelson_kubelet::effects::EventReporter;
use kelson_kubelet::metrics::{ClaimMetrics, StorageMetrics};
use kelson_kubelet::objects::Objects;
use kelson_kubelet::objects::tokens::Tokens;
use kelson_kubelet::volumes::csi::{CsiVolumes, VolumeGrowth};
use kelson_kubelet::volumes::mounts::Mounts;
use kelson_kubelet::volumes::persistent::Claims;
use kelson_kubelet::volumes::usage::VolumeUsages;
use kelson_kubelet::volumes::{Ready, Volumes};
use kelson_metrics::Registry;
use kelson_simulation::Api;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::grpc;

/// Maximum wait for asynchronous results.
const LIMIT: Duration = Duration::from_secs(20);

/// Received calls, and mounted targets.
#[derive(Default)]
struct FakeDriver {
    calls: Mutex<Vec<String>>,
    published: Mutex<Vec<Publish>>,
    mounted: Mutex<BTreeSet<PathBuf>>,
    /// Path of its socket.
    endpoint: Mutex<String>,
    /// Name of a call that fails.
    refused: Mutex<&'static str>,
}

impl FakeDriver {
    fn answer(&self, path: &str, message: &[u8]) -> Vec<u8> {
        let call = path.rsplit('/').next().unwrap_or_default();
        self.calls.lock().push(call.to_owned());
        let decoded = "a message of this call";
        match call {
            "GetInfo" => PluginInfo {
                r#type: "CSIPlugin".into(),
                name: "d.example.com".into(),
                endpoint: self.endpoint.lock().clone(),
                supported_versions: vec!["1.0.0".into()],
            }
            .encode_to_vec(),
            "NodeGetInfo" => NodeInfo { node_id: "node-1".into(), max_volumes_per_node: 9, accessible_topology: None }
                .encode_to_vec(),
            // Two capabilities: staging and expansion.
            "NodeGetCapabilities" => vec![0x0a, 0x04, 0x0a, 0x02, 0x08, 0x01, 0x0a, 0x04, 0x0a, 0x02, 0x08, 0x03],
            "NodeExpandVolume" => {
                let expand = Expand::decode(message).expect(decoded);
                assert!(self.mounted.lock().contains(Path::new(&expand.volume_path)), "it is where the pod has it");
                assert!(expand.staging_target_path.ends_with("/globalmount"), "{}", expand.staging_target_path);
                let bytes = expand.capacity_range.expect("a size").required_bytes;
                self.calls.lock().push(format!("grown to {} GiB", bytes >> 30));
                Vec::new()
            }
            "NodeStageVolume" => {
                let stage = Stage::decode(message).expect(decoded);
                assert!(Path::new(&stage.staging_target_path).is_dir(), "its directory is made for it");
                assert_eq!(stage.volume_context["size"], "small");
                Vec::new()
            }
            "NodePublishVolume" => {
                let publish = Publish::decode(message).expect(decoded);
                let made = std::fs::create_dir(&publish.target_path);
                assert!(
                    made.is_ok() || self.mounted.lock().contains(Path::new(&publish.target_path)),
                    "it is the driver's to make"
                );
                self.mounted.lock().insert(publish.target_path.clone().into());
                self.published.lock().push(publish);
                Vec::new()
            }
            "NodeUnpublishVolume" => {
                let target = Unpublish::decode(message).expect(decoded).target_path;
                self.mounted.lock().remove(Path::new(&target));
                // Unpublishing a volume that was never published succeeds, as CSI requires.
                let removed = std::fs::remove_dir(target);
                let absent = removed.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
                assert!(absent || removed.is_ok(), "the target is the driver's to remove");
                Vec::new()
            }
            "NodeUnstageVolume" => {
                assert_eq!(Unstage::decode(message).expect(decoded).volume_id, "h");
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Serves gRPC on a socket.
    fn listen(self: &Arc<Self>, socket: &Path) {
        let me = Arc::clone(self);
        grpc::listen(socket, move |path, message| {
            let is_refused = path.ends_with(&format!("/{}", *me.refused.lock()));
            let answer = if is_refused { Vec::new() } else { me.answer(path, message) };
            let end = grpc::ended(if is_refused { "13" } else { "0" });
            stream::iter([Frame::data(grpc::framed(&answer)), end]).boxed()
        });
    }
}

impl Mounts for FakeDriver {
    fn tmpfs(&self, _: &Path, _: Option<u64>, _: u32) -> std::io::Result<()> {
        Ok(())
    }
    fn huge_pages(&self, _: &Path, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn bind(&self, _: BorrowedFd<'_>, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn unmount(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        self.mounted.lock().iter().filter(|m| m.starts_with(dir)).cloned().collect()
    }
}

async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let looked = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, looked).await.is_ok(), "{what}");
}

/// Creates a claim `c` that is bound to a volume of the driver, which needs no attachment.
async fn bound_claim(api: &Api) {
    api.namespace("n").await;
    let claim = json!({"metadata": {"name": "c", "namespace": "n"}, "status": {"phase": "Bound"},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = api.create("v1/persistentvolumeclaims", claim).await;
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "n", "name": "c", "uid": claim["metadata"]["uid"]},
        "csi": {"driver": "d.example.com", "volumeHandle": "h", "volumeAttributes": {"size": "small"}}}});
    api.create("v1/persistentvolumes", volume).await;
    let driver =
        json!({"metadata": {"name": "d.example.com"}, "spec": {"attachRequired": false, "podInfoOnMount": true}});
    api.create("storage.k8s.io/v1/csidrivers", driver).await;
}

fn pod(name: &str) -> Pod {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes}}))
    .expect("pod")
}

fn volumes(api: &Api, config: &Config, driver: &Arc<FakeDriver>, csi: CsiVolumes) -> Volumes {
    let (client, clock) = (api.client(), Arc::new(api.clock));
    let recorder = EventRecorder::start_in(&Tasks::root("events"), api.client(), clock.clone(), "kubelet", "n1");
    let events = EventReporter::new(recorder, "n1");
    Volumes {
        dirs: config.dirs(),
        objects: Objects::new(&Tasks::root("objects"), client.clone(), |_| {}),
        tokens: Tokens::new(client.clone(), clock.clone()),
        claims: Claims::new(client),
        local_volumes: None,
        growth: VolumeGrowth::new(api.client(), clock.clone(), config.dirs(), csi.clone(), events),
        csi,
        usages: VolumeUsages::default(),
        metrics: Arc::new(StorageMetrics::new(&Registry::new())),
        mounts: Arc::clone(driver) as _,
        node: watch::channel(Arc::default()).1,
        clock,
        cluster_domain: "cluster.local".into(),
    }
}

/// A driver with `requiresRepublish` publishes again after a while, with new content; if that fails, the pod keeps its volume.
async fn publishes_again(api: &Api, driver: &Arc<FakeDriver>, volumes: &Volumes) {
    let wants = json!({"spec": {"requiresRepublish": true}});
    api.patch("storage.k8s.io/v1/csidrivers", "", "d.example.com", "", wants).await;
    let count = || driver.calls.lock().iter().filter(|c| *c == "NodePublishVolume").count();
    let before = count();
    let first = volumes.ensure(&pod("s")).await.expect("set up");
    assert!(first.renew_at.is_some(), "the pod is looked at again");
    volumes.ensure(&pod("s")).await.expect("looked at");
    assert_eq!(count() - before, 1, "it is not due");
    api.clock.jump(61);
    volumes.ensure(&pod("s")).await.expect("looked at");
    assert_eq!(count() - before, 2);
    api.clock.jump(61);
    *driver.refused.lock() = "NodePublishVolume";
    volumes.ensure(&pod("s")).await.expect("what it has stays");
    *driver.refused.lock() = "";
    volumes.tear_down("uid-s").await.expect("taken down");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_csi_volume_from_registration_to_unstaging() {
    let api = Api::start().await;
    bound_claim(&api).await;
    api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let dir = tempfile::tempdir().expect("tempdir");
    let config = Config::new("n1", dir.path());
    let registry = config.dirs().plugins_registry();
    std::fs::create_dir_all(&registry).expect("mkdir");
    let driver = Arc::new(FakeDriver::default());
    let endpoint = dir.path().join("csi.sock");
    *driver.endpoint.lock() = endpoint.display().to_string();
    driver.listen(&endpoint);

    let (drivers, in_use, counted) = (Drivers::default(), InUse::default(), Registry::new());
    let others = Arc::new(DraDrivers::new(Arc::new(ClaimMetrics::new(&Registry::new())), Tasks::root("drivers")));
    let registration = Registration {
        client: api.client(),
        node: "n1".into(),
        dir: registry.clone(),
        drivers: drivers.clone(),
        others,
        metrics: Arc::new(StorageMetrics::new(&counted)),
    };
    tokio::spawn(registration.run());
    let entries = async || {
        let found = api.get("storage.k8s.io/v1/csinodes", "", "n1").await.unwrap_or_default();
        found["spec"]["drivers"].as_array().cloned().unwrap_or_default()
    };
    eventually("the CSINode", async || api.get("storage.k8s.io/v1/csinodes", "", "n1").await.is_some()).await;
    assert_eq!(entries().await, Vec::<Value>::new());
    driver.listen(&registry.join("d-reg.sock"));
    eventually("the driver's entry", async || entries().await.len() == 1).await;
    let want = json!({"name": "d.example.com", "nodeID": "node-1", "topologyKeys": null, "allocatable": {"count": 9}});
    let mut entry = entries().await.remove(0);
    entry["topologyKeys"] = Value::Null;
    assert_eq!(entry, want);
    eventually("its registration", async || driver.calls.lock().iter().any(|c| c == "NotifyRegistrationStatus")).await;

    // Reports volumes like the node's status task.
    let (reporter, mut changes) = (in_use.clone(), in_use.changes());
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            reporter.reported(reporter.all());
        }
    });
    let csi = CsiVolumes::new(api.client(), "n1", drivers.clone(), in_use.clone());
    let volumes = volumes(&api, &config, &driver, csi);
    driver.calls.lock().clear();
    for name in ["p", "q"] {
        let ready = volumes.ensure(&pod(name)).await.expect("set up").ready;
        let path = config.dirs().pod(&format!("uid-{name}")).join("volumes/kubernetes.io~csi/pv/mount");
        assert_eq!(ready["v"], Ready::Path { path, read_only: false });
        volumes.ensure(&pod(name)).await.expect("looked at again");
    }
    let steps = |calls: &[String]| {
        let steps = calls.iter().filter(|c| *c != "NodeGetCapabilities");
        steps.map(|c| c.trim_start_matches("Node").trim_end_matches("Volume").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(steps(&driver.calls.lock()), ["Stage", "Publish", "Stage", "Publish"]);
    let context = driver.published.lock()[0].volume_context.clone();
    assert_eq!((context["size"].as_str(), context["csi.storage.k8s.io/pod.name"].as_str()), ("small", "p"));
    assert_eq!(in_use.all(), ["kubernetes.io/csi/d.example.com^h"]);

    driver.calls.lock().clear();
    volumes.tear_down("uid-p").await.expect("taken down");
    assert_eq!(steps(&driver.calls.lock()), ["Unpublish"], "another pod has it");
    // A restarted kubelet finds the volumes on disk.
    let csi = CsiVolumes::new(api.client(), "n1", drivers.clone(), InUse::default());
    csi.remember(&config.dirs());
    assert_eq!(csi.in_use.all(), ["kubernetes.io/csi/d.example.com^h"]);
    volumes.tear_down("uid-q").await.expect("taken down");
    assert_eq!(steps(&driver.calls.lock()), ["Unpublish", "Unpublish", "Unstage"]);
    assert!(in_use.all().is_empty() && driver.mounted.lock().is_empty());

    publishes_again(&api, &driver, &volumes).await;

    // A volume whose publishing failed is still unpublished.
    driver.calls.lock().clear();
    *driver.refused.lock() = "NodePublishVolume";
    assert!(volumes.ensure(&pod("r")).await.is_err());
    assert_eq!(in_use.all().len(), 1);
    volumes.tear_down("uid-r").await.expect("taken down");
    assert_eq!(steps(&driver.calls.lock()), ["Stage", "Unpublish", "Unstage"]);
    assert!(in_use.all().is_empty());

    // A restarted driver creates a new socket of the same name.
    driver.calls.lock().clear();
    std::fs::remove_file(registry.join("d-reg.sock")).expect("removed");
    driver.listen(&registry.join("d-reg.sock"));
    eventually("registered again", async || driver.calls.lock().iter().any(|c| c == "NotifyRegistrationStatus")).await;
    assert_eq!(entries().await.len(), 1);

    std::fs::remove_file(registry.join("d-reg.sock")).expect("removed");
    eventually("the driver is forgotten", async || entries().await.is_empty()).await;
    assert!(drivers.get("d.example.com").is_err());
    for (method, code) in [("NodeGetInfo", "OK"), ("NodePublishVolume", "OK"), ("NodeUnstageVolume", "OK")] {
        let labels =
            format!("driver_name=\"d.example.com\",grpc_status_code=\"{code}\",method_name=\"/csi.v1.Node/{method}\"");
        let line = format!("csi_operations_seconds_count{{{labels},migrated=\"false\"}}");
        assert!(counted.text().contains(&line), "{line} in\n{}", counted.text());
    }
}

/// The controller's part of a claim's expansion is done; the node's is not.
async fn grows(api: &Api, gib: u32) {
    let size = json!({"storage": format!("{gib}Gi")});
    api.patch("v1/persistentvolumes", "", "pv", "", json!({"spec": {"capacity": size}})).await;
    let pending = json!({"type": "FileSystemResizePending", "status": "True"});
    let status = json!({"allocatedResources": size, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [pending]});
    api.patch("v1/persistentvolumeclaims", "n", "c", "status", json!({"status": status})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_grow_when_they_are_mounted_and_while_they_are_used() {
    let api = Api::start().await;
    bound_claim(&api).await;
    let at_first = json!({"status": {"capacity": {"storage": "1Gi"}}});
    api.patch("v1/persistentvolumeclaims", "n", "c", "status", at_first).await;
    let dir = tempfile::tempdir().expect("tempdir");
    let config = Config::new("n1", dir.path());
    let driver = Arc::new(FakeDriver::default());
    let endpoint = dir.path().join("csi.sock");
    driver.listen(&endpoint);
    let drivers = Drivers::default();
    let client = PluginClient::new(&endpoint).expect("a path");
    drivers.put("d.example.com", Driver { client, socket: endpoint.clone(), made: (1, 0, 0) });
    let csi = CsiVolumes::new(api.client(), "n1", drivers, InUse::default());
    let volumes = volumes(&api, &config, &driver, csi);
    let grown = || -> Vec<String> {
        let mut calls = driver.calls.lock();
        let all = std::mem::take(&mut *calls);
        all.into_iter().filter(|c| c.starts_with("grown")).collect()
    };
    let claim = async || api.get("v1/persistentvolumeclaims", "n", "c").await.expect("a claim")["status"].clone();

    grows(&api, 2).await;
    let (reporter, mut changes) = (volumes.csi.in_use.clone(), volumes.csi.in_use.changes());
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            reporter.reported(reporter.all());
        }
    });
    let p = pod("p");
    volumes.ensure(&p).await.expect("set up");
    assert_eq!(grown(), ["grown to 2 GiB"]);
    let status = claim().await;
    assert_eq!(status["capacity"]["storage"], "2Gi", "{status}");
    assert!(status["allocatedResourceStatuses"].is_null() && status["conditions"].is_null(), "{status}");

    let recorded = async |kind: &str| {
        let all = api.list("v1/events").await;
        let of_kind = all.iter().filter(|e| e["involvedObject"]["kind"] == kind);
        of_kind.filter(|e| e["reason"] == "FileSystemResizeSuccessful").count()
    };
    eventually("both events are recorded", async || {
        recorded("Pod").await == 1 && recorded("PersistentVolumeClaim").await == 1
    })
    .await;
    let pods = [Arc::new(p)];
    volumes.growth.look(&volumes.claims, &pods).await;
    assert_eq!(grown(), Vec::<String>::new(), "nothing is asked for");
    grows(&api, 3).await;
    *driver.refused.lock() = "NodeExpandVolume";
    volumes.growth.look(&volumes.claims, &pods).await;
    let status = claim().await;
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress", "{status}");
    assert!(
        status["conditions"].as_array().is_some_and(|all| all.iter().any(|c| c["type"] == "NodeResizeError")),
        "{status}"
    );
    *driver.refused.lock() = "";
    volumes.growth.look(&volumes.claims, &pods).await;
    assert_eq!(grown(), ["grown to 3 GiB"]);
    let status = claim().await;
    assert_eq!(status["capacity"]["storage"], "3Gi", "{status}");
    assert!(status["conditions"].is_null(), "{status}");
}
