//! A fake device plugin on real sockets: it registers, its devices are assigned to one container each, it becomes unhealthy and
//! disconnects; and the PodResources API.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Pod;
use kelson_cri::channel::{connect, unary};
use kelson_cri::{CriError, CriResult};
use kelson_kubelet::config::placement::PlacementConfig;
use kelson_kubelet::devices::listing::PodResourcesLister;
use kelson_kubelet::devices::messages as m;
use kelson_kubelet::devices::registration::Registrar;
use kelson_kubelet::devices::table::DeviceCount;
use kelson_kubelet::devices::{Devices, checkpoint};
use kelson_kubelet::dra::DynamicResources;
use kelson_kubelet::dra::drivers::DraDrivers;
use kelson_kubelet::metrics::{ClaimMetrics, DeviceMetrics, PlacementMetrics};
use kelson_kubelet::placement::Placement;
use kelson_kubelet::placement::manager::NodeReservation;
use kelson_metrics::Registry;
use kelson_simulation::Api;
use kelson_tasks::{Scoped, Tasks};
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::grpc;

/// Maximum wait for asynchronous results.
const LIMIT: Duration = Duration::from_secs(60);
const GPU: &str = "example.com/gpu";

/// Devices of the plugin, and received calls.
struct Plugin {
    /// Healthy and unhealthy devices; `None` ends the stream.
    devices: watch::Sender<Option<(&'static str, &'static str)>>,
    calls: Mutex<Vec<String>>,
    refuses: Mutex<bool>,
}

fn list(of: (&str, &str)) -> m::DeviceList {
    let named = |names: &str, health: &str| -> Vec<m::Device> {
        let device = |id: &str| m::Device {
            id: id.into(),
            health: health.into(),
            topology: (id == "c").then(|| m::Topology { nodes: vec![m::NumaNode { id: 1 }] }),
        };
        names.split_whitespace().map(device).collect()
    };
    m::DeviceList { devices: [named(of.0, "Healthy"), named(of.1, "Unhealthy")].concat() }
}

fn framed(message: &impl Message) -> Bytes {
    grpc::framed(&message.encode_to_vec())
}

impl Plugin {
    fn answer(&self, call: &str, message: &[u8]) -> Option<Bytes> {
        let decoded = "a message of this call";
        let ids = |of: m::DeviceIdsOfContainers| of.containers.into_iter().flat_map(|c| c.ids).collect::<Vec<_>>();
        let (said, answer) = match call {
            "GetPreferredAllocation" => {
                let asked = m::PreferredRequest::decode(message).expect(decoded).container_requests.remove(0);
                // The last ones in alphabetical order.
                let mut liked = asked.available.clone();
                liked.sort();
                let liked = liked.split_off(liked.len() - usize::try_from(asked.size).expect("few"));
                let answer = m::DeviceIdsOfContainers { containers: vec![m::DeviceIds { ids: liked }] };
                (format!("{} of {}", asked.size, asked.available.join(" ")), framed(&answer))
            }
            "Allocate" => {
                let ids = ids(m::DeviceIdsOfContainers::decode(message).expect(decoded));
                if *self.refuses.lock() {
                    return None;
                }
                let file = |id: &String| m::DeviceSpec {
                    container_path: format!("/dev/{id}"),
                    host_path: format!("/dev/host-{id}"),
                    permissions: "rw".into(),
                };
                let one = m::ContainerAllocation {
                    envs: [("GPUS".to_owned(), ids.join(","))].into(),
                    devices: ids.iter().map(file).collect(),
                    mounts: vec![m::Mount {
                        container_path: "/lib/gpu".into(),
                        host_path: "/opt".into(),
                        read_only: true,
                    }],
                    annotations: [("gpu".to_owned(), "yes".to_owned())].into(),
                    cdi_devices: vec![m::CdiDevice { name: "example.com/gpu=x".into() }],
                };
                (ids.join(" "), framed(&m::AllocateResponse { container_responses: vec![one] }))
            }
            "PreStartContainer" => (m::DeviceIds::decode(message).expect(decoded).ids.join(" "), framed(&m::Empty {})),
            other => panic!("{other} is not called"),
        };
        self.calls.lock().push(format!("{call}: {said}"));
        Some(answer)
    }

    fn listen(self: &Arc<Self>, socket: &Path) {
        let me = Arc::clone(self);
        grpc::listen(socket, move |path, message| {
            let call = path.rsplit('/').next().unwrap_or_default();
            if call == "ListAndWatch" {
                let lists = tokio_stream::wrappers::WatchStream::new(me.devices.subscribe());
                let lists = lists.take_while(|l| std::future::ready(l.is_some()));
                return lists.map(|l| Frame::data(framed(&list(l.expect("some"))))).boxed();
            }
            let frames = match me.answer(call, message) {
                Some(answer) => vec![Frame::data(answer), grpc::ended("0")],
                None => vec![grpc::ended("13")],
            };
            stream::iter(frames).boxed()
        });
    }
}

struct Node {
    dir: tempfile::TempDir,
    tasks: Tasks,
    devices: Devices,
    _registrar: Scoped<()>,
}

