//! Nodes that have taints, fall silent or are gone.
use std::time::Duration;

use jiff::Timestamp;
use kelson_simulation::Api;
use rand::Rng as _;
use serde_json::{Value, json};

use crate::history::{Cast, History, Noise, condition, condition_text, each, is_going, time};

const LEASES: &str = "coordination.k8s.io/v1/leases";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const ATTACHMENTS: &str = "storage.k8s.io/v1/volumeattachments";
const NODE: Noise = Noise::Touch("v1/nodes", "", "n1");
const POD: Noise = Noise::Touch("v1/pods", "n", "p");

async fn node(api: &Api, name: &str) {
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
    api.create("v1/nodes", json!({"metadata": {"name": name}, "status": {"conditions": ready}})).await;
    let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {}});
    api.create(LEASES, lease).await;
}

/// A pod `p` that runs on `n1` and tolerates a taint for so many seconds.
async fn pod(api: &Api, key: &str, seconds: i64) {
    let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}], "tolerations": [toleration]});
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": status})).await;
}

/// Another taint comes or goes, with an effect that moves no pod, and a pod comes that tolerates everything.
fn other_taint(api: Api, number: u64) -> futures::future::BoxFuture<'static, ()> {
    Box::pin(async move {
        let other = json!({"key": "example.com/other", "effect": "NoSchedule"});
        api.change("v1/nodes", "", "n1", |n| {
            let mut taints = n["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let before = taints.len();
            taints.retain(|t| t["key"] != other["key"]);
            if taints.len() == before {
                taints.insert(usize::try_from(number % 2).unwrap().min(before), other.clone());
            }
            n["spec"]["taints"] = json!(taints);
        })
        .await;
    })
}

async fn taint(history: &mut History, dated: bool) -> Timestamp {
    let mut taint = json!({"key": "example.com/leave", "effect": "NoExecute"});
    let now = history.now();
    if dated {
        taint["timeAdded"] = json!(history.seconds());
    }
    history.api.change("v1/nodes", "", "n1", |n| n["spec"]["taints"] = json!([taint])).await;
    if dated { time(&taint["timeAdded"]) } else { now }
}

async fn evicted(history: &mut History, dated: bool, noises: &[Noise]) {
    node(&history.api, "n1").await;
    let seconds = history.rng.random_range(1..300);
    pod(&history.api, "example.com/leave", seconds).await;
    tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..100))).await;
    let due = taint(history, dated).await + Duration::from_secs(seconds.unsigned_abs());
    let going = async |api: &Api| is_going(api, "v1/pods", "n", "p").await;
    history.acts_at(due, noises, going, going).await;
    assert_eq!(history.writes("DELETE", "/pods/p"), 1);
}

#[test]
fn a_pod_is_evicted_when_it_has_tolerated_a_taint_for_its_seconds() {
    each(Cast::of(&["taint-eviction-controller"]), async |history: &mut History| {
        evicted(history, true, &[NODE, POD, Noise::Restart, Noise::Do(other_taint)]).await;
    });
}

#[test]
fn a_taint_without_a_time_counts_from_when_it_was_seen() {
    each(Cast::of(&["taint-eviction-controller"]), async |history: &mut History| {
        evicted(history, false, &[NODE, POD, Noise::Do(other_taint)]).await;
    });
}

/// `n2` renews its lease.
fn renew(api: Api, _: u64) -> futures::future::BoxFuture<'static, ()> {
    Box::pin(async move {
        let now = kelson_meta::format_micro(kelson_meta::Clock::now(&api.clock));
        if api.get(LEASES, "kube-node-lease", "n2").await.is_some() {
            api.patch(LEASES, "kube-node-lease", "n2", "", json!({"spec": {"renewTime": now}})).await;
        }
    })
}

/// A component that is not the kubelet writes the status of `n1`.
fn other_status(api: Api, number: u64) -> futures::future::BoxFuture<'static, ()> {
    Box::pin(async move {
        let status = json!({"capacity": {"example.com/dongles": number.to_string()}});
        api.patch("v1/nodes", "", "n1", "status", json!({"status": status})).await;
    })
}

