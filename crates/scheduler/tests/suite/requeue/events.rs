//! Changes of the cluster, and the pods that they requeue.
use futures::future::BoxFuture;
use kelson_simulation::Api;
use serde_json::{Value, json};

use super::waiting::{claim, class, csi_node, device_claim, node, pod, volume};

const NODES: &str = "v1/nodes";
const PODS: &str = "v1/pods";
const CLAIMS: &str = "v1/persistentvolumeclaims";
const VOLUMES: &str = "v1/persistentvolumes";
const CLASSES: &str = "storage.k8s.io/v1/storageclasses";
const CSI_NODES: &str = "storage.k8s.io/v1/csinodes";
const DEVICE_CLAIMS: &str = "resource.k8s.io/v1/resourceclaims";
const DEVICE_CLASSES: &str = "resource.k8s.io/v1/deviceclasses";
const SLICES: &str = "resource.k8s.io/v1/resourceslices";

type Happens = fn(Api) -> BoxFuture<'static, ()>;

/// A change and the pods that it requeues.
pub struct Event {
    pub name: &'static str,
    /// A change that happened long before.
    pub before: Option<Happens>,
    pub happens: Happens,
    /// The pods that are tried again.
    pub wakes: &'static str,
}

macro_rules! event {
    ($name:literal, $wakes:literal, $api:ident => $body:expr) => {
        Event { name: $name, before: None, happens: |$api: Api| Box::pin(async move { $body }), wakes: $wakes }
    };
    ($name:literal, after $before:expr, $wakes:literal, $api:ident => $body:expr) => {
        Event { name: $name, before: Some($before), happens: |$api: Api| Box::pin(async move { $body }), wakes: $wakes }
    };
}

async fn touch(api: &Api, resource: &str, namespace: &str, name: &str) {
    let patch = json!({"metadata": {"annotations": {"example.com/touched": "yes"}}});
    api.patch(resource, namespace, name, "", patch).await;
}

async fn place(api: &Api, name: &str, app: &str) {
    api.create(PODS, pod(name, app, &json!({"nodeName": "a"}))).await;
}

fn uncordon(api: Api) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        api.patch(NODES, "", "a", "", json!({"spec": {"unschedulable": Value::Null}})).await;
    })
}

/// A claim that has a device of a pool without slices.
fn allocated(api: Api) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        device_claim(&api, "taken", "gpu").await;
        let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"});
        let status = json!({"allocation": {"devices": {"results": [result]}}});
        api.patch(DEVICE_CLAIMS, "n", "taken", "status", json!({"status": status})).await;
    })
}

/// Devices of a node that does not exist, which no class of the pods' claims selects.
fn slice(api: Api) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let spec = json!({"driver": "d.example.com", "nodeName": "elsewhere", "devices": [{"name": "x"}],
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
        api.create(SLICES, json!({"metadata": {"name": "s"}, "spec": spec})).await;
    })
}

/// A volume that no claim has.
fn spare(api: Api) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        volume(&api, "spare", "unlimited", &Value::Null).await;
        api.patch(VOLUMES, "", "spare", "", json!({"metadata": {"finalizers": Value::Null}})).await;
    })
}

