//! A fake DRA driver on real sockets: it registers, prepares a claim for a pod, and unprepares it after the last pod.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Pod;
use kelson_kubelet::csi::client::PluginInfo;
use kelson_kubelet::csi::registration::PluginHandler as _;
use kelson_kubelet::dra::DynamicResources;
use kelson_kubelet::dra::drivers::DraDrivers;
use kelson_kubelet::dra::health::Health;
use kelson_kubelet::dra::messages::{
    ClaimDevice, ClaimsRequest, DriverDeviceHealth, DriverDeviceName, DriverHealthList, PrepareAnswer, PreparedClaim,
    UnprepareAnswer, UnpreparedClaim,
};
use kelson_kubelet::metrics::ClaimMetrics;
use kelson_metrics::Registry;
use kelson_simulation::Api;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::json;
use tokio::sync::watch;

use crate::grpc;

const DRIVER: &str = "gpu.example.com";

/// Received calls, and the driver's error message.
struct FakeDriver {
    /// Health and message of its device; `None` if it does not support health.
    health: watch::Sender<Option<(i32, &'static str)>>,
    calls: Mutex<Vec<String>>,
    refuses: Mutex<&'static str>,
}

fn health((health, message): (i32, &str)) -> Vec<u8> {
    let device = DriverDeviceName { pool_name: "n1".into(), device_name: "gpu-0".into() };
    let (device, message) = (Some(device), message.to_owned());
    let one = DriverDeviceHealth { device, health, message, ..DriverDeviceHealth::default() };
    DriverHealthList { devices: vec![one] }.encode_to_vec()
}

impl FakeDriver {
    fn answer(&self, path: &str, message: &[u8]) -> Vec<u8> {
        let request = ClaimsRequest::decode(message).expect("claims");
        let names: Vec<&str> = request.claims.iter().map(|c| c.name.as_str()).collect();
        self.calls.lock().push(format!("{path} {}", names.join(",")));
        let error = (*self.refuses.lock()).to_owned();
        if path.ends_with("/NodePrepareResources") {
            let device = ClaimDevice {
                request_names: vec!["r".into()],
                pool_name: "n1".into(),
                device_name: "gpu-0".into(),
                cdi_device_ids: vec!["example.com/gpu=0".into()],
                share_id: None,
            };
            let of = |uid: String| (uid, PreparedClaim { devices: vec![device.clone()], error: error.clone() });
            let claims: HashMap<_, _> = request.claims.into_iter().map(|c| of(c.uid)).collect();
            return PrepareAnswer { claims }.encode_to_vec();
        }
        let of = |uid: String| (uid, UnpreparedClaim { error: error.clone() });
        UnprepareAnswer { claims: request.claims.into_iter().map(|c| of(c.uid)).collect() }.encode_to_vec()
    }

    fn listen(self: &Arc<Self>, socket: &Path) {
        let me = Arc::clone(self);
        grpc::listen(socket, move |path, message| {
            if path.ends_with("/NodeWatchResources") {
                let said = tokio_stream::wrappers::WatchStream::new(me.health.subscribe());
                let said = said.take_while(|h| std::future::ready(h.is_some()));
                return said.map(|h| Frame::data(grpc::framed(&health(h.expect("some"))))).boxed();
            }
            let answer = me.answer(path, message);
            stream::iter([Frame::data(grpc::framed(&answer)), grpc::ended("0")]).boxed()
        });
    }

