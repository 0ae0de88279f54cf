//! Admission policies as administrators write them: stored through the API, in force for the next request.

use crate::common::Api;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

fn constraints() -> Value {
    json!({"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["configmaps"]}]})
}

async fn validating(api: &Api, name: &str, spec: Value, binding: Value) {
    let mut spec = spec;
    if spec["matchConstraints"].is_null() {
        spec["matchConstraints"] = constraints();
    }
    let mut binding = binding;
    binding["policyName"] = name.into();
    api.create(&format!("{GROUP}/validatingadmissionpolicies"), json!({"metadata": {"name": name}, "spec": spec}))
        .await;
    let binding = json!({"metadata": {"name": format!("{name}-binding")}, "spec": binding});
    api.create(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await;
}

async fn mutating(api: &Api, name: &str, spec: Value) {
    let mut spec = spec;
    spec["matchConstraints"] = constraints();
    if spec["reinvocationPolicy"].is_null() {
        spec["reinvocationPolicy"] = "Never".into();
    }
    api.create(&format!("{GROUP}/mutatingadmissionpolicies"), json!({"metadata": {"name": name}, "spec": spec})).await;
    let binding = json!({"metadata": {"name": format!("{name}-binding")}, "spec": {"policyName": name}});
    api.create(&format!("{GROUP}/mutatingadmissionpolicybindings"), binding).await;
}

fn deny() -> Value {
    json!({"validationActions": ["Deny"]})
}

async fn post(api: &Api, name: &str, data: Value) -> (u16, Value) {
    api.call("POST", MAPS, json!({"metadata": {"name": name}, "data": data})).await
}

#[tokio::test]
async fn a_failed_validation_rejects_with_its_message_and_reason() {
    let api = Api::start().await;
    let spec = json!({
        "variables": [{"name": "size", "expression": "object.data.size()"}],
        "validations": [
            {"expression": "variables.size <= 2", "messageExpression": "'too many: ' + string(variables.size)"},
            {"expression": "!('forbidden' in object.data)", "message": "not this one", "reason": "Forbidden"},
            {"expression": "object.data.all(k, k != 'plain')"},
        ],
    });
    validating(&api, "limits", spec, deny()).await;
    assert_eq!(post(&api, "ok", json!({"a": "b"})).await.0, 201);
    let denied = |why: &str| {
        format!(
            "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'limits' with binding 'limits-binding' denied request: {why}"
        )
    };
    for (data, code, reason, why) in [
        (json!({"a": "", "b": "", "c": ""}), 422, "Invalid", "too many: 3"),
        (json!({"forbidden": ""}), 403, "Forbidden", "not this one"),
        (json!({"plain": ""}), 422, "Invalid", "failed expression: object.data.all(k, k != 'plain')"),
    ] {
        let (got, status) = post(&api, "m", data).await;
        assert_eq!(
            (got, &status["reason"], &status["message"]),
            (code, &json!(reason), &json!(denied(why))),
            "{status}"
        );
        let cause = format!("ValidatingAdmissionPolicy 'limits' with binding 'limits-binding' denied request: {why}");
        assert_eq!(status["details"]["causes"], json!([{"message": cause}]));
    }
    // A deleted policy is no longer in force.
    api.call("DELETE", &format!("{GROUP}/validatingadmissionpolicybindings/limits-binding"), Value::Null).await;
    assert_eq!(post(&api, "m", json!({"plain": ""})).await.0, 201);
}

#[tokio::test]
async fn evaluation_errors_follow_the_failure_policy() {
    let api = Api::start().await;
    let spec =
        |policy: &str| json!({"failurePolicy": policy, "validations": [{"expression": "object.data.missing == 'x'"}]});
    validating(&api, "open", spec("Ignore"), deny()).await;
    assert_eq!(post(&api, "a", json!({"a": "b"})).await.0, 201);
    validating(&api, "closed", spec("Fail"), deny()).await;
    let (code, status) = post(&api, "b", json!({"a": "b"})).await;
    assert_eq!(code, 422);
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.ends_with("expression 'object.data.missing == 'x'' resulted in error: no such key: missing"),
        "{message}"
    );
    let variables = json!({"variables": [{"name": "a", "expression": "int(object.data.a)"}, {"name": "b", "expression": "variables.a + 1"}],
        "validations": [{"expression": "variables.b > 0"}]});
    api.call("DELETE", &format!("{GROUP}/validatingadmissionpolicies/closed"), Value::Null).await;
    validating(&api, "variables", variables, deny()).await;
    let (_, status) = post(&api, "b", json!({"a": "b"})).await;
    let message = status["message"].as_str().unwrap_or_default();
    let why = "composited variable \"b\" fails to evaluate: composited variable \"a\" fails to evaluate: type conversion error";
    assert!(message.contains(why), "{message}");
    api.call("DELETE", &format!("{GROUP}/validatingadmissionpolicies/variables"), Value::Null).await;
    // A binding without required parameters is an error of the policy.
    let with_params = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "named", "expression": "object.metadata.name == 'c'"}],
        "validations": [{"expression": "true"}]});
    let reference = json!({"validationActions": ["Deny"],
        "paramRef": {"name": "none", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    validating(&api, "params", with_params, reference).await;
    // Match conditions are evaluated for each parameter object; without one they are not evaluated.
    let (_, status) = post(&api, "d", json!({"a": "b"})).await;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.ends_with(
            "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        ),
        "{message}"
    );
}

#[tokio::test]
async fn a_policy_without_binding_rejects_nothing() {
    let api = Api::start().await;
    // Its parameter kind does not exist: with a binding it rejects matching requests.
    let spec = json!({"paramKind": {"apiVersion": "example.com/v1", "kind": "Limit"}, "matchConstraints": constraints(),
        "validations": [{"expression": "false"}]});
    let policy = json!({"metadata": {"name": "unbound"}, "spec": spec});
    api.create(&format!("{GROUP}/validatingadmissionpolicies"), policy).await;
    assert_eq!(post(&api, "a", json!({})).await.0, 201);
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "unbound", "validationActions": ["Deny"]}});
    api.create(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await;
    let (code, status) = post(&api, "b", json!({})).await;
    let message = status["message"].as_str().unwrap_or_default();
    assert_eq!(code, 422, "{message}");
    assert!(
        message.contains("failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit'"),
        "{message}"
    );
    api.call("DELETE", &format!("{GROUP}/validatingadmissionpolicybindings/b"), Value::Null).await;
    assert_eq!(post(&api, "b", json!({})).await.0, 201);
}