#[test]
fn a_silent_node_is_unreachable_after_the_grace_period_and_loses_its_pods() {
    let cast = Cast { beat: Some(renew), ..Cast::of(&["node-lifecycle-controller", "taint-eviction-controller"]) };
    each(cast, async |history: &mut History| {
        let (n1, n2) = (history.api.clone(), history.api.clone());
        node(&n1, "n1").await;
        node(&n2, "n2").await;
        pod(&n1, UNREACHABLE, 300).await;
        // The last sign of life.
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..30))).await;
        let renewed = kelson_meta::format_micro(history.now());
        n1.patch(LEASES, "kube-node-lease", "n1", "", json!({"spec": {"renewTime": renewed}})).await;
        let due = history.now() + Duration::from_secs(50);
        let noises = [
            NODE,
            POD,
            Noise::Touch(LEASES, "kube-node-lease", "n1"),
            Noise::Touch("v1/nodes", "", "n2"),
            Noise::Do(other_status),
            Noise::Do(other_taint),
        ];
        let unknown = async |api: &Api| {
            let node = api.get("v1/nodes", "", "n1").await.unwrap();
            condition_text(&node, "Ready") == "Unknown NodeStatusUnknown"
        };
        history.acts_at(due, &noises, unknown, unknown).await;
        let node = n1.get("v1/nodes", "", "n1").await.unwrap();
        let taint = node["spec"]["taints"].as_array().unwrap().iter().find(|t| t["effect"] == "NoExecute").cloned();
        let taint = taint.expect("the taint that moves pods");
        assert_eq!(taint["key"], UNREACHABLE);
        let late = time(&taint["timeAdded"]).duration_since(due).as_secs();
        assert!((-1..3).contains(&late), "the first node has its turn at once: {late}");
        let due = time(&taint["timeAdded"]) + Duration::from_secs(300);
        let going = async |api: &Api| is_going(api, "v1/pods", "n", "p").await;
        history.acts_at(due, &[&noises[..], &[Noise::Fault]].concat(), going, going).await;
        let changed = time(&condition(&node, "Ready").unwrap()["lastTransitionTime"]);
        let node = n1.get("v1/nodes", "", "n1").await.unwrap();
        assert_eq!(time(&condition(&node, "Ready").unwrap()["lastTransitionTime"]), changed);
        assert_eq!(history.writes("DELETE", "/pods/p"), 1);
    });
}

#[test]
fn pods_of_a_node_that_is_gone_are_kept_for_the_quarantine() {
    each(Cast::of(&["pod-garbage-collector-controller"]), async |history: &mut History| {
        node(&history.api, "n1").await;
        pod(&history.api, NOT_READY, 300).await;
        history.api.settle().await;
        if history.rng.random_bool(0.5) {
            history.api.remove("v1/nodes", "", "n1").await;
        } else {
            // The pod's node was never there.
            history.api.remove("v1/pods", "n", "p").await;
            history.api.remove("v1/nodes", "", "n1").await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            pod(&history.api, NOT_READY, 300).await;
        }
        let due = history.now() + Duration::from_secs(40);
        // Upstream looks every 20 seconds.
        let gone = async |api: &Api| api.get("v1/pods", "n", "p").await.is_none();
        history.acts_between(due, due + Duration::from_secs(20), &[POD, Noise::Fault], gone, gone).await;
    });
}

/// A claim bound to the volume of a driver, for `p` on `n1`, which has attached and mounted it.
async fn attached(api: &Api) {
    node(api, "n1").await;
    let claim = json!({"metadata": {"name": "c", "namespace": "n",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = api.create("v1/persistentvolumeclaims", claim).await;
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"namespace": "n", "name": "c", "uid": claim["metadata"]["uid"]}}});
    api.create("v1/persistentvolumes", volume).await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let spec = json!({"nodeName": "n1", "volumes": volumes, "containers": [{"name": "c", "image": "c"}]});
    api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).await;
    api.settle().await;
    api.change("v1/nodes", "", "n1", |n| {
        n["status"]["volumesInUse"] = n["status"]["volumesAttached"].as_array().map_or_else(
            || json!(["kubernetes.io/csi/d^h"]),
            |all| all.iter().map(|v| v["name"].clone()).collect::<Vec<Value>>().into(),
        );
        n["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    })
    .await;
    api.settle().await;
}

#[test]
fn a_volume_that_a_node_does_not_unmount_is_detached_after_six_minutes() {
    each(Cast::of(&["persistentvolume-attach-detach-controller"]), async |history: &mut History| {
        attached(&history.api).await;
        assert_eq!(history.api.list(ATTACHMENTS).await.len(), 1);
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..200))).await;
        history.api.remove("v1/pods", "n", "p").await;
        let due = history.now() + Duration::from_secs(360);
        let noises = [
            NODE,
            Noise::Touch("v1/persistentvolumes", "", "v"),
            Noise::Touch("v1/persistentvolumeclaims", "n", "c"),
            Noise::Do(other_taint),
            Noise::Do(other_status),
            Noise::Fault,
        ];
        let gone = async |api: &Api| api.list(ATTACHMENTS).await.is_empty();
        history.acts_at(due, &noises, gone, gone).await;
    });
}