    /// Returns the last path segment of the calls since the last time.
    fn said(&self) -> Vec<String> {
        let all = std::mem::take(&mut *self.calls.lock());
        all.into_iter().map(|c| c.rsplit('/').next().unwrap_or_default().to_owned()).collect()
    }
}

fn pod(uid: &str) -> Pod {
    let container = json!({"name": "c", "resources": {"claims": [{"name": "own", "request": "r"}]}});
    let spec = json!({"containers": [container, {"name": "plain"}],
        "resourceClaims": [{"name": "own", "resourceClaimName": "c"}]});
    let meta = json!({"name": uid, "namespace": "n", "uid": uid});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
}

/// Creates a claim with an allocated device of the driver, reserved for these pods.
async fn claim(api: &Api, pods: &[&str]) {
    let requests = json!([{"name": "r", "exactly": {"deviceClassName": "gpu"}}]);
    let spec = json!({"devices": {"requests": requests}});
    api.create("resource.k8s.io/v1/resourceclaims", json!({"metadata": {"name": "c", "namespace": "n"}, "spec": spec}))
        .await;
    let results = json!([{"request": "r", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}]);
    let users: Vec<_> = pods.iter().map(|p| json!({"resource": "pods", "name": p, "uid": p})).collect();
    let status = json!({"status": {"allocation": {"devices": {"results": results}}, "reservedFor": users}});
    api.patch("resource.k8s.io/v1/resourceclaims", "n", "c", "status", status).await;
}

fn info(endpoint: &Path, versions: &[&str]) -> PluginInfo {
    PluginInfo {
        r#type: "DRAPlugin".into(),
        name: DRIVER.into(),
        endpoint: endpoint.display().to_string(),
        supported_versions: versions.iter().map(|v| (*v).to_owned()).collect(),
    }
}

struct ClaimNode {
    api: Api,
    dir: tempfile::TempDir,
    driver: Arc<FakeDriver>,
    drivers: DraDrivers,
    endpoint: PathBuf,
}

impl ClaimNode {
    async fn start() -> Self {
        let api = Api::start().await;
        api.namespace("n").await;
        let dir = tempfile::tempdir().expect("a directory");
        let endpoint = dir.path().join("dra.sock");
        let (health, calls, refuses) = (watch::channel(Some((1, ""))).0, Mutex::default(), Mutex::default());
        let driver = Arc::new(FakeDriver { health, calls, refuses });
        driver.listen(&endpoint);
        let drivers = DraDrivers::new(Arc::new(ClaimMetrics::new(&Registry::new())), Tasks::root("drivers"));
        Self { api, dir, driver, drivers, endpoint }
    }

    fn register(&self, versions: &[&str]) -> Result<(), String> {
        self.drivers.admit(&self.dir.path().join("reg.sock"), (1, 0, 0), &info(&self.endpoint, versions))
    }

