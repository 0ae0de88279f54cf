//! Answers of each verb to invalid input: code, reason and message, which clients and people read, word for word as upstream's handlers
//! write them.

use crate::common::Api;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// One request and its answer: method, URI, type of the body, body, code, reason, message.
type Row = (&'static str, &'static str, &'static str, &'static str, u16, &'static str, &'static str);

async fn check(api: &Api, rows: &[Row]) {
    let mut wrong = Vec::new();
    for (method, uri, kind, body, code, reason, message) in rows {
        let headers = [("content-type", *kind), ("user-agent", "test/1")];
        let response = api.raw(method, uri, &headers, *body).await;
        let got = response.status().as_u16();
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
        let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let said = (got, status["reason"].as_str().unwrap_or(""), status["message"].as_str().unwrap_or(""));
        if said != (*code, *reason, *message) {
            wrong.push(format!("{method} {uri} {body}\n  says   {said:?}\n  wanted {:?}", (code, reason, message)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn with_a_map() -> Api {
    let api = Api::start().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    api.create(MAPS, map).await;
    api
}

#[tokio::test]
async fn patches() {
    let api = with_a_map().await;
    const A: &str = "/api/v1/namespaces/default/configmaps/a";
    check(&api, &[
        ("PATCH", A, STRATEGIC, r#"{"metadata":{"labels":"x"}}"#, 422, "Invalid",
            r#" "" is invalid: patch: Invalid value: "map[metadata:map[labels:x]]": cannot restore map from string"#),
        ("PATCH", A, STRATEGIC, r#"{"metadata":{"labels":{"n":1}}}"#, 422, "Invalid",
            r#" "" is invalid: patch: Invalid value: "map[metadata:map[labels:map[n:1]]]": cannot convert int64 to string"#),
        ("PATCH", A, STRATEGIC, "[]", 400, "BadRequest",
            "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("PATCH", A, MERGE, "[]", 400, "BadRequest",
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("PATCH", A, JSON_PATCH, "{}", 400, "BadRequest",
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ("PATCH", A, JSON_PATCH, r#"[{"op":"test","path":"/data/k","value":"w"}]"#, 422, "Invalid",
            "the server rejected our request due to an error in our request"),
        ("PATCH", A, JSON, "{}", 415, "UnsupportedMediaType", "415: Unsupported Media Type"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/none", MERGE, "{", 404, "NotFound", r#"configmaps "none" not found"#),
        ("PATCH", A, JSON_PATCH, "[1]", 400, "BadRequest",
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ("PATCH", A, JSON_PATCH, r#"[{"op":1}]"#, 400, "BadRequest",
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ("PATCH", A, STRATEGIC, r#"{"$patch":"odd","a":1}"#, 500, "", "unknown patch type: odd in map: map[$patch:odd a:1]"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/none", MERGE, "{}", 404, "NotFound", r#"configmaps "none" not found"#),
        ("PATCH", "/api/v1/namespaces/default/configmaps/a?force=true", MERGE, "{}", 422, "Invalid",
            r#"PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch"#),
        ("PATCH", A, "application/apply-patch+yaml", "{}", 422, "Invalid",
            r#"PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch"#),
        ("PATCH", A, MERGE, r#"{"metadata":{"name":"b"}}"#, 400, "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/a?fieldValidation=Strict", STRATEGIC, r#"{"spec":{"x":1}}"#, 422, "Invalid",
            r#" "" is invalid: patch: Invalid value: "map[spec:map[x:1]]": strict decoding error: unknown field "spec""#),
        ("PATCH", "/api/v1/namespaces/default/configmaps/a?fieldValidation=Strict", STRATEGIC, r#"{"data":{"x":"1"},"data":{"x":"2"}}"#, 422, "Invalid",
            r#" "" is invalid: patch: Invalid value: "map[data:map[x:2]]": strict decoding error: duplicate field "data""#),
    ]).await;
}

/// An invalid result of a patch is shown in the message, before the error.
#[tokio::test]
async fn invalid_results_of_patches() {
    let api = with_a_map().await;
    let strict = format!("{MAPS}/a?fieldValidation=Strict");
    for (kind, uri, patch, ends) in [
        (
            MERGE,
            format!("{MAPS}/a"),
            json!({"data": {"k": 1}}),
            ": json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (MERGE, strict.clone(), json!({"spec": 1}), "strict decoding error: unknown field \"spec\""),
        (
            JSON_PATCH,
            strict,
            json!([{"op": "add", "path": "/spec", "value": 1, "why": ""}]),
            "strict decoding error: json patch unknown field \"[0].why\", unknown field \"spec\"",
        ),
    ] {
        let (code, status) = api.typed("PATCH", &uri, kind, patch).await;
        let message = status["message"].as_str().unwrap_or("");
        assert_eq!((code, status["reason"].as_str()), (422, Some("Invalid")), "{status}");
        assert!(message.starts_with(" \"\" is invalid: patch: Invalid value: \"{"), "{message}");
        assert!(message.ends_with(ends), "{message}");
        assert_eq!(status["details"]["causes"][0]["field"], "patch");
    }
}

#[tokio::test]
async fn duplicate_keys_in_patches_are_reported() {
    let api = with_a_map().await;
    let headers = [("content-type", MERGE)];
    let body = r#"{"data":{"x":"1","x":"2"},"spec":1}"#;
    let answer = api.raw("PATCH", &format!("{MAPS}/a"), &headers, body).await;
    let warnings: Vec<&str> = answer.headers().get_all("warning").iter().filter_map(|w| w.to_str().ok()).collect();
    assert_eq!(answer.status(), 200);
    assert_eq!(warnings, [r#"299 - "duplicate field \"data.x\"""#, r#"299 - "unknown field \"spec\"""#]);
}

#[tokio::test]
async fn lists_and_watches() {
    let api = with_a_map().await;
    check(&api, &[
        ("GET", "/api/v1/configmaps?resourceVersion=x", JSON, "", 400, "BadRequest",
            r#"invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax"#),
        ("GET", "/api/v1/configmaps?limit=1&continue=!", JSON, "", 400, "BadRequest",
            "invalid continue token: continue key is not valid: illegal base64 data at input byte 0"),
        ("GET", "/api/v1/configmaps?resourceVersionMatch=Exact&sendInitialEvents=true", JSON, "", 422, "Invalid",
            r#"ListOptions.meta.k8s.io "" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided, sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list]"#),
        ("GET", "/api/v1/configmaps?watch=1&sendInitialEvents=true", JSON, "", 422, "Invalid",
            r#"ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"#),
        ("GET", "/api/v1/configmaps?fieldSelector=spec.x%3D1", JSON, "", 400, "BadRequest",
            r#""spec.x" is not a known field selector: only "metadata.name", "metadata.namespace""#),
    ]).await;
}

#[tokio::test]
async fn creates_updates_and_deletes() {
    let api = with_a_map().await;
    const A: &str = "/api/v1/namespaces/default/configmaps/a";
    check(&api, &[
        ("POST", MAPS, JSON, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#, 409, "AlreadyExists",
            r#"configmaps "a" already exists"#),
        ("POST", MAPS, JSON, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","namespace":"c"}}"#, 400, "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request"),
        ("POST", MAPS, JSON, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}"#, 422, "Invalid",
            r#"ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required"#),
        ("POST", "/api/v1/namespaces/default/configmaps?dryRun=some", JSON, r#"{"metadata":{"name":"b"}}"#, 422, "Invalid",
            r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["some"]: supported values: "All""#),
        ("POST", "/api/v1/namespaces/default/configmaps?fieldValidation=Some", JSON, r#"{"metadata":{"name":"b"}}"#, 422, "Invalid",
            r#"CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Some": supported values: "", "Ignore", "Strict", "Warn""#),
        ("POST", "/api/v1/namespaces/none/configmaps", JSON, r#"{"metadata":{"name":"b"}}"#, 404, "NotFound",
            r#"namespaces "none" not found"#),
        ("PUT", A, JSON, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}"#, 400, "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)"),
        ("PUT", A, JSON, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1"}}"#, 409, "Conflict",
            r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#),
        ("PUT", "/api/v1/namespaces/default/configmaps/none", JSON, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"none"}}"#, 404, "NotFound",
            r#"configmaps "none" not found"#),
        ("DELETE", "/api/v1/namespaces/default/configmaps/a?propagationPolicy=Odd", JSON, "", 422, "Invalid",
            r#"DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Odd": supported values: "Foreground", "Background", "Orphan", "nil""#),
        ("DELETE", "/api/v1/namespaces/default/configmaps/none", JSON, "", 404, "NotFound", r#"configmaps "none" not found"#),
    ]).await;
}

/// A version is accepted in a dry run, which stores nothing, and rejected otherwise.
#[tokio::test]
async fn a_version_in_a_created_object() {
    let api = Api::start().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "resourceVersion": "7"}});
    let (code, status) = api.call("POST", MAPS, map.clone()).await;
    assert_eq!(
        (code, status["message"].as_str()),
        (500, Some("resourceVersion should not be set on objects to be created"))
    );
    let (code, made) = api.call("POST", &format!("{MAPS}?dryRun=All"), map).await;
    assert_eq!((code, made["metadata"]["resourceVersion"].as_str()), (201, Some("7")), "{made}");
}

#[tokio::test]
async fn a_scale_without_its_field() {
    let api = Api::start().await;
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        "subresources": {"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version]}});
    api.create(DEFINITIONS, definition).await;
    const ALL: &str = "/apis/example.com/v1/namespaces/default/widgets";
    const SCALE: &str = "/apis/example.com/v1/namespaces/default/widgets/a/scale";
    api.create(ALL, json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}})).await;
    check(
        &api,
        &[
            (
                "GET",
                SCALE,
                JSON,
                "",
                500,
                "InternalError",
                r#"Internal error occurred: the spec replicas field ".spec.n" does not exist"#,
            ),
            (
                "PATCH",
                SCALE,
                MERGE,
                r#"{"metadata":{}}"#,
                400,
                "BadRequest",
                r#"the spec replicas field ".spec.n" cannot be empty"#,
            ),
        ],
    )
    .await;
    let (code, scale) = api.call("PATCH", SCALE, json!({"spec": {"replicas": 3}})).await;
    assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(3)), "{scale}");
}

#[tokio::test]
async fn privileged_pods_if_they_are_not_allowed() {
    let api = Api::with(|config| config.allow_privileged = false).await;
    let spec = |privileged: bool| json!({"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": privileged}}]});
    let pods = "/api/v1/namespaces/default/pods";
    let (code, said) = api.call("POST", pods, json!({"metadata": {"name": "p"}, "spec": spec(true)})).await;
    let wanted = "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy";
    assert!(code == 422 && said["message"].as_str().is_some_and(|m| m.contains(wanted)), "{code}: {said}");
    api.create(pods, json!({"metadata": {"name": "p"}, "spec": spec(false)})).await;
    let labels = json!({"a": "b"});
    let deployment = |privileged| {
        json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec(privileged)}}})
    };
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(api.call("POST", deployments, deployment(true)).await.0, 422);
    api.create(deployments, deployment(false)).await;
    let (code, said) = api.call("PUT", &format!("{deployments}/d"), deployment(true)).await;
    assert_eq!(code, 422, "also in an update: {said}");
    let everything = Api::start().await;
    everything.create(pods, json!({"metadata": {"name": "p"}, "spec": spec(true)})).await;
}

#[tokio::test]
async fn messages_of_kinds() {
    let api = with_a_map().await;
    const POD: &str = r#"{"metadata":{"name":"p"FINALIZERS},"spec":{"containers":[{"name":"c","image":"i"ENV}]}}"#;
    let with_finalizer = POD.replace("FINALIZERS", r#","finalizers":["example.com/a","x"]"#).replace("ENV", "");
    let with_variable = POD.replace("FINALIZERS", "").replace("ENV", r#","env":[{"name":"a=b"}]"#);
    for (body, message) in [
        (
            with_finalizer,
            r#"Pod "p" is invalid: metadata.finalizers[1]: Invalid value: "x": name is neither a standard finalizer name nor is it fully qualified"#,
        ),
        (
            with_variable,
            r#"Pod "p" is invalid: spec.containers[0].env[0].name: Invalid value: "a=b": a valid environment variable name must consist only of printable ASCII characters other than '='"#,
        ),
    ] {
        let (code, status) =
            api.call("POST", "/api/v1/namespaces/default/pods", serde_json::from_str(&body).expect("JSON")).await;
        assert_eq!((code, status["message"].as_str()), (422, Some(message)));
    }
    check(&api, &[
        ("POST", "/api/v1/namespaces/default/limitranges", JSON,
            r#"{"metadata":{"name":"a"},"spec":{"limits":[{"type":"Odd","min":{"cpu":"2"},"max":{"cpu":"1"}}]}}"#, 422, "Invalid",
            r#"LimitRange "a" is invalid: [spec.limits[0].type: Invalid value: "Odd": must be a standard limit type or fully qualified, spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1]"#),
        ("POST", "/api/v1/namespaces/default/resourcequotas", JSON, r#"{"metadata":{"name":"a"},"spec":{"hard":{"zz":"1"}}}"#, 422, "Invalid",
            r#"ResourceQuota "a" is invalid: [spec.hard[zz]: Invalid value: "zz": must be a standard resource type or fully qualified, spec.hard[zz]: Invalid value: "zz": must be a standard resource for quota]"#),
        ("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", JSON,
            r#"{"metadata":{"name":"c"},"spec":{"minAvailable":1,"maxUnavailable":1}}"#, 422, "Invalid",
            r#"PodDisruptionBudget.policy "c" is invalid: spec: Invalid value: {"MinAvailable":1,"Selector":null,"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set"#),
        ("POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", JSON,
            r#"{"metadata":{"name":"c"},"spec":{"maxReplicas":1,"scaleTargetRef":{"kind":"Deployment","name":"d"}}}"#, 422, "Invalid",
            r#"HorizontalPodAutoscaler.autoscaling "c" is invalid: spec.scaleTargetRef.apiVersion: Invalid value: "": apiVersion must specify API group"#),
        ("POST", "/api/v1/persistentvolumes", JSON, r#"{"metadata":{"name":"a"},"spec":{}}"#, 422, "Invalid",
            r#"PersistentVolume "a" is invalid: [spec.accessModes: Required value, spec.capacity: Required value, spec.capacity: Unsupported value: null: supported values: "storage", spec: Required value: must specify a volume type]"#),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", JSON, r#"{"spec":{}}"#, 422, "Invalid",
            r#".authorization.k8s.io "" is invalid: [spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: "": at least one of user or group must be specified]"#),
        ("POST", "/api/v1/namespaces/default/pods/none/binding", JSON, r#"{"target":{"name":"n"}}"#, 400, "BadRequest",
            "name in URL does not match name in Binding object"),
        ("GET", "/api/v1/namespaces/default/pods/none/log?tailLines=-1", JSON, "", 422, "Invalid",
            r#"PodLogOptions "none" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"#),
        ("PATCH", "/api/v1/namespaces/default/configmaps/a", MERGE, r#"{"metadata":{"uid":"x"}}"#, 422, "Invalid",
            r#"ConfigMap "a" is invalid: metadata.uid: Invalid value: "x": field is immutable"#),
        ("PUT", "/api/v1/namespaces/default/configmaps/a", JSON, r#"{"metadata":{"name":"b"}}"#, 400, "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)"),
    ]).await;
}

#[tokio::test]
async fn invalid_apply_configurations() {
    const A: &str = "/api/v1/namespaces/default/configmaps/a?fieldManager=m";
    const APPLY: &str = "application/apply-patch+yaml";
    check(&with_a_map().await, &[
        ("PATCH", A, APPLY, "", 400, "BadRequest", "invalid object type: /, Kind="),
        ("PATCH", A, APPLY, r#"{"metadata":{"name":"x"}}"#, 400, "BadRequest", "invalid object type: /, Kind="),
        ("PATCH", A, APPLY, "[]", 400, "BadRequest",
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("PATCH", A, APPLY, "a: b: c", 400, "BadRequest",
            "error decoding YAML: error converting YAML to JSON: yaml: mapping values are not allowed in this context"),
        ("PATCH", A, APPLY, "{", 400, "BadRequest",
            "error decoding YAML: error converting YAML to JSON: yaml: line 1: did not find expected node content"),
    ]).await;
}

#[tokio::test]
async fn bodies_and_options_of_writes() {
    const A: &str = "/api/v1/namespaces/default/configmaps/a";
    check(&with_a_map().await, &[
        ("PUT", A, JSON, "{}", 400, "BadRequest", "the name of the object (a based on URL) was undeterminable: name must be provided"),
        ("PUT", A, JSON, r#"{"metadata":{"name":"a","resourceVersion":"x"}}"#, 500, "", r#"strconv.ParseUint: parsing "x": invalid syntax"#),
        ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"apiVersion":"a/b/c","kind":"ConfigMap"}"#, 400, "BadRequest",
            r#"the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c","kind":" ...)"#),
        ("POST", "/apis/apps/v1/namespaces/default/deployments", JSON, r#"{"apiVersion":"v1","kind":"Pod"}"#, 400, "BadRequest",
            "Pod in version \"v1\" cannot be handled as a Deployment: converting (v1.Pod) to (apps.Deployment): unknown conversion"),
        ("POST", "/api/v1/namespaces/default/configmaps", "application/yaml", "- a", 400, "BadRequest",
            r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (2d2061)"#),
        ("POST", "/api/v1/namespaces/default/configmaps", "application/vnd.kubernetes.protobuf", "", 400, "BadRequest",
            "the object provided is unrecognized (must be of type ConfigMap): empty data (<empty>)"),
        ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"metadata":{"uid":1}}"#, 400, "BadRequest",
            r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.uid of type types.UID"#),
        ("POST", "/api/v1/namespaces/default/configmaps?dryRun=All&dryRun=x", JSON, "{}", 422, "Invalid",
            r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["All","x"]: supported values: "All""#),
        ("POST", "/api/v1/namespaces/default/configmaps?timeout=abc", JSON, "{}", 400, "BadRequest",
            r#"invalid timeout specified in the request URL - time: invalid duration "abc""#),
        ("DELETE", A, JSON, "{", 400, "BadRequest", "couldn't get version/kind; json parse error: unexpected end of JSON input"),
        ("DELETE", A, JSON, r#"{"gracePeriodSeconds":"x"}"#, 400, "BadRequest",
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64"),
        ("GET", "/api/v1/namespaces/default/pods/p/log?sinceTime=x", JSON, "", 400, "BadRequest",
            r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#),
        ("GET", "/api/v1/namespaces/default/pods/p/log?stream=Stdout", JSON, "", 422, "Invalid",
            r#"PodLogOptions "p" is invalid: stream: Forbidden: may not be specified"#),
    ]).await;
}

#[tokio::test]
async fn a_delete_orphans_dependents_with_either_option() {
    let api = with_a_map().await;
    let uri = format!("{MAPS}/a?orphanDependents=maybe");
    assert_eq!(api.raw("DELETE", &uri, &[], "").await.status(), 200);
    assert_eq!(api.get(&format!("{MAPS}/a")).await["metadata"]["finalizers"], json!(["orphan"]));
    let (code, status) = api.call("DELETE", &format!("{MAPS}/a"), json!({"preconditions": {"uid": "x"}})).await;
    let message = status["message"].as_str().unwrap_or("");
    assert_eq!((code, &status["details"]["kind"]), (409, &json!("ConfigMap")));
    assert!(
        message.starts_with(
            r#"Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (x) does not match"#
        ),
        "{message}"
    );
}