async fn open(dir: &Path) -> Devices {
    Devices::open(dir.to_owned(), Arc::new(DeviceMetrics::new(&Registry::new()))).await
}

impl Node {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let tasks = Tasks::root("test");
        let devices = open(dir.path()).await;
        let registrar = Registrar::new(devices.clone(), tasks.child("plugins"));
        let registrar = tasks.scoped("registrar", registrar.run());
        let node = Self { dir, tasks, devices, _registrar: registrar };
        node.until(|| node.socket("kubelet.sock").exists()).await;
        node
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn until(&self, done: impl Fn() -> bool) {
        let waited = async {
            while !done() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, waited).await.expect("in time");
    }

    async fn register(&self, resource: &str, endpoint: &str) -> CriResult<()> {
        let request = m::RegisterRequest {
            version: "v1beta1".into(),
            endpoint: endpoint.into(),
            resource_name: resource.into(),
            options: Some(m::PluginOptions { pre_start_required: true, get_preferred_allocation_available: true }),
        };
        call::<_, m::Empty>(&self.socket("kubelet.sock"), "/v1beta1.Registration/Register", request).await.map(drop)
    }

    /// Waits until the node has these amounts of the resource.
    async fn comes_to(&self, capacity: i64, allocatable: i64) {
        let wanted = DeviceCount { capacity, allocatable };
        self.until(|| self.devices.amounts().get(GPU) == Some(&wanted)).await;
    }
}

async fn call<Q, A>(socket: &Path, path: &'static str, request: Q) -> Result<A, CriError>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let channel = connect(&format!("unix://{}", socket.display())).expect("a path");
    unary(&channel, "call", path, Some(LIMIT), tonic::Request::new(request)).await
}

async fn plugin(node: &Node, endpoint: &str) -> Arc<Plugin> {
    let plugin = Arc::new(Plugin {
        devices: watch::channel(Some(("a b c", "d"))).0,
        calls: Mutex::default(),
        refuses: Mutex::default(),
    });
    plugin.listen(&node.socket(endpoint));
    node.register(GPU, endpoint).await.expect("registered");
    node.comes_to(4, 3).await;
    plugin
}

fn pod(uid: &str, spec: Value) -> Arc<Pod> {
    let object = json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": spec});
    Arc::new(serde_json::from_value(object).expect("a pod"))
}

fn wants(n: usize) -> Value {
    json!({"containers": [{"name": "c", "resources": {"limits": {GPU: n.to_string()}}}]})
}

#[tokio::test]
async fn each_device_is_assigned_to_one_container() {
    let node = Node::start().await;
    let devices = &node.devices;
    let why = node.register("gpu", "x.sock").await.expect_err("no name of a resource");
    assert!(why.message.contains("the ResourceName \"gpu\" is invalid"), "{why}");
    let plugin = plugin(&node, "gpu.sock").await;

    devices.allocate(&pod("p", wants(2)), true).await.expect("two of three");
    assert_eq!(*plugin.calls.lock(), ["GetPreferredAllocation: 2 of a b c", "Allocate: b c"]);
    let given = devices.given("p", "c").await.expect("prepared");
    assert_eq!(plugin.calls.lock().last().expect("a call"), "PreStartContainer: b c");
    assert_eq!(given.env, [("GPUS".to_owned(), "b,c".to_owned())]);
    assert_eq!(given.devices.iter().map(|d| d.host_path.as_str()).collect::<Vec<_>>(), ["/dev/host-b", "/dev/host-c"]);
    assert!(given.mounts[0].readonly && given.annotations["gpu"] == "yes" && given.cdi_devices.len() == 1);

    let why = devices.allocate(&pod("q", wants(2)), true).await.expect_err("one is left");
    assert_eq!(why, "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1");
    // Devices that a plugin rejects are free again.
    *plugin.refuses.lock() = true;
    devices.allocate(&pod("q", wants(1)), true).await.expect_err("the plugin refuses");
    *plugin.refuses.lock() = false;
    devices.allocate(&pod("q", wants(1)), true).await.expect("the last one");
    assert_eq!(plugin.calls.lock().last().expect("a call"), "Allocate: a");
    // A second call changes nothing and calls no plugin.
    let calls = plugin.calls.lock().len();
    devices.allocate(&pod("p", wants(2)), false).await.expect("it has them");
    assert_eq!(plugin.calls.lock().len(), calls);
    devices.forget("p").await;
    devices.allocate(&pod("r", wants(2)), true).await.expect("given back");

    // Init containers pass their devices on; sidecars keep them.
    devices.retain(|_| false).await;
    let step = |name: &str, more: Value| {
        let mut c = json!({"name": name, "resources": {"limits": {GPU: "1"}}});
        c.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        c
    };
    let spec = json!({"initContainers": [step("i", json!({})), step("s", json!({"restartPolicy": "Always"}))],
        "containers": [step("c", json!({}))]});
    devices.allocate(&pod("s", spec), true).await.expect("enough");
    let held = devices.read(|t| ["i", "s", "c"].map(|c| t.of("s", c).flat_map(|(_, h)| h.ids()).collect::<String>()));
    assert_eq!(held[0], held[1], "the sidecar took what the step before it had");
    assert_ne!(held[1], held[2], "and keeps it");
}