#[tokio::test]
async fn parameters_warnings_and_conditions() {
    let api = Api::start().await;
    api.create(MAPS, json!({"metadata": {"name": "limit", "labels": {"use": "limit"}}, "data": {"max": "1"}})).await;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "not-system", "expression": "!(request.userInfo.username.startsWith('system:')) && object.metadata.name != 'free'"}],
        "validations": [{"expression": "object.data.size() <= int(params.data.max)",
            "messageExpression": "'more than ' + params.data.max + ' in ' + namespaceObject.metadata.name"}],
    });
    let binding = json!({"validationActions": ["Warn", "Audit"],
        "paramRef": {"selector": {"matchLabels": {"use": "limit"}}, "parameterNotFoundAction": "Deny"}});
    validating(&api, "params", spec, binding).await;
    let body = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "", "b": ""}}).to_string();
    let response = api.raw("POST", MAPS, &[], body("warned")).await;
    assert_eq!(response.status(), 201);
    let warning = "299 - \"Validation failed for ValidatingAdmissionPolicy 'params' with binding 'params-binding': more than 1 in default\"";
    assert_eq!(response.headers()["warning"], warning);
    let response = api.raw("POST", MAPS, &[], body("free")).await;
    assert!(response.headers().get("warning").is_none(), "a match condition excludes it");
    // The current parameters apply.
    let more = json!({"data": {"max": "2"}});
    api.call("PATCH", &format!("{MAPS}/limit"), more).await;
    let response = api.raw("POST", MAPS, &[], body("fits")).await;
    assert!(response.headers().get("warning").is_none());
}

#[tokio::test]
async fn an_expression_that_exceeds_its_budget_is_stopped() {
    let api = Api::start().await;
    let costly = "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != ''))))";
    validating(&api, "costly", json!({"validations": [{"expression": costly}]}), deny()).await;
    let data: Value = (0..100).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let begun = std::time::Instant::now();
    let (code, status) = post(&api, "m", data).await;
    assert_eq!(code, 422);
    assert!(status["message"].as_str().is_some_and(|m| m.contains("cost")), "{status}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn mutating_policies_merge_and_patch_in_order() {
    let api = Api::start().await;
    let merge = json!({"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
        "expression": "Object{metadata: Object.metadata{labels: {'team': 'a'}}, data: {'merged': object.metadata.name}}"}}]});
    mutating(&api, "a", merge).await;
    let patch = json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {
        "expression": "[JSONPatch{op: 'test', path: '/data/merged', value: object.metadata.name}, JSONPatch{op: 'add', path: '/data/seen', value: object.data.merged}]"}}]});
    mutating(&api, "b", patch).await;
    let (code, made) = post(&api, "m", json!({"own": "x"})).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["data"], json!({"own": "x", "merged": "m", "seen": "m"}));
    assert_eq!(made["metadata"]["labels"], json!({"team": "a"}));
    let broken = json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {
        "expression": "[JSONPatch{op: 'remove', path: '/data/none'}]"}}]});
    mutating(&api, "c", broken).await;
    let (code, status) = post(&api, "n", json!({})).await;
    assert_eq!(code, 403, "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("policy 'c' with binding 'c-binding' denied request: JSON Patch: "), "{message}");
}

#[tokio::test]
async fn policies_apply_to_webhook_configurations_but_not_to_policies() {
    let api = Api::start().await;
    let rules = json!({"resourceRules": [{"operations": ["*"], "apiGroups": ["admissionregistration.k8s.io"],
        "apiVersions": ["*"], "resources": ["*"]}]});
    let spec = json!({"matchConstraints": rules, "validations": [{"expression": "false", "message": "closed"}]});
    validating(&api, "closed", spec, deny()).await;
    for resource in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        let (code, status) = api.call("POST", &format!("{GROUP}/{resource}"), json!({"metadata": {"name": "w"}})).await;
        let said = status["message"].as_str().unwrap_or_default();
        assert_eq!((code, said.ends_with("denied request: closed")), (422, true), "{resource}: {status}");
    }
    // An invalid policy can always be repaired.
    for path in ["validatingadmissionpolicybindings/closed-binding", "validatingadmissionpolicies/closed"] {
        assert_eq!(api.call("DELETE", &format!("{GROUP}/{path}"), Value::Null).await.0, 200, "{path}");
    }
    api.create(&format!("{GROUP}/validatingwebhookconfigurations"), json!({"metadata": {"name": "w"}})).await;
}