/// Changes of nodes.
const OF_NODES: &[Event] = &[
    // Upstream's NodeVolumeLimits waits for a CSINode only. A node without one has no limits.
    event!("a node is added that has all that pods want but a label",
    "resources taints cordoned near far spread ports unbound unprovisioned absent limits alone classless devices nominated",
    api => {
        let mut node = node("c", "other", "8");
        node["spec"] = json!({});
        api.create(NODES, node).await;
    }),
    event!("a node is added that is small, cordoned and has a taint",
    "near far spread ports unbound unprovisioned absent limits alone classless devices",
    api => {
        api.create(NODES, node("c", "z", "1")).await;
    }),
    // A pod that is nominated to a node is tried with each change of the node: it needs another node if it does not fit
    // there any more.
    event!("a node gets a label", "selector unbound unprovisioned absent classless devices nominated", api => {
        api.patch(NODES, "", "a", "", json!({"metadata": {"labels": {"disk": "fast"}}})).await;
    }),
    event!("a node loses a taint", "taints spread nominated", api => {
        api.patch(NODES, "", "a", "", json!({"spec": {"taints": []}})).await;
    }),
    event!("a node is uncordoned", "cordoned nominated", api => uncordon(api).await),
    event!("a node is cordoned", after uncordon, "nominated", api => {
        api.patch(NODES, "", "a", "", json!({"spec": {"unschedulable": true}})).await;
    }),
    event!("a node has more to allocate", "resources classless devices nominated", api => {
        let resources = json!({"cpu": "8", "memory": "8Gi", "pods": "50"});
        api.patch(NODES, "", "a", "status", json!({"status": {"allocatable": resources, "capacity": resources}})).await;
    }),
    event!("a node has more of what no pod asks for", "classless devices nominated", api => {
        let resources = json!({"memory": "16Gi"});
        api.patch(NODES, "", "a", "status", json!({"status": {"allocatable": resources, "capacity": resources}})).await;
    }),
    event!("a node reports that it lives", "", api => {
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
        api.patch(NODES, "", "a", "status", json!({"status": {"conditions": [ready]}})).await;
    }),
    // Upstream's InterPodAffinity waits for pods only. Here the pods of a deleted node no longer count.
    event!("a node is gone", "near far spread", api => {
        api.remove(NODES, "", "b").await;
    }),
    event!("the node that a pod is nominated to is gone", "near far spread nominated", api => {
        api.remove(NODES, "", "a").await;
    }),
];

/// Changes of pods.
const OF_PODS: &[Event] = &[
    event!("a pod is bound that another wants near", "near", api => place(&api, "new", "wanted").await),
    event!("a pod is bound that no other counts", "", api => place(&api, "new", "other").await),
    event!("a pod is bound that is counted", "spread", api => place(&api, "new", "spread").await),
    event!("a pod has ended", "resources far ports limits alone nominated", api => {
        api.patch(PODS, "n", "fills-a", "status", json!({"status": {"phase": "Succeeded"}})).await;
    }),
    event!("a pod is gone", "resources far ports limits alone nominated", api => {
        api.remove(PODS, "n", "fills-a").await;
    }),
    event!("a pod is gone that is counted", "spread nominated", api => {
        api.remove(PODS, "n", "counted").await;
    }),
    event!("a pod is gone that had a volume", "limits", api => {
        api.remove(PODS, "n", "mounts-b").await;
    }),
    // Upstream requeues pods that need resources when any pod is deleted. Here the deleted pod must leave enough.
    event!("a pod is gone that another one waits for", "nominated", api => {
        api.remove(PODS, "n", "leaving").await;
    }),
    event!("a pod that waits is gone", "", api => {
        api.remove(PODS, "n", "gated").await;
    }),
    event!("labels of a pod change to what another one does not hate", "far", api => {
        api.patch(PODS, "n", "fills-a", "", json!({"metadata": {"labels": {"app": "other"}}})).await;
    }),
    event!("labels of a pod change to what another one wants near", "near", api => {
        api.patch(PODS, "n", "mounts-b", "", json!({"metadata": {"labels": {"app": "wanted"}}})).await;
    }),
    event!("labels of a pod change to what is counted no more", "spread", api => {
        api.patch(PODS, "n", "counted", "", json!({"metadata": {"labels": {"app": "other"}}})).await;
    }),
    event!("annotations of a pod change", "", api => touch(&api, PODS, "n", "fills-a").await),
    event!("a pod asks for less", "resources nominated", api => {
        let pod = api.get(PODS, "n", "fills-a").await.unwrap();
        let mut containers = pod["spec"]["containers"].clone();
        containers[0]["resources"] = json!({"requests": {"cpu": "500m"}});
        api.patch(PODS, "n", "fills-a", "resize", json!({"spec": {"containers": containers}})).await;
    }),
    event!("a pod that waits tolerates more", "taints", api => {
        let pod = api.get(PODS, "n", "taints").await.unwrap();
        let mut tolerations = pod["spec"]["tolerations"].as_array().unwrap().clone();
        tolerations.push(json!({"key": "k", "operator": "Exists"}));
        api.patch(PODS, "n", "taints", "", json!({"spec": {"tolerations": tolerations}})).await;
    }),
    event!("the gates of a pod go", "gated", api => {
        api.patch(PODS, "n", "gated", "", json!({"spec": {"schedulingGates": []}})).await;
    }),
];

