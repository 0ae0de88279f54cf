//! Validation of pods.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Pods;
use crate::strategy::{Context, Strategy};

fn pod(spec: Value) -> Value {
    let mut p = json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"}, "spec": spec});
    Pods.set_defaults("v1", &mut p);
    Pods.prepare_create(&Context::at(Timestamp::UNIX_EPOCH), &mut p);
    p
}

fn one(container: Value) -> Value {
    let mut c = json!({"name": "c", "image": "i"});
    for (k, v) in container.as_object().unwrap() {
        c[k] = v.clone();
    }
    json!({"containers": [c]})
}

fn check(spec: Value, want: &[&str]) {
    let got: Vec<String> = Pods.validate_create(&pod(spec.clone())).0.iter().map(ToString::to_string).collect();
    assert_eq!(got, want, "{spec}");
}

#[test]
fn containers() {
    check(one(json!({})), &[]);
    check(json!({}), &["spec.containers: Required value"]);
    check(
        json!({"containers": [{"name": "C", "image": " i"}, {"name": "c", "image": "i"}, {"name": "c"}]}),
        &[
            "spec.containers[0].name: Invalid value: \"C\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            "spec.containers[2].image: Required value",
            "spec.containers[2].name: Duplicate value: \"c\"",
            "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace",
        ],
    );
    check(
        json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "c", "image": "i",
            "livenessProbe": {"exec": {"command": ["x"]}}}]}),
        &[
            "spec.initContainers[0].name: Duplicate value: \"c\"",
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ],
    );
}

#[test]
fn parts_of_containers() {
    check(
        one(json!({"ports": [{"containerPort": 0}, {"containerPort": 70000, "protocol": "X", "name": "a--b"}]})),
        &[
            "spec.containers[0].ports[0].containerPort: Required value",
            "spec.containers[0].ports[1].name: Invalid value: \"a--b\": must not contain consecutive hyphens",
            "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[1].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    check(
        one(json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "B", "valueFrom": {}}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "spec.nope"}}}]})),
        &[
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].env[1].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            "spec.containers[0].env[2].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.nope\": error converting fieldPath: field label not supported: spec.nope",
        ],
    );
    check(
        one(
            json!({"resources": {"requests": {"cpu": "2", "foo": "1"}, "limits": {"cpu": "1", "example.com/x": "1500m"}}}),
        ),
        &[
            "spec.containers[0].resources.limits[example.com/x]: Invalid value: \"1500m\": must be an integer",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.containers[0].resources.requests[example.com/x]: Invalid value: \"1500m\": must be an integer",
            "spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified",
            "spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource for containers",
        ],
    );
    check(
        one(json!({"readinessProbe": {"httpGet": {"port": "http"}, "tcpSocket": {"port": 1}, "periodSeconds": -1}})),
        &[
            "spec.containers[0].readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
            "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    check(
        one(json!({"securityContext": {"runAsUser": -1, "privileged": true, "allowPrivilegeEscalation": false}})),
        &[
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.containers[0].securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true,\"runAsUser\":-1}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ],
    );
}

#[test]
fn volumes() {
    let mut spec = one(json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "x", "mountPath": "/a"}]}));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    check(
        spec,
        &[
            "spec.containers[0].volumeMounts[1].name: Not found: \"x\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
        ],
    );
    let mut spec = one(json!({}));
    spec["volumes"] = json!([{"name": "a", "secret": {}}, {"name": "b", "hostPath": {"path": "/../x"}},
        {"name": "c", "emptyDir": {}, "nfs": {"server": "s", "path": "/p"}},
        {"name": "d", "configMap": {"name": "m", "items": [{"key": "k", "path": "../x"}]}}]);
    check(
        spec,
        &[
            "spec.volumes[0].secret.secretName: Required value",
            "spec.volumes[1].hostPath.path: Invalid value: \"/../x\": must not contain '..'",
            "spec.volumes[2].nfs: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[3].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'",
        ],
    );
}

