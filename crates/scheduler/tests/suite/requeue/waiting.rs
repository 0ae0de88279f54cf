//! The pods that wait, each for one reason, and their cluster.
use kelson_simulation::Api;
use serde_json::{Value, json};

/// A pod that waits.
pub struct Waiting {
    /// The name of the pod and of its profile.
    pub name: &'static str,
    /// A part of its condition's message.
    pub reason: &'static str,
    /// The fields of its spec in addition to a container, tolerations and the profile.
    spec: fn() -> Value,
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

const fn waiting(name: &'static str, reason: &'static str, spec: fn() -> Value) -> Waiting {
    Waiting { name, reason, spec }
}

/// The pods, one for each reason.
pub const WAITING: &[Waiting] = &[
    waiting("resources", "Insufficient cpu", || cpu("3")),
    waiting("taints", "untolerated taint", || tolerating(&["node.kubernetes.io/unschedulable"])),
    waiting("cordoned", "unschedulable", || tolerating(&["k"])),
    waiting("selector", "node affinity/selector", || json!({"nodeSelector": {"disk": "fast"}})),
    waiting("near", "pod affinity rules", || json!({"affinity": {"podAffinity": {REQUIRED: term("wanted")}}})),
    waiting("far", "anti-affinity rules", || json!({"affinity": {"podAntiAffinity": {REQUIRED: term("hated")}}})),
    waiting("spread", "topology spread constraints", || {
        let selector = json!({"matchLabels": {"app": "spread"}});
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "minDomains": 2,
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]})
    }),
    waiting(
        "ports",
        "free ports",
        || json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
    ),
    waiting("unbound", "unbound immediate PersistentVolumeClaims", || claiming("unbound")),
    waiting("unprovisioned", "available persistent volumes to bind", || claiming("unprovisioned")),
    waiting("absent", "persistentvolumeclaim \"absent\" not found", || claiming("absent")),
    waiting("limits", "exceed max volume count", || claiming("limits")),
    waiting("alone", "ReadWriteOncePod", || claiming("alone")),
    waiting("claimless", "", || devices("missing")),
    waiting("classless", "device class nope does not exist", || devices("classless")),
    waiting("devices", "cannot allocate all claims", || devices("devices")),
    waiting("gated", "", || json!({"schedulingGates": [{"name": "example.com/gate"}]})),
    waiting("nominated", "Insufficient cpu", || {
        let mut spec = cpu("3");
        spec["priorityClassName"] = json!("high");
        spec
    }),
];

fn cpu(n: &str) -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": n}}}]})
}

fn tolerating(keys: &[&str]) -> Value {
    let toleration = |key: &&str| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
    json!({"tolerations": keys.iter().map(toleration).collect::<Vec<_>>()})
}

fn term(app: &str) -> Value {
    json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}])
}

fn claiming(claim: &str) -> Value {
    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]})
}

fn devices(claim: &str) -> Value {
    json!({"resourceClaims": [{"name": "d", "resourceClaimName": claim}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}]})
}

