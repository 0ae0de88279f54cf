//! Objects that are rejected, by their error: the code, and the field and reason of every cause.
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::Api;

const PODS: &str = "/api/v1/namespaces/default/pods";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// The fields and reasons of an error's causes.
fn causes(answer: &Value) -> BTreeSet<(String, String)> {
    let list = answer["details"]["causes"].as_array().into_iter().flatten();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    list.map(|cause| (text(&cause["field"]), text(&cause["reason"]).replace("FieldValue", ""))).collect()
}

/// Sends objects, each with the expected causes: `FIELD REASON`, separated by commas.
async fn refused(api: &Api, method: &str, rows: &[(&str, Value, &str)]) {
    let mut wrong = Vec::new();
    for (path, object, wanted) in rows {
        let (code, answer) = api.call(method, path, object.clone()).await;
        let row = |row: &str| row.split_once(' ').map(|(field, reason)| (field.to_owned(), reason.to_owned()));
        let wanted: BTreeSet<_> = wanted.split(", ").filter_map(row).collect();
        if code != 422 || causes(&answer) != wanted {
            wrong.push(format!("{path} {object}\n  says   {code} {:?}\n  wanted {wanted:?}", causes(&answer)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn pod(spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    if let (Some(to), Some(from)) = (pod["spec"].as_object_mut(), spec.as_object()) {
        to.extend(from.clone());
    }
    pod
}

fn volume(source: Value) -> Value {
    let mut volume =
        json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}});
    if let (Some(to), Some(from)) = (volume["spec"].as_object_mut(), source.as_object()) {
        to.extend(from.clone());
    }
    volume
}

#[tokio::test]
async fn names_that_are_paths() {
    let api = Api::start().await;
    let event = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "default"}, "involvedObject": {"namespace": "default"},
        "reason": "r", "type": "Normal", "source": {"component": "c"}})
    };
    let labelled = json!({"metadata": {"name": "e", "namespace": "default", "labels": {"": "x"}}, "involvedObject": {"namespace": "default"}});
    const EVENTS: &str = "/api/v1/namespaces/default/events";
    refused(
        &api,
        "POST",
        &[
            (EVENTS, event("a/b"), "metadata.name Invalid"),
            (EVENTS, event("../x"), "metadata.name Invalid"),
            (EVENTS, labelled, "metadata.labels Invalid"),
        ],
    )
    .await;
}