#[tokio::test]
async fn the_inventory_follows_the_plugin_and_assignments_survive_a_restart() {
    let node = Node::start().await;
    let first = plugin(&node, "gpu.sock").await;
    node.devices.allocate(&pod("p", wants(2)), true).await.expect("two of three");
    let why = node.devices.allocate(&pod("q", wants(9)), true).await;
    assert!(why.is_err());

    // The next kubelet starts with the recorded assignments.
    let next = open(node.dir.path()).await;
    assert_eq!(next.amounts()[GPU], DeviceCount::default(), "no plugin has registered with it");
    assert_eq!(next.given("p", "c").await.expect("known").env, [("GPUS".to_owned(), "b,c".to_owned())]);
    next.allocate(&pod("p", wants(2)), false).await.expect("a container that runs goes on");
    let why = next.allocate(&pod("p", wants(2)), true).await.expect_err("not known to work");
    assert_eq!(why, "cannot allocate unregistered device example.com/gpu");

    first.devices.send_replace(Some(("a", "b c d")));
    node.comes_to(4, 1).await;
    let why = node.devices.allocate(&pod("p", wants(2)), true).await.expect_err("they are ill");
    let ill = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu";
    assert_eq!(why, ill);
    first.devices.send_replace(None);
    node.comes_to(4, 0).await;
    // A plugin that registers again replaces the previous one.
    plugin(&node, "again.sock").await;
    node.devices.allocate(&pod("p", wants(2)), true).await.expect("it has them, and they work");
    // A starting kubelet removes the sockets, so that plugins register again; assignments stay.
    checkpoint::clear(node.dir.path()).expect("cleared");
    assert!(!node.socket("again.sock").exists() && node.socket(checkpoint::FILE).exists());
}

#[tokio::test]
async fn the_pod_resources_api_lists_pods() {
    let node = Node::start().await;
    let _plugin = plugin(&node, "gpu.sock").await;
    let mut over = (*pod("over", wants(1))).clone();
    over.status = serde_json::from_value(json!({"phase": "Failed"})).expect("a status");
    let all = vec![pod("p", wants(2)), Arc::new(over)];
    node.devices.allocate(&all[0], true).await.expect("two of three");
    let socket = node.socket("pods/kubelet.sock");
    let (api, state) = (Api::start().await, tempfile::tempdir().expect("a directory"));
    let counted = Arc::new(PlacementMetrics::new(&Registry::new()));
    let placement =
        Placement::open(&PlacementConfig::default(), state.path(), NodeReservation::default(), counted).await;
    let placement = placement.expect("nothing is to be placed");
    let drivers = DraDrivers::new(Arc::new(ClaimMetrics::new(&Registry::new())), Tasks::root("drivers"));
    let claims = DynamicResources::open(api.client(), drivers, state.path().to_owned()).await.expect("none");
    let lister = PodResourcesLister {
        socket: socket.clone(),
        pods: Arc::new(move || all.clone()),
        devices: node.devices.clone(),
        placement,
        claims,
        tasks: node.tasks.child("lister"),
    };
    let _lister = node.tasks.scoped("lister", lister.run());
    node.until(|| socket.exists()).await;

    let shown = |devices: &[m::ContainerDevices]| -> Vec<String> {
        let part = |d: &m::ContainerDevices| d.topology.as_ref().map_or(-1, |t| t.nodes[0].id);
        devices.iter().map(|d| format!("{} {} @{}", d.resource_name, d.device_ids.join(","), part(d))).collect()
    };
    let path = "/v1.PodResourcesLister/List";
    let list: m::ListPodsResponse = call(&socket, path, m::Empty {}).await.expect("a list");
    assert_eq!(
        list.pod_resources.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
        ["p"],
        "what is over has nothing"
    );
    assert_eq!(shown(&list.pod_resources[0].containers[0].devices), ["example.com/gpu b @-1", "example.com/gpu c @1"]);
    let path = "/v1.PodResourcesLister/GetAllocatableResources";
    let all: m::AllocatableResponse = call(&socket, path, m::Empty {}).await.expect("an answer");
    assert_eq!(shown(&all.devices), ["example.com/gpu a,b @-1", "example.com/gpu c @1"]);
    let get = |name: &str| {
        let request = m::GetPodRequest { pod_name: name.into(), pod_namespace: "n".into() };
        let socket = socket.clone();
        async move { call::<_, m::GetPodResponse>(&socket, "/v1.PodResourcesLister/Get", request).await }
    };
    assert_eq!(get("p").await.expect("known").pod_resources.expect("a pod").containers.len(), 1);
    let why = get("nobody").await.expect_err("not known");
    assert!(why.message.contains("pod nobody in namespace n not found"), "{why}");
    let why =
        call::<_, m::Empty>(&socket, "/v1.PodResourcesLister/Other", m::Empty {}).await.expect_err("no such call");
    assert!(why.message.contains("unknown method"), "{why}");
}