    async fn resources(&self) -> DynamicResources {
        let dir = self.dir.path().to_owned();
        DynamicResources::open(self.api.client(), self.drivers.clone(), dir).await.expect("whole")
    }
}

#[tokio::test]
async fn claims_are_prepared_before_the_start_and_unprepared_after_the_last_pod() {
    let node = ClaimNode::start().await;
    claim(&node.api, &["p", "q"]).await;
    let resources = node.resources().await;
    let why = resources.prepare(&pod("p")).await.expect_err("no driver");
    assert_eq!(why, "prepare dynamic resources: DRA driver gpu.example.com is not registered");
    assert!(node.register(&["1.0.0"]).is_err_and(|e| e.contains("none of services supported by the plugin")));
    node.register(&["v1beta1.DRAPlugin"]).expect("a known version");
    let why = resources.prepare(&pod("stranger")).await.expect_err("not reserved");
    assert!(why.contains("pod stranger (stranger) is not allowed to use ResourceClaim c"), "{why}");
    assert_eq!(node.driver.said(), Vec::<String>::new());

    *node.driver.refuses.lock() = "no power";
    let why = resources.prepare(&pod("p")).await.expect_err("refused");
    assert_eq!(why, "prepare dynamic resources: NodePrepareResources failed for ResourceClaim c: no power");
    *node.driver.refuses.lock() = "";
    resources.prepare(&pod("p")).await.expect("tried again");
    assert_eq!(node.driver.said(), ["NodePrepareResources c", "NodePrepareResources c"]);
    resources.prepare(&pod("q")).await.expect("ready already");
    assert_eq!(node.driver.said(), Vec::<String>::new(), "both use it");
    let p = pod("p");
    let containers = &p.spec.as_ref().expect("a spec").containers;
    let names = |c| resources.given(&p, c).expect("ready").into_iter().map(|d| d.name).collect::<Vec<_>>();
    assert_eq!(names(&containers[0]), ["example.com/gpu=0"]);
    assert!(names(&containers[1]).is_empty());

    resources.unprepare("p").await.expect("the other goes on");
    assert_eq!(node.driver.said(), Vec::<String>::new());
    *node.driver.refuses.lock() = "busy";
    let why = resources.unprepare("q").await.expect_err("refused");
    assert!(why.ends_with("NodeUnprepareResources failed for ResourceClaim c: busy"), "{why}");
    *node.driver.refuses.lock() = "";
    resources.unprepare("q").await.expect("tried again");
    resources.unprepare("q").await.expect("nothing is left");
    assert_eq!(node.driver.said(), ["NodeUnprepareResources c", "NodeUnprepareResources c"]);
}

#[tokio::test]
async fn prepared_claims_survive_a_restart() {
    let node = ClaimNode::start().await;
    claim(&node.api, &["p"]).await;
    node.register(&["v1.DRAPlugin"]).expect("a known version");
    node.resources().await.prepare(&pod("p")).await.expect("ready");
    let next = node.resources().await;
    let p = pod("p");
    let given = next.given(&p, &p.spec.as_ref().expect("a spec").containers[0]).expect("known");
    assert_eq!(given.len(), 1, "a container that starts again needs no driver");
    assert!(!next.is_prepared(&p), "for a new start it is asked again");
    next.unprepare("p").await.expect("given back");
    assert_eq!(node.driver.said(), ["NodePrepareResources c", "NodeUnprepareResources c"]);
    assert!(node.resources().await.given(&p, &p.spec.as_ref().expect("a spec").containers[0]).is_err());
    let damaged = node.dir.path().join("dra_manager_state");
    std::fs::write(&damaged, "{").expect("a file");
    let open = DynamicResources::open(node.api.client(), node.drivers.clone(), node.dir.path().to_owned()).await;
    assert!(open.is_err_and(|e| e.contains("dra_manager_state")));
}

#[tokio::test]
async fn health_of_a_claims_devices() {
    let node = ClaimNode::start().await;
    claim(&node.api, &["p"]).await;
    node.register(&["v1.DRAPlugin"]).expect("a known version");
    let (resources, p) = (node.resources().await, pod("p"));
    let containers = &p.spec.as_ref().expect("a spec").containers;
    assert!(resources.health(&p, &containers[0]).is_empty(), "it is not ready");
    assert_eq!(resources.in_use(), [("<any>".to_owned(), 0)].into());
    let mut changes = resources.health_changes();
    resources.prepare(&p).await.expect("ready");
    assert_eq!(resources.in_use(), [("<any>".to_owned(), 1), (DRIVER.to_owned(), 1)].into());
    let mut comes_to = async |health: Health, words: &str| loop {
        let all = resources.health(&p, &containers[0]);
        let [(name, devices)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((name.as_str(), devices.len(), devices[0].id.as_str()), ("claim:own/r", 1, "example.com/gpu=0"));
        if (devices[0].health, devices[0].message.as_str()) == (health, words) {
            return;
        }
        tokio::time::timeout(std::time::Duration::from_secs(60), changes.changed()).await.expect("news").expect("more");
    };
    comes_to(Health::Healthy, "").await;
    node.driver.health.send_replace(Some((2, "too hot")));
    comes_to(Health::Unhealthy, "too hot").await;
    assert!(resources.health(&p, &containers[1]).is_empty());
    node.driver.health.send_replace(None);
    comes_to(Health::Unknown, "").await;
    node.driver.health.send_replace(Some((1, "")));
    comes_to(Health::Healthy, "").await;
    node.drivers.forget(&|_| false);
    comes_to(Health::Unknown, "").await;
    assert_eq!(resources.users(), ["p".to_owned()].into());
}

#[tokio::test]
async fn resource_slices_of_an_earlier_kubelet_are_deleted() {
    let node = ClaimNode::start().await;
    for (name, of) in [("mine", "n1"), ("others", "n2")] {
        let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": DRIVER, "nodeName": of, "pool": pool, "devices": [{"name": "gpu-0"}]});
        node.api.create("resource.k8s.io/v1/resourceslices", json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let _runs = Tasks::root("slices").scoped("slices", node.drivers.clone().run(node.api.client(), "n1".into()));
    let gone = async {
        while node.api.get("resource.k8s.io/v1/resourceslices", "", "mine").await.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), gone).await.expect("removed");
    assert!(node.api.get("resource.k8s.io/v1/resourceslices", "", "others").await.is_some(), "another node's");
}