/// Changes of storage objects.
const OF_STORAGE: &[Event] = &[
    event!("a claim is added that a pod names", "absent", api => {
        claim(&api, "absent", "now", None, "ReadWriteOnce").await;
    }),
    event!("a claim is added that no pod names", "", api => {
        claim(&api, "unnamed", "now", None, "ReadWriteOnce").await;
    }),
    event!("a claim of a pod changes", "unbound", api => touch(&api, CLAIMS, "n", "unbound").await),
    event!("a volume is added", "unbound unprovisioned absent", api => volume(&api, "new", "unlimited", &Value::Null).await),
    event!("a volume changes", "unbound unprovisioned absent", api => touch(&api, VOLUMES, "", "alone").await),
    event!("a volume is gone", after spare, "", api => {
        api.remove(VOLUMES, "", "spare").await;
    }),
    event!("a class is added", "unbound unprovisioned absent", api => class(&api, "new", "Immediate").await),
    event!("the topologies of a class change", "unbound unprovisioned absent", api => {
        let terms = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["z"]}]}]);
        api.patch(CLASSES, "", "later", "", json!({"allowedTopologies": terms})).await;
    }),
    event!("annotations of a class change", "", api => touch(&api, CLASSES, "", "later").await),
    event!("a class is gone", "", api => {
        api.remove(CLASSES, "", "now").await;
    }),
    event!("a CSINode is added", "unbound unprovisioned absent limits", api => csi_node(&api, "c").await),
    event!("a CSINode allows more", "limits", api => {
        let driver = json!({"name": "limited", "nodeID": "a", "topologyKeys": [], "allocatable": {"count": 2}});
        api.patch(CSI_NODES, "", "a", "", json!({"spec": {"drivers": [driver]}})).await;
    }),
    event!("annotations of a CSINode change", "", api => touch(&api, CSI_NODES, "", "a").await),
    // Upstream does not register it. A node without a CSINode has no limits.
    event!("a CSINode is gone", "limits", api => {
        api.remove(CSI_NODES, "", "a").await;
    }),
];

/// Changes of devices and of namespaces.
const OF_OTHERS: &[Event] = &[
    event!("a device claim is added that a pod names", "claimless", api => device_claim(&api, "missing", "gpu").await),
    event!("a device claim is added that no pod names", "", api => device_claim(&api, "unnamed", "gpu").await),
    event!("annotations of a device claim change", "", api => touch(&api, DEVICE_CLAIMS, "n", "devices").await),
    event!("a device claim loses its devices", after allocated, "classless devices", api => {
        api.patch(DEVICE_CLAIMS, "n", "taken", "status", json!({"status": {"allocation": Value::Null}})).await;
    }),
    event!("a device claim that had devices is gone", after allocated, "classless devices", api => {
        api.remove(DEVICE_CLAIMS, "n", "taken").await;
    }),
    event!("a device class is added", "classless devices", api => {
        api.create(DEVICE_CLASSES, json!({"metadata": {"name": "nope"}, "spec": {}})).await;
    }),
    event!("a device class changes", "classless devices", api => {
        let selector = json!({"cel": {"expression": "true"}});
        api.patch(DEVICE_CLASSES, "", "gpu", "", json!({"spec": {"selectors": [selector]}})).await;
    }),
    event!("a device class is gone", "", api => {
        api.remove(DEVICE_CLASSES, "", "gpu").await;
    }),
    event!("a slice is added", "classless devices", api => slice(api).await),
    event!("a slice changes", after slice, "classless devices", api => {
        api.patch(SLICES, "", "s", "", json!({"spec": {"devices": [{"name": "x"}, {"name": "y"}]}})).await;
    }),
    event!("a slice is gone", after slice, "", api => {
        api.remove(SLICES, "", "s").await;
    }),
    // Terms may select namespaces by their labels. Upstream tries the pods after five minutes.
    event!("labels of a namespace change", "near far", api => {
        api.patch("v1/namespaces", "", "n", "", json!({"metadata": {"labels": {"team": "a"}}})).await;
    }),
    event!("annotations of a namespace change", "", api => touch(&api, "v1/namespaces", "", "n").await),
];

/// The changes of all kinds, by object.
pub const EVENTS: [&[Event]; 4] = [OF_NODES, OF_PODS, OF_STORAGE, OF_OTHERS];
