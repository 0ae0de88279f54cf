//! Fields that the server sets and drops before an object is stored: one row for each such step of upstream's strategies
//! (`PrepareForCreate`, `PrepareForUpdate` in `pkg/registry/*/*/strategy.go`) and conversions (`pkg/apis/core/v1/conversion.go`).
//! Fields behind feature gates are in `crates/resources/src/gated`; addresses and ports of services are in `addresses.rs`.

use crate::common::Api;
use serde_json::{Value, json};

/// A write, and expected values in the answer by path; null means absent.
struct Step {
    /// The subject of upstream's step.
    what: &'static str,
    method: &'static str,
    uri: &'static str,
    body: Value,
    has: Vec<(&'static str, Value)>,
}

/// Placeholder for any time.
const SOME_TIME: &str = "<time>";

fn step(
    what: &'static str,
    method: &'static str,
    uri: &'static str,
    body: Value,
    has: &[(&'static str, Value)],
) -> Step {
    Step { what, method, uri, body, has: has.to_vec() }
}

async fn check(steps: Vec<Step>) {
    let api = Api::start().await;
    let mut faults = Vec::new();
    for Step { what, method, uri, mut body, has } in steps {
        if method == "PUT" {
            let stored = api.get(uri.trim_end_matches("/status")).await;
            body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        }
        let (code, answer) = api.call(method, uri, body.clone()).await;
        if !matches!(code, 200 | 201) {
            faults.push(format!("{what}: {method} {uri} {body}: {answer}"));
            continue;
        }
        for (pointer, wanted) in has {
            let found = answer.pointer(pointer).cloned().unwrap_or_default();
            let fits = match wanted.as_str() {
                Some(SOME_TIME) => found.is_string(),
                _ => found == wanted,
            };
            if !fits {
                faults.push(format!("{what}: {method} {uri}: {pointer} is {found}, not {wanted}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn pod_template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always"}})
}

fn once() -> Value {
    let mut template = pod_template();
    template["spec"]["restartPolicy"] = "Never".into();
    template
}

/// For each kind that counts spec changes: a new object has generation 1, a changed spec increments it, a changed label does not. A
/// status in the request is dropped if status is a subresource.
#[tokio::test]
async fn generations_and_status() {
    let selector = json!({"matchLabels": {"a": "b"}});
    let role = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "r"});
    let webhook = json!([{"name": "h.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://example.com"}}]);
    let changed_webhook = json!([{"name": "g.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://example.com"}}]);
    let slice_spec = |generation: i64| json!({"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1}});
    let rows: Vec<(&str, Value, Value, [Option<i64>; 2])> = vec![
        (
            "apis/apps/v1/namespaces/default/daemonsets",
            json!({"spec": {"selector": selector, "template": pod_template()}}),
            json!({"spec": {"minReadySeconds": 1}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/apps/v1/namespaces/default/deployments",
            json!({"spec": {"selector": selector, "template": pod_template()}}),
            json!({"spec": {"replicas": 2}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/apps/v1/namespaces/default/replicasets",
            json!({"spec": {"selector": selector, "template": pod_template()}}),
            json!({"spec": {"replicas": 2}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/apps/v1/namespaces/default/statefulsets",
            json!({"spec": {"selector": selector, "serviceName": "s", "template": pod_template()}}),
            json!({"spec": {"replicas": 2}}),
            [Some(1), Some(2)],
        ),
        (
            "api/v1/namespaces/default/replicationcontrollers",
            json!({"spec": {"selector": {"a": "b"}, "template": pod_template()}}),
            json!({"spec": {"replicas": 2}}),
            [Some(1), Some(2)],
        ),
        (
            "api/v1/namespaces/default/podtemplates",
            json!({"template": pod_template()}),
            json!({"template": {"metadata": {"labels": {"c": "d"}}}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/batch/v1/namespaces/default/jobs",
            json!({"spec": {"template": once()}}),
            json!({"spec": {"parallelism": 2}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/batch/v1/namespaces/default/cronjobs",
            json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": once()}}}}),
            json!({"spec": {"suspend": true}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            json!({"spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}}),
            json!({"spec": {"maxReplicas": 3}}),
            [None, None],
        ),
        (
            "apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({"spec": {"minAvailable": 1, "selector": selector}}),
            json!({"spec": {"minAvailable": 2}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/networking.k8s.io/v1/namespaces/default/ingresses",
            json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}),
            json!({"spec": {"ingressClassName": "c"}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/networking.k8s.io/v1/ingressclasses",
            json!({"spec": {"controller": "example.com/c"}}),
            json!({"spec": {"parameters": {"kind": "K", "name": "n"}}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
            json!({"spec": {"podSelector": {}}}),
            json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"addressType": "IPv4", "endpoints": []}),
            json!({"endpoints": [{"addresses": ["10.1.2.3"]}]}),
            [Some(1), Some(2)],
        ),
        (
            "apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"value": 5}),
            json!({"description": "other"}),
            [Some(1), Some(1)],
        ),
        (
            "apis/storage.k8s.io/v1/csidrivers",
            json!({"spec": {}}),
            json!({"spec": {"requiresRepublish": true}}),
            [None, Some(1)],
        ),
        (
            "apis/storage.k8s.io/v1/storageclasses",
            json!({"provisioner": "p"}),
            json!({"allowVolumeExpansion": true}),
            [None, None],
        ),
        (
            "apis/storage.k8s.io/v1/volumeattachments",
            json!({"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
            Value::Null,
            [None, None],
        ),
        (
            "apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
            json!({"spec": {"priorityLevelConfiguration": {"name": "exempt"}}}),
            json!({"spec": {"matchingPrecedence": 7}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
            json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "limitResponse": {"type": "Reject"}}}}),
            json!({"spec": {"limited": {"nominalConcurrencyShares": 6}}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            json!({"webhooks": webhook}),
            json!({"webhooks": changed_webhook}),
            [Some(1), Some(2)],
        ),
        (
            "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            json!({"webhooks": webhook}),
            json!({"webhooks": changed_webhook}),
            [Some(1), Some(2)],
        ),
        (
            "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            json!({"spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}, "validations": [{"expression": "true"}]}}),
            json!({"spec": {"failurePolicy": "Ignore"}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}),
            json!({"spec": {"validationActions": ["Warn"]}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/resource.k8s.io/v1/deviceclasses",
            json!({"spec": {}}),
            json!({"spec": {"selectors": [{"cel": {"expression": "true"}}]}}),
            [Some(1), Some(2)],
        ),
        (
            "apis/resource.k8s.io/v1/resourceslices",
            json!({"spec": slice_spec(1)}),
            json!({"spec": slice_spec(2)}),
            [Some(1), Some(2)],
        ),
        (
            "apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"rules": []}),
            json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
            [None, None],
        ),
        (
            "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({"roleRef": role}),
            json!({"subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]}),
            [None, None],
        ),
        (
            "api/v1/namespaces/default/pods",
            json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}),
            json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}),
            [Some(1), Some(2)],
        ),
        (
            "api/v1/namespaces/default/services",
            json!({"spec": {"clusterIP": "None"}}),
            json!({"spec": {"sessionAffinity": "ClientIP"}}),
            [None, None],
        ),
        (
            "api/v1/namespaces/default/resourcequotas",
            json!({"spec": {"hard": {"pods": "1"}}}),
            json!({"spec": {"hard": {"pods": "2"}}}),
            [None, None],
        ),
    ];
    let api = Api::start().await;
    let mut faults = Vec::new();
    for (path, mut object, change, [made, then]) in rows {
        object["metadata"] = json!({"name": "x"});
        let (path, uri) = (format!("/{path}"), format!("/{path}/x"));
        // Labels of a slice are part of its content.
        let by_labels = i64::from(path.ends_with("endpointslices"));
        let labels = json!({"metadata": {"labels": {"l": "1"}}});
        let labelled = made.map(|n| n + by_labels);
        let writes = [
            ("POST", &path, object, made),
            ("PATCH", &uri, labels, labelled),
            ("PATCH", &uri, change, then.map(|n| n + by_labels)),
        ];
        for (method, uri, body, wanted) in writes {
            if body.is_null() {
                continue;
            }
            let (code, answer) = api.call(method, uri, body.clone()).await;
            if !matches!(code, 200 | 201) {
                faults.push(format!("{method} {uri} {body}: {answer}"));
            } else if answer["metadata"]["generation"].as_i64() != wanted {
                let found = &answer["metadata"]["generation"];
                faults.push(format!("{method} {uri} {body}: generation {found} instead of {wanted:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn nodes_and_volumes() {
    let node = |spec: Value| json!({"metadata": {"name": "n"}, "spec": spec});
    let claim = |spec: Value| {
        let mut spec = spec;
        spec["accessModes"] = json!(["ReadWriteOnce"]);
        spec["resources"] = json!({"requests": {"storage": "1Gi"}});
        spec
    };
    let volume = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
    let source = json!({"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "s"});
    let snapshot = json!({"kind": "VolumeSnapshot", "name": "s", "apiGroup": "snapshot.storage.k8s.io"});
    let other = json!({"kind": "K", "name": "s", "apiGroup": "example.com"});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    check(vec![
        step("Node: dropDisabledFields", "POST", "/api/v1/nodes",
            json!({"metadata": {"name": "n"}, "spec": {"configSource": {}}, "status": {"config": {"error": "x"}, "phase": "Running"}}),
            &[("/spec/configSource", Value::Null), ("/status/config", Value::Null), ("/status/phase", json!("Running"))]),
        step("Node: dropDisabledFields", "PATCH", "/api/v1/nodes/n", json!({"spec": {"configSource": {"configMap": {"name": "a", "namespace": "b", "kubeletConfigKey": "c"}}}}), &[("/spec/configSource", Value::Null)]),
        step("Node: nodeStatusConfigInUse", "PATCH", "/api/v1/nodes/n/status", json!({"status": {"config": {"error": "x"}}}), &[("/status/config", Value::Null)]),
        step("NodeSpec: podCIDR is the first of podCIDRs", "POST", "/api/v1/nodes", {
            let mut other = node(json!({"podCIDRs": ["10.1.0.0/24"]}));
            other["metadata"]["name"] = "m".into();
            other
        }, &[("/spec/podCIDR", json!("10.1.0.0/24"))]),
        step("PersistentVolume: pending since now", "POST", "/api/v1/persistentvolumes", json!({"metadata": {"name": "v"}, "spec": volume, "status": {"phase": "Bound"}}),
            &[("/status/phase", json!("Pending")), ("/status/lastPhaseTransitionTime", json!(SOME_TIME))]),
        step("PersistentVolume: another phase, given its time", "PUT", "/api/v1/persistentvolumes/v/status",
            json!({"metadata": {"name": "v"}, "spec": volume, "status": {"phase": "Available", "lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}}),
            &[("/status/lastPhaseTransitionTime", json!("2020-01-01T00:00:00Z"))]),
        step("PersistentVolume: the same phase keeps its time", "PUT", "/api/v1/persistentvolumes/v/status",
            json!({"metadata": {"name": "v"}, "spec": volume, "status": {"phase": "Available", "message": "m"}}),
            &[("/status/lastPhaseTransitionTime", json!("2020-01-01T00:00:00Z")), ("/status/message", json!("m"))]),
        step("PersistentVolumeClaim: NormalizeDataSources", "POST", claims, json!({"metadata": {"name": "a"}, "spec": claim(json!({"dataSource": source}))}),
            &[("/spec/dataSource", source.clone()), ("/spec/dataSourceRef", source.clone()), ("/status/phase", json!("Pending"))]),
        step("PersistentVolumeClaim: NormalizeDataSources", "POST", claims, json!({"metadata": {"name": "b"}, "spec": claim(json!({"dataSourceRef": snapshot}))}),
            &[("/spec/dataSource", snapshot.clone()), ("/spec/dataSourceRef", snapshot.clone())]),
        step("PersistentVolumeClaim: EnforceDataSourceBackwardsCompatibility", "POST", claims, json!({"metadata": {"name": "c"}, "spec": claim(json!({"dataSource": other}))}),
            &[("/spec/dataSource", Value::Null), ("/spec/dataSourceRef", Value::Null)]),
        step("PersistentVolumeClaim: NormalizeDataSources", "POST", claims, json!({"metadata": {"name": "d"}, "spec": claim(json!({"dataSourceRef": other}))}),
            &[("/spec/dataSource", other.clone()), ("/spec/dataSourceRef", other.clone())]),
        step("VolumeAttachment: status", "POST", "/apis/storage.k8s.io/v1/volumeattachments",
            json!({"metadata": {"name": "t"}, "spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}, "status": {"attached": true}}),
            &[("/status/attached", json!(false))]),
        step("VolumeAttachment: ResetObjectMetaForStatus", "PATCH", "/apis/storage.k8s.io/v1/volumeattachments/t/status",
            json!({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a/b"]}, "spec": {"attacher": "z"}, "status": {"attached": true}}),
            &[("/metadata/labels", Value::Null), ("/metadata/annotations", Value::Null), ("/metadata/finalizers", Value::Null), ("/spec/attacher", json!("a")), ("/status/attached", json!(true))]),
    ])
    .await;
}

#[tokio::test]
async fn pods() {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p", "annotations": {"pod.beta.kubernetes.io/init-containers": "x", "pod.alpha.kubernetes.io/init-container-statuses": "x", "a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccount": "s", "terminationGracePeriodSeconds": -5}, "status": {"phase": "Running", "podIP": "1.1.1.1"}});
    let mut gated = json!({"metadata": {"name": "g"}, "spec": {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "a/b"}]}});
    gated["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": ["l"]}]);
    gated["metadata"]["labels"] = json!({"l": "1"});
    let status = "/api/v1/namespaces/default/pods/p/status";
    check(vec![
        step("Pod: status", "POST", pods, pod, &[
            ("/status/phase", json!("Pending")), ("/status/qosClass", json!("BestEffort")), ("/status/podIP", Value::Null),
            ("/metadata/annotations", json!({"a": "b"})), ("/spec/serviceAccountName", json!("s")), ("/spec/terminationGracePeriodSeconds", json!(1)),
        ]),
        step("Pod: applySchedulingGatedCondition, mutateTopologySpreadConstraints", "POST", pods, gated, &[
            ("/status/conditions/0/reason", json!("SchedulingGated")),
            ("/spec/topologySpreadConstraints/0/labelSelector/matchExpressions/0/values", json!(["1"])),
        ]),
        step("PodStatus: podIP is the first of podIPs", "PATCH", status, json!({"status": {"podIPs": [{"ip": "1.1.1.1"}]}}), &[("/status/podIP", json!("1.1.1.1"))]),
        step("PodStatus: podIP wins", "PATCH", status, json!({"status": {"podIP": "1.1.1.9"}}), &[("/status/podIPs", json!([{"ip": "1.1.1.9"}])), ("/status/podIP", json!("1.1.1.9"))]),
        step("PodStatus: podIP wins", "PATCH", status, json!({"status": {"podIP": "1.1.1.3", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}]}}), &[("/status/podIPs", json!([{"ip": "1.1.1.3"}]))]),
        step("PodStatus: none", "PATCH", status, json!({"status": {"podIP": null, "podIPs": null}}), &[("/status/podIPs", Value::Null), ("/status/podIP", Value::Null)]),
        step("PodStatus: podIP alone", "PATCH", status, json!({"status": {"podIP": "1.1.1.4", "hostIP": "1.1.1.5"}}), &[("/status/podIPs", json!([{"ip": "1.1.1.4"}])), ("/status/hostIPs", Value::Null)]),
        step("Pod: qosClass and owners stay", "PATCH", status, json!({"status": {"qosClass": null}, "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}]}}),
            &[("/status/qosClass", json!("BestEffort")), ("/metadata/ownerReferences", Value::Null)]),
        step("PodTemplateSpec: dropInitContainerAnnotations", "POST", "/api/v1/namespaces/default/podtemplates",
            json!({"metadata": {"name": "t"}, "template": {"metadata": {"annotations": {"pod.beta.kubernetes.io/init-container-statuses": "x", "a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
            &[("/template/metadata/annotations", json!({"a": "b"}))]),
    ])
    .await;
}

#[tokio::test]
async fn names_references_and_namespaces() {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let topology = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"], "deprecatedTopology": {"kubernetes.io/hostname": "n", "zone": "z"}}], "metadata": {"name": "s"}});
    check(vec![
        step("ServiceAccount: cleanSecretReferences", "POST", accounts,
            json!({"metadata": {"name": "a"}, "secrets": [{"name": "s", "kind": "Secret", "namespace": "other", "uid": "u"}]}), &[("/secrets", json!([{"name": "s"}]))]),
        step("ServiceAccount: cleanSecretReferences", "PATCH", "/api/v1/namespaces/default/serviceaccounts/a", json!({"secrets": [{"name": "t", "fieldPath": "f"}]}), &[("/secrets", json!([{"name": "t"}]))]),
        step("LimitRange: a UUID for a name", "POST", "/api/v1/namespaces/default/limitranges", json!({"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}), &[("/metadata/name", json!(SOME_TIME))]),
        step("EndpointSlice: dropTopologyOnV1", "POST", slices, topology.clone(), &[("/endpoints/0/deprecatedTopology", Value::Null), ("/endpoints/0/nodeName", Value::Null)]),
        step("EndpointSlice: dropTopologyOnV1", "PATCH", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s", json!({"endpoints": topology["endpoints"]}), &[("/endpoints/0/deprecatedTopology", Value::Null)]),
        step("Namespace: finalizer, phase and label", "POST", "/api/v1/namespaces", json!({"metadata": {"name": "ns"}, "spec": {"finalizers": ["a.b/c"]}, "status": {"phase": "Terminating"}}),
            &[("/spec/finalizers", json!(["a.b/c", "kubernetes"])), ("/status/phase", json!("Active")), ("/metadata/labels/kubernetes.io~1metadata.name", json!("ns"))]),
        step("Namespace: finalizers stay", "PATCH", "/api/v1/namespaces/ns", json!({"spec": {"finalizers": []}}), &[("/spec/finalizers", json!(["a.b/c", "kubernetes"]))]),
        step("Secret: type stays", "POST", "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}}), &[("/type", json!("Opaque")), ("/data", json!({"a": "Yg=="})), ("/stringData", Value::Null)]),
        step("DaemonSet: templateGeneration", "POST", "/apis/apps/v1/namespaces/default/daemonsets", json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod_template()}}),
            &[("/metadata/annotations/deprecated.daemonset.template.generation", json!("1")),
              ("/metadata/managedFields/0/fieldsV1/f:metadata/f:annotations/f:deprecated.daemonset.template.generation", json!({}))]),
        step("DaemonSet: templateGeneration", "POST", "/apis/apps/v1/namespaces/default/daemonsets", json!({"metadata": {"name": "e", "annotations": {"deprecated.daemonset.template.generation": "7"}}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod_template()}}),
            &[("/metadata/annotations/deprecated.daemonset.template.generation", json!("7"))]),
        step("Job: generateSelectorIfNeeded", "POST", "/apis/batch/v1/namespaces/default/jobs", json!({"metadata": {"name": "j"}, "spec": {"template": once()}, "status": {"active": 3}}),
            &[("/spec/template/metadata/labels/job-name", json!("j")), ("/status/active", Value::Null)]),
    ])
    .await;
}

#[tokio::test]
async fn devices() {
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let status = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/x/status";
    let result = |device: &str| json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": device});
    let device = |device: &str| json!({"driver": "d.example.com", "pool": "p", "device": device, "data": {"a": 1}});
    let slice = |taints: Value| json!({"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d", "taints": taints}]});
    let taint = json!({"key": "k", "effect": "NoExecute"});
    let old = json!({"key": "k", "effect": "NoExecute", "timeAdded": "2020-01-01T00:00:00Z"});
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let one = "/apis/resource.k8s.io/v1/resourceslices/s";
    let at = "/spec/devices/0/taints/0/timeAdded";
    check(vec![
        step("ResourceClaim: status", "POST", claims, json!({"metadata": {"name": "x"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}, "status": {"allocation": {}}}), &[("/status/allocation", Value::Null)]),
        step("ResourceClaim: ResetObjectMetaForStatus", "PATCH", status, json!({"metadata": {"labels": {"a": "b"}}, "status": {"allocation": {"devices": {"results": [result("a"), result("b")]}}}}), &[("/metadata/labels", Value::Null)]),
        step("ResourceClaim: what drivers say", "PATCH", status, json!({"status": {"devices": [device("a"), device("b")]}}), &[("/status/devices/1/device", json!("b"))]),
        step("ResourceClaim: dropDeallocatedStatusDevices", "PATCH", status, json!({"status": {"allocation": null}}), &[("/status", json!({}))]),
        step("DeviceTaint: timeAdded", "POST", slices, json!({"metadata": {"name": "s"}, "spec": slice(json!([taint]))}), &[(at, json!(SOME_TIME))]),
        step("DeviceTaint: timeAdded", "PATCH", one, json!({"spec": slice(json!([old]))}), &[(at, json!("2020-01-01T00:00:00Z"))]),
        step("DeviceTaint: timeAdded", "PATCH", one, json!({"spec": slice(json!([old, taint]))}), &[(at, json!("2020-01-01T00:00:00Z")), ("/spec/devices/0/taints/1/timeAdded", json!(SOME_TIME)), ("/metadata/generation", json!(3))]),
    ])
    .await;
}
