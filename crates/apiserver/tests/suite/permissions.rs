//! Permissions that a write needs besides its verb: `create` if it creates an object, a permission for each part of a resource claim's
//! status, and a labelled namespace for admin access to devices.
use crate::common::Api;
use http_body_util::BodyExt as _;
use kelson_auth::{UserInfo, user};
use serde_json::{Value, json};

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

/// Grants a user a permission in all namespaces, and waits until it is effective.
async fn grant(api: &Api, name: &str, verbs: &[&str], group: &str, resource: &str) {
    let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": verbs}]);
    let role = format!("{name}-{}", verbs.join("-").replace(':', "."));
    let role = format!("{role}-{}", resource.replace('/', "."));
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    api.create(&format!("{rbac}/clusterroles"), json!({"metadata": {"name": role}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": role}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": name}]});
    api.create(&format!("{rbac}/clusterrolebindings"), binding).await;
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({"verb": verbs[0], "group": group, "resource": resource, "subresource": subresource});
    let review = json!({"spec": {"user": name, "resourceAttributes": attributes}});
    let counts = async {
        loop {
            let answer = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review.clone()).await;
            if answer["status"]["allowed"] == true {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), counts).await.expect("the role is effective");
}

async fn send(api: &Api, who: UserInfo, method: &str, uri: &str, kind: &str, body: &Value) -> (u16, Value) {
    let request = http::Request::builder().method(method).uri(uri).header("content-type", kind);
    let answer = api.send(who, request.body(body.to_string().into()).expect("a request")).await;
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn named(name: &str) -> UserInfo {
    UserInfo::new(name, [user::AUTHENTICATED])
}

#[tokio::test]
async fn creating_an_object_by_another_verb_requires_create() {
    let api = Api::start().await;
    let apply = "application/apply-patch+yaml";
    let json = "application/json";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let rows = [
        (
            "patch",
            "",
            "configmaps",
            "PATCH",
            "/api/v1/namespaces/default/configmaps",
            apply,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}}),
        ),
        (
            "patch",
            "",
            "namespaces",
            "PATCH",
            "/api/v1/namespaces",
            apply,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}),
        ),
        (
            "update",
            "coordination.k8s.io",
            "leases",
            "PUT",
            leases,
            json,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}, "spec": {}}),
        ),
        (
            "patch",
            "coordination.k8s.io",
            "leases",
            "PATCH",
            leases,
            apply,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "y"}, "spec": {}}),
        ),
    ];
    for (verb, group, resource, method, collection, kind, object) in rows {
        let name = format!("may-{verb}-{resource}");
        grant(&api, &name, &[verb], group, resource).await;
        let object_name = object["metadata"]["name"].as_str().expect("a name");
        for dry_run in ["&dryRun=All", ""] {
            let uri = format!("{collection}/{object_name}?fieldManager=m{dry_run}");
            let (code, status) = send(&api, named(&name), method, &uri, kind, &object).await;
            let said = format!("User {name:?} cannot create resource {resource:?} in API group {group:?}");
            let message = status["message"].as_str().unwrap_or_default();
            assert_eq!((code, message.contains(&said)), (403, true), "{method} {uri}: {status}");
        }
        assert_eq!(
            api.call("GET", &format!("{collection}/{object_name}"), Value::Null).await.0,
            404,
            "{uri}",
            uri = collection
        );
        grant(&api, &name, &["create"], group, resource).await;
        let uri = format!("{collection}/{object_name}?fieldManager=m");
        let (code, made) = send(&api, named(&name), method, &uri, kind, &object).await;
        assert_eq!(code, 201, "{method} {uri}: {made}");
        // If the object exists, the verb is enough.
        let only = format!("only-{verb}-{resource}");
        grant(&api, &only, &[verb], group, resource).await;
        let mut object = object;
        if method == "PUT" {
            object["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
        }
        let (code, kept) = send(&api, named(&only), method, &uri, kind, &object).await;
        assert_eq!(code, 200, "{method} {uri}: {kept}");
    }
}

fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "c"}}]}}})
}

fn allocation(node: &str) -> Value {
    json!({"devices": {"results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]}]}]}})
}

fn devices(data: &str) -> Value {
    json!([{"driver": "d.example.com", "pool": "p", "device": "x", "data": {"is": data}}])
}

/// A service account, optionally with a token of a pod on a node.
fn account(name: &str, node: Option<&str>) -> UserInfo {
    let mut account = UserInfo::service_account("default", name, "");
    account.groups.push(user::AUTHENTICATED.to_owned());
    if let Some(node) = node {
        account.extra.insert(user::NODE_NAME.to_owned(), vec![node.to_owned()]);
    }
    account
}

#[tokio::test]
async fn each_part_of_a_claims_status_requires_a_permission() {
    let api = Api::start().await;
    let group = "resource.k8s.io";
    let merge = "application/merge-patch+json";
    let of = |name: &str| format!("system:serviceaccount:default:{name}");
    for who in ["plain", "binder", "anywhere", "here", "other"] {
        grant(&api, &of(who), &["patch"], group, "resourceclaims/status").await;
    }
    grant(&api, &of("binder"), &["patch"], group, "resourceclaims/binding").await;
    grant(&api, &of("anywhere"), &["arbitrary-node:patch"], group, "resourceclaims/driver").await;
    grant(&api, &of("here"), &["associated-node:patch"], group, "resourceclaims/driver").await;
    api.create(CLAIMS, claim("rc")).await;
    let status = format!("{CLAIMS}/rc/status");
    let ask = async |who: UserInfo, change: Value| {
        let (code, answer) = send(&api, who, "PATCH", &status, merge, &json!({"status": change})).await;
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    let binding = "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires \
                   resource=\"resourceclaims/binding\", verb=\"patch\" permission: resourceclaims.resource.k8s.io is forbidden: \
                   User \"system:serviceaccount:default:plain\" cannot patch resource \"resourceclaims/binding\" in API group \
                   \"resource.k8s.io\" at the cluster scope";
    let (code, said) = ask(account("plain", None), json!({"allocation": allocation("n1")})).await;
    assert_eq!((code, said.contains(binding)), (422, true), "{said}");
    assert_eq!(ask(account("plain", None), json!({})).await.0, 200, "nothing changes");
    assert_eq!(ask(account("binder", None), json!({"allocation": allocation("n1")})).await, (200, String::new()));
    let reserved = json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]});
    assert_eq!(ask(account("plain", None), reserved.clone()).await.0, 422);
    assert_eq!(ask(account("binder", None), reserved).await.0, 200);
    let driver = |verbs: &str, verb: &str| {
        format!(
            "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{verbs}]\" \
             permission: resourceclaims.resource.k8s.io \"d.example.com\" is forbidden: User \
             \"system:serviceaccount:default:plain\" cannot {verb} resource \"resourceclaims/driver\" in API group \
             \"resource.k8s.io\" in the namespace \"default\""
        )
    };
    let change = |data: &str| json!({"devices": devices(data)});
    let (code, said) = ask(account("plain", None), change("a")).await;
    assert_eq!((code, said.contains(&driver("arbitrary-node:patch", "arbitrary-node:patch"))), (422, true), "{said}");
    let (code, said) = ask(account("plain", Some("n1")), change("a")).await;
    let both = driver("associated-node:patch arbitrary-node:patch", "associated-node:patch");
    assert_eq!((code, said.contains(&both)), (422, true), "{said}");
    for (who, code) in [
        (account("binder", None), 422),
        (account("here", None), 422),
        (account("here", Some("n2")), 422),
        (account("here", Some("n1")), 200),
        (account("anywhere", None), 200),
        (account("other", Some("n1")), 422),
    ] {
        let shown = format!("{who:?}");
        assert_eq!(ask(who, change(&shown)).await.0, code, "{shown}");
    }
    assert_eq!(ask(account("other", Some("n1")), json!({"devices": null})).await.0, 422, "removing an entry");
    // The permission for the claim's status alone is not enough for a PUT.
    let stored = api.get(&format!("{CLAIMS}/rc")).await;
    grant(&api, &of("putter"), &["update"], group, "resourceclaims/status").await;
    let mut freed = stored.clone();
    freed["status"] = json!({});
    let (code, _) = send(&api, account("putter", None), "PUT", &status, "application/json", &freed).await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn without_the_gate_granular_permissions_are_not_required() {
    let api = Api::with(|config| {
        let gates = ["DRAResourceClaimGranularStatusAuthorization=false"];
        config.feature_gates = std::sync::Arc::new(kelson_meta::gates::FeatureGates::parse(gates).expect("gates"));
    })
    .await;
    grant(&api, "plug", &["patch"], "resource.k8s.io", "resourceclaims/status").await;
    api.create(CLAIMS, claim("rc")).await;
    let change = json!({"status": {"allocation": allocation("n1"), "devices": devices("a")}});
    let uri = format!("{CLAIMS}/rc/status");
    let (code, answer) = send(&api, named("plug"), "PATCH", &uri, "application/merge-patch+json", &change).await;
    assert_eq!(code, 200, "{answer}");
}

#[tokio::test]
async fn admin_access_requires_a_labelled_namespace() {
    let api = Api::start().await;
    let why = "Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the \
               containing namespace";
    for (namespace, labels, allowed) in [
        ("plain", json!({}), false),
        ("no", json!({"resource.kubernetes.io/admin-access": "false"}), false),
        ("yes", json!({"resource.kubernetes.io/admin-access": "true"}), true),
    ] {
        api.create("/api/v1/namespaces", json!({"metadata": {"name": namespace, "labels": labels}})).await;
        let group = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}");
        let mut asking = claim("asks");
        asking["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = true.into();
        let template = json!({"metadata": {"name": "asks"}, "spec": {"spec": asking["spec"]}});
        for (resource, object) in [("resourceclaims", &asking), ("resourceclaimtemplates", &template)] {
            let (code, answer) = api.call("POST", &format!("{group}/{resource}"), object.clone()).await;
            let said = answer["message"].as_str().unwrap_or_default();
            let is_named = said.contains(&format!("spec.devices.requests[0].adminAccess: {why}"));
            assert_eq!(
                (code, is_named),
                if allowed { (201, false) } else { (422, true) },
                "{namespace} {resource}: {answer}"
            );
        }
        let usual = claim("usual");
        api.create(&format!("{group}/resourceclaims"), usual).await;
        let mut given = allocation("n1");
        given["devices"]["results"][0]["adminAccess"] = true.into();
        let change = json!({"status": {"allocation": given}});
        let (code, answer) = api.call("PATCH", &format!("{group}/resourceclaims/usual/status"), change).await;
        let said = answer["message"].as_str().unwrap_or_default();
        let is_named = said.contains(&format!("status.allocation.devices.results[0].adminAccess: {why}"));
        assert_eq!((code, is_named), if allowed { (200, false) } else { (422, true) }, "{namespace}: {answer}");
    }
}

#[tokio::test]
async fn a_rules_review_reports_that_it_is_incomplete() {
    let api = Api::start().await;
    let uri = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let node = UserInfo::new("system:node:n1", [user::NODES, user::AUTHENTICATED]);
    for (who, error) in [(named("jane"), None), (node, Some("node authorizer does not support user rule resolution"))] {
        let body = json!({"spec": {"namespace": "default"}});
        let (code, review) = send(&api, who, "POST", uri, "application/json", &body).await;
        let status = &review["status"];
        let found = (code, status["incomplete"].as_bool(), status["evaluationError"].as_str());
        assert_eq!(found, (201, Some(error.is_some()), error), "{review}");
    }
}
