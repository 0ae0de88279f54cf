//! Every served kind with every field set, and a typical stateful set, through all three encodings: the tree and its bytes stay the
//! same.
use kelson_codec::{Encoding, canonical_json, decode, encode, proto};
use kelson_schema::{Schema, TypeId, resource, sample};
use serde_json::{Value, json};

fn round_trips(what: &str, ty: TypeId, object: &Value) {
    let mut before = object.clone();
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Json] {
        let bytes = encode(encoding, Some(ty), &before).unwrap_or_else(|e| panic!("{what}: {encoding:?}: {e}"));
        let decoded = decode(encoding, Some(ty), &bytes, true).unwrap_or_else(|e| panic!("{what}: {encoding:?}: {e}"));
        assert!(decoded.strict.is_empty(), "{what}: {encoding:?}: {}", decoded.strict);
        // Protobuf does not carry the kinds of embedded objects. The reader must know them.
        if encoding == Encoding::Protobuf {
            assert_eq!(plain(&decoded.value, 0), plain(object, 0), "{what}: {encoding:?}");
        } else {
            assert_eq!(decoded.value, before, "{what}: {encoding:?}");
        }
        if ty.has_proto() {
            let stored = canonical_json(&decoded.value);
            let stored = std::str::from_utf8(&stored).expect("UTF-8");
            let message = proto::encode_stored(ty, stored);
            assert!(
                message == proto::encode_message(ty, &decoded.value),
                "{what}: the stored text gives another message"
            );
            let document = proto::encode_stored_document(ty, stored);
            assert!(document == proto::encode(ty, &decoded.value), "{what}: the stored text gives another document");
        }
        let again = encode(encoding, Some(ty), &decoded.value).expect("encodes as before");
        assert!(bytes == again, "{what}: {encoding:?}: other bytes of the same tree");
        before = decoded.value;
    }
}

/// The value without the kinds of embedded objects.
fn plain(value: &Value, depth: usize) -> Value {
    match value {
        Value::Object(members) => {
            let nested = depth > 0 && members.contains_key("metadata");
            let kept = members.iter().filter(|(k, _)| !(nested && matches!(k.as_str(), "kind" | "apiVersion")));
            Value::Object(kept.map(|(k, v)| (k.clone(), plain(v, depth + 1))).collect())
        }
        Value::Array(items) => items.iter().map(|v| plain(v, depth + 1)).collect(),
        other => other.clone(),
    }
}

#[test]
fn every_served_kind() {
    let mut seen = 0;
    for r in resource::resources() {
        let ty = Schema::builtin().by_gvk(r.group, r.version, r.kind).expect("a served kind has a type");
        let mut object = sample::object(ty);
        let api = if r.group.is_empty() { r.version.to_owned() } else { format!("{}/{}", r.group, r.version) };
        object.insert("apiVersion".into(), api.into());
        object.insert("kind".into(), r.kind.into());
        round_trips(&format!("{} {}", r.version, r.plural), ty, &Value::Object(object));
        seen += 1;
    }
    assert!(seen > 60, "only {seen} kinds");
}

/// A stateful set with values that no sample has: lists with several elements, both forms of a port, strings of several
/// lines, and names that look like numbers and booleans.
#[test]
fn a_whole_stateful_set() {
    let ty = Schema::builtin().by_gvk("apps", "v1", "StatefulSet").expect("the kind");
    let probe =
        |port: Value| json!({"httpGet": {"path": "/ready?full=1", "port": port, "scheme": "HTTP"}, "periodSeconds": 5});
    let container = json!({
        "name": "db", "image": "registry.example.com:5000/db@sha256:0123", "command": ["sh", "-c", "exec db\n--flag 'a b'\n"],
        "args": ["on", "0x1f", "1e3", "~", "", "é \u{1f600}"],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "YES", "value": "yes"}, {"name": "EMPTY"}],
        "ports": [{"name": "sql", "containerPort": 5432, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}],
        "livenessProbe": probe(json!(8080)), "readinessProbe": probe(json!("sql")),
        "resources": {"limits": {"cpu": "1500m", "memory": "1536Mi", "example.com/gpu": "2"}, "requests": {"cpu": "100m"}},
        "securityContext": {"runAsUser": 0, "privileged": false, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data", "subPathExpr": "$(POD)"}, {"name": "conf", "mountPath": "/c"}]
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "prod", "generation": 7, "creationTimestamp": "2026-02-28T23:59:59Z",
            "labels": {"app": "db", "1": "true"}, "annotations": {"note": "first line\n  second: line\n", "empty": ""},
            "managedFields": [{"manager": "kubectl", "operation": "Apply", "apiVersion": "apps/v1",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:replicas": {}, "k:{\"name\":\"db\"}": {".": {}}}}}]},
        "spec": {
            "replicas": 0, "serviceName": "db", "podManagementPolicy": "Parallel", "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "db"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "x", "operator": "Exists"}]},
            "ordinals": {"start": 3},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2, "maxUnavailable": "25%"}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"containers": [container, {"name": "side", "image": "side", "resources": {}}],
                    "initContainers": [{"name": "init", "image": "init", "restartPolicy": "Always", "resources": {}}],
                    "terminationGracePeriodSeconds": 0, "hostUsers": false,
                    "tolerations": [{"operator": "Exists"}, {"key": "k", "tolerationSeconds": 300, "effect": "NoExecute"}],
                    "volumes": [{"name": "conf", "projected": {"defaultMode": 288, "sources": [
                        {"configMap": {"name": "c", "items": [{"key": "k", "path": "p", "mode": 256}]}},
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}},
                        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}]}},
            "volumeClaimTemplates": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
                    "storageClassName": "", "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}]},
        "status": {"replicas": 3, "readyReplicas": 2, "collisionCount": 0, "observedGeneration": 7, "availableReplicas": 1,
            "conditions": [{"type": "Ok", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    });
    round_trips("StatefulSet", ty, &set);
}