#[test]
fn pod_level() {
    let mut spec = one(json!({}));
    spec["restartPolicy"] = json!("Sometimes");
    spec["tolerations"] = json!([{"operator": "Equal", "value": "x"}]);
    spec["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}});
    spec["nodeName"] = json!("N");
    let got = Pods.validate_create(&pod(spec)).to_string();
    for part in [
        "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty",
        "spec.nodeName: Invalid value: \"N\"",
    ] {
        assert!(got.contains(part), "{part} not in {got}");
    }
}

#[test]
fn creation_sets_status() {
    let p = pod(one(json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}})));
    assert_eq!(p["status"], json!({"phase": "Pending", "qosClass": "Guaranteed"}));
    assert_eq!(p["metadata"]["generation"], 1);
    assert_eq!(pod(one(json!({})))["status"]["qosClass"], "BestEffort");
    assert_eq!(pod(one(json!({"resources": {"requests": {"cpu": "1"}}})))["status"]["qosClass"], "Burstable");
}

#[test]
fn only_some_fields_change() {
    let old = pod(one(json!({})));
    let update = |f: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        f(&mut new);
        Pods.prepare_update(&Context::at(Timestamp::UNIX_EPOCH), &mut new, &old);
        Pods.validate_update(&new, &old).to_string()
    };
    assert_eq!(update(&|p| p["spec"]["containers"][0]["image"] = json!("j")), "[]");
    assert_eq!(update(&|p| p["spec"]["tolerations"] = json!([{"operator": "Exists"}])), "[]");
    assert!(
        update(&|p| p["spec"]["hostname"] = json!("x"))
            .starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,")
    );
    assert_eq!(
        update(&|p| p["spec"]["containers"] = json!([])),
        "[spec.containers: Required value, spec.containers: Forbidden: pod updates may not add or remove containers]"
    );
}

#[test]
fn subresources() {
    let cx = Context::at(Timestamp::UNIX_EPOCH);
    let old = pod(one(json!({"resources": {"requests": {"cpu": "1"}}})));
    let mut new = old.clone();
    new["spec"]["hostname"] = json!("ignored");
    new["spec"]["ephemeralContainers"] = json!([{"name": "d", "image": "i"}]);
    Pods.set_defaults("v1", &mut new);
    Pods.prepare_subresource_update(&cx, "ephemeralcontainers", &mut new, &old);
    assert!(new["spec"].get("hostname").is_none());
    assert_eq!(new["metadata"]["generation"], 2);
    assert_eq!(Pods.validate_subresource_update("ephemeralcontainers", &new, &old).to_string(), "[]");

    let mut new = old.clone();
    new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    new["spec"]["containers"][0]["image"] = json!("ignored");
    Pods.prepare_subresource_update(&cx, "resize", &mut new, &old);
    assert_eq!(new["spec"]["containers"][0]["image"], "i");
    assert_eq!(new["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(Pods.validate_subresource_update("resize", &new, &old).to_string(), "[]");

    let mut new = old.clone();
    new["spec"]["nodeName"] = json!("ignored");
    new["status"] = json!({"phase": "Running"});
    Pods.prepare_subresource_update(&cx, "status", &mut new, &old);
    assert!(new["spec"].get("nodeName").is_none());
    assert_eq!(new["status"], json!({"phase": "Running", "qosClass": "Burstable"}));
}

#[test]
fn what_has_ended_runs_again_only_where_the_pod_lets_it() {
    let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
    let sidecar = |action: &str| json!([{"name": "s", "restartPolicy": "Always", "restartPolicyRules": rule(action)}]);
    let faults = |more: Value, code: i64| {
        let mut spec = json!({"restartPolicy": "Never", "containers": [{"name": "c"}]});
        for (k, v) in more.as_object().unwrap() {
            spec[k] = v.clone();
        }
        let of = |state: Value| {
            json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"}, "spec": spec,
                "status": {"containerStatuses": [{"name": "c", "state": state}]}})
        };
        let (old, new) = (of(json!({"terminated": {"exitCode": code}})), of(json!({"waiting": {}})));
        Pods.validate_subresource_update("status", &new, &old).0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let refused = ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"];
    for (more, code, want) in [
        (json!({}), 1, &refused[..]),
        (json!({"restartPolicy": "OnFailure"}), 0, &refused),
        (json!({"restartPolicy": "OnFailure"}), 1, &[]),
        (json!({"restartPolicy": "Always"}), 0, &[]),
        (json!({"containers": [{"name": "c", "restartPolicy": "Always"}]}), 0, &[]),
        (json!({"initContainers": sidecar("Restart")}), 137, &refused),
        (json!({"initContainers": sidecar("RestartAllContainers")}), 137, &[]),
    ] {
        assert_eq!(faults(more.clone(), code), want, "{more} {code}");
    }
}