#[tokio::test]
async fn volume_sources() {
    let api = Api::start().await;
    let affinity =
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}});
    refused(&api, "POST", &[
        (VOLUMES, volume(json!({"local": {"path": "../x"}, "nodeAffinity": affinity})), "spec.local.path Invalid"),
        (VOLUMES, volume(json!({"hostPath": {"path": "../x", "type": "Foo"}})), "spec.hostPath.path Invalid, spec.hostPath.type NotSupported"),
        (VOLUMES, volume(json!({"nfs": {"server": "", "path": "x"}})), "spec.nfs.server Required, spec.nfs.path Invalid"),
        (VOLUMES, volume(json!({"azureDisk": {"diskName": "", "diskURI": "x"}})), "spec.azureDisk.diskName Required, spec.azureDisk.diskURI NotSupported"),
        (VOLUMES, volume(json!({"csi": {"driver": "d", "volumeHandle": "h", "nodePublishSecretRef": {"name": "a/b"}}})),
            "spec.csi.nodePublishSecretRef.name Invalid, spec.csi.nodePublishSecretRef.namespace Required"),
        (PODS, pod(json!({"volumes": [{"name": "v", "flocker": {}}]})), "spec.volumes[0].flocker Required"),
        (PODS, pod(json!({"volumes": [{"name": "v", "quobyte": {"registry": "a", "volume": "v"}}]})), "spec.volumes[0].quobyte.registry Invalid"),
        ("/apis/storage.k8s.io/v1/volumeattachments", json!({"metadata": {"name": "a"}, "spec": {"attacher": "a", "nodeName": "n",
            "source": {"inlineVolumeSpec": {"capacity": {"storage": "1"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d"}}}}}),
            "spec.source.inlineVolumeSpec.capacity Forbidden, spec.source.inlineVolumeSpec.csi.volumeHandle Required"),
    ]).await;
}

#[tokio::test]
async fn pods_of_windows_and_of_selinux() {
    let api = Api::start().await;
    let windows = |options: Value| pod(json!({"securityContext": {"windowsOptions": options}}));
    refused(
        &api,
        "POST",
        &[
            (PODS, windows(json!({"hostProcess": true})), "spec.hostNetwork Invalid"),
            (
                PODS,
                windows(json!({"gmsaCredentialSpecName": "A_B"})),
                "spec.securityContext.windowsOptions.gmsaCredentialSpecName Invalid",
            ),
            (PODS, windows(json!({"runAsUserName": ""})), "spec.securityContext.windowsOptions.runAsUserName Invalid"),
            (
                PODS,
                pod(json!({"securityContext": {"seLinuxChangePolicy": "MountOption"}})),
                "spec.securityContext.seLinuxChangePolicy NotSupported",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn addresses() {
    let api = Api::start().await;
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.1.2.3/8"}}]}]}});
    let service = |spec: Value| json!({"metadata": {"name": "s"}, "spec": spec});
    refused(
        &api,
        "POST",
        &[
            (
                "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
                policy,
                "spec.ingress[0].from[0].ipBlock.cidr Invalid",
            ),
            (
                SERVICES,
                service(json!({"ports": [{"port": 1}], "externalIPs": ["::ffff:1.2.3.4"]})),
                "spec.externalIPs[0] Invalid",
            ),
            (
                SERVICES,
                service(
                    json!({"type": "LoadBalancer", "ports": [{"port": 1}], "loadBalancerSourceRanges": ["10.1.2.3/8"]}),
                ),
                "spec.LoadBalancerSourceRanges[0] Invalid",
            ),
            (SERVICES, service(json!({"ports": [{"port": 1}], "clusterIPs": ["10.0.0.9"]})), "spec.clusterIPs Invalid"),
            (
                PODS,
                pod(json!({"hostAliases": [{"ip": "::ffff:1.2.3.4", "hostnames": ["a"]}]})),
                "spec.hostAliases[0].ip Invalid",
            ),
            (
                "/apis/networking.k8s.io/v1/servicecidrs",
                json!({"metadata": {"name": "c"}, "spec": {"cidrs": ["10.1.2.3/8"]}}),
                "spec.cidrs[0] Invalid",
            ),
        ],
    )
    .await;
}

/// Controllers act on the status, so it is validated like a spec. Only the server sets deletion times.
#[tokio::test]
async fn updates() {
    let api = Api::start().await;
    let pod = api.create(PODS, pod(json!({}))).await;
    let service = api.create(SERVICES, json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}})).await;
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let class = api.create(classes, json!({"metadata": {"name": "c"}, "handler": "h"})).await;
    let with = |object: &Value, place: &str, value: Value| {
        let mut object = object.clone();
        let (parent, field) = place.rsplit_once('/').expect("a pointer");
        object.pointer_mut(parent).expect("a parent")[field] = value;
        object
    };
    let status = "/api/v1/namespaces/default/pods/p/status";
    refused(
        &api,
        "PUT",
        &[
            (status, with(&pod, "/status/podIP", json!("a")), "status.podIPs[0] Invalid"),
            (
                status,
                with(&pod, "/status/hostIPs", json!([{"ip": "a"}])),
                "status.hostIPs[0] Invalid, status.hostIPs[0].ip Invalid",
            ),
            (
                "/api/v1/namespaces/default/services/s",
                with(&service, "/metadata/deletionTimestamp", json!("2025-06-01T00:00:00Z")),
                "metadata.deletionTimestamp Invalid",
            ),
            (
                "/api/v1/namespaces/default/services/s",
                with(&service, "/spec/ipFamilies", json!(["IPv4", "IPv4"])),
                "spec.ipFamilies[1] Duplicate",
            ),
            (
                "/apis/node.k8s.io/v1/runtimeclasses/c",
                with(&class, "/scheduling", json!({"tolerations": [{"key": "k", "operator": "Foo"}]})),
                "scheduling.tolerations[0].operator NotSupported",
            ),
        ],
    )
    .await;
    let scale = json!({"metadata": {"name": "d", "namespace": "other"}, "spec": {"replicas": 1}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}});
    api.create("/apis/apps/v1/namespaces/default/deployments", deployment).await;
    let (code, answer) = api.call("PUT", "/apis/apps/v1/namespaces/default/deployments/d/scale", scale).await;
    assert_eq!(code, 400, "{answer}");
    let eviction = json!({"metadata": {"name": "p", "namespace": "other"}});
    let (code, answer) = api.call("POST", "/api/v1/namespaces/default/pods/p/eviction", eviction).await;
    assert_eq!(code, 400, "{answer}");
}