/// A pod of the namespace `n` with these fields of its spec.
pub fn pod(name: &str, app: &str, spec: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "namespace": "n", "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// A node in a zone that is cordoned and has a taint.
pub fn node(name: &str, zone: &str, cpu: &str) -> Value {
    let labels = json!({"kubernetes.io/hostname": name, "zone": zone});
    let resources = json!({"cpu": cpu, "memory": "8Gi", "pods": "50"});
    json!({"metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources}})
}

pub async fn claim(api: &Api, name: &str, class: &str, volume: Option<&str>, mode: &str) -> Value {
    let mut claim = json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"storageClassName": class,
        "accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}});
    if let Some(volume) = volume {
        claim["spec"]["volumeName"] = json!(volume);
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    }
    api.create("v1/persistentvolumeclaims", claim).await
}

pub async fn volume(api: &Api, name: &str, driver: &str, claim: &Value) {
    let modes = if claim.is_null() { json!(["ReadWriteOnce"]) } else { claim["spec"]["accessModes"].clone() };
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": modes,
        "csi": {"driver": driver, "volumeHandle": name}, "storageClassName": "other"});
    if !claim.is_null() {
        let m = &claim["metadata"];
        spec["claimRef"] = json!({"namespace": "n", "name": m["name"], "uid": m["uid"]});
    }
    api.create("v1/persistentvolumes", json!({"metadata": {"name": name}, "spec": spec})).await;
}

async fn bound(api: &Api, name: &str, driver: &str, mode: &str) {
    let claim = claim(api, name, "other", Some(name), mode).await;
    volume(api, name, driver, &claim).await;
}

pub async fn class(api: &Api, name: &str, mode: &str) {
    let class = json!({"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": mode});
    api.create("storage.k8s.io/v1/storageclasses", class).await;
}

pub async fn csi_node(api: &Api, name: &str) {
    let driver = json!({"name": "limited", "nodeID": name, "topologyKeys": [], "allocatable": {"count": 1}});
    api.create("storage.k8s.io/v1/csinodes", json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}})).await;
}

pub async fn device_claim(api: &Api, name: &str, class: &str) {
    let request = json!({"name": "r", "exactly": {"deviceClassName": class}});
    let spec = json!({"devices": {"requests": [request]}});
    let claim = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
    api.create("resource.k8s.io/v1/resourceclaims", claim).await;
}

async fn storage(api: &Api) {
    class(api, "now", "Immediate").await;
    class(api, "later", "WaitForFirstConsumer").await;
    claim(api, "unbound", "now", None, "ReadWriteOnce").await;
    claim(api, "unprovisioned", "later", None, "ReadWriteOnce").await;
    for name in ["limits", "there-a", "there-b"] {
        bound(api, name, "limited", "ReadWriteOnce").await;
    }
    bound(api, "alone", "unlimited", "ReadWriteOncePod").await;
    for name in ["a", "b"] {
        csi_node(api, name).await;
        let mut spec = claiming(&format!("there-{name}"));
        spec["nodeName"] = json!(name);
        api.create("v1/pods", pod(&format!("mounts-{name}"), "mounts", &spec)).await;
    }
}

/// Creates the cluster: two nodes with pods that block others, and the pods that wait.
pub async fn prepare(api: &Api) {
    api.namespace("n").await;
    let high = json!({"metadata": {"name": "high"}, "value": 1000});
    api.create("scheduling.k8s.io/v1/priorityclasses", high).await;
    for name in ["a", "b"] {
        api.create("v1/nodes", node(name, "z", "4")).await;
        let mut spec = cpu("2");
        spec["nodeName"] = json!(name);
        spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        if name == "a" {
            spec["volumes"] = claiming("alone")["volumes"].clone();
        }
        api.create("v1/pods", pod(&format!("fills-{name}"), "hated", &spec)).await;
    }
    storage(api).await;
    api.create("v1/pods", pod("counted", "spread", &json!({"nodeName": "a"}))).await;
    let mut leaving = cpu("500m");
    leaving["nodeName"] = json!("a");
    leaving["terminationGracePeriodSeconds"] = json!(3600);
    api.create("v1/pods", pod("leaving", "leaving", &leaving)).await;
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"});
    api.patch("v1/pods", "n", "leaving", "status", json!({"status": {"conditions": [target]}})).await;
    api.delete("v1/pods", "n", "leaving", json!({})).await;
    api.create("resource.k8s.io/v1/deviceclasses", json!({"metadata": {"name": "gpu"}, "spec": {}})).await;
    device_claim(api, "classless", "nope").await;
    device_claim(api, "devices", "gpu").await;
    for w in WAITING {
        let mut pod = pod(w.name, w.name, &(w.spec)());
        pod["spec"]["schedulerName"] = json!(w.name);
        api.create("v1/pods", pod).await;
    }
    api.patch("v1/pods", "n", "nominated", "status", json!({"status": {"nominatedNodeName": "a"}})).await;
}
