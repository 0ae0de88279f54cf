//! API concepts: create, read, update, patch, delete, and their errors.

use crate::common::Api;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn an_object_from_create_to_delete() {
    let api = Api::start().await;
    let made = api.create(MAPS, map("x")).await;
    let meta = &made["metadata"];
    assert!(meta["uid"].as_str().unwrap().len() == 36 && meta["creationTimestamp"].is_string());
    assert_eq!(meta["managedFields"][0]["manager"], "test");
    assert_eq!(api.get(&format!("{MAPS}/x")).await, made);

    let (code, again) = api.call("POST", MAPS, map("x")).await;
    assert_eq!((code, again["reason"].as_str()), (409, Some("AlreadyExists")));
    assert_eq!(again["message"], "configmaps \"x\" already exists");

    let mut stale = made.clone();
    stale["data"]["a"] = "2".into();
    let (code, now) = api.call("PUT", &format!("{MAPS}/x"), stale.clone()).await;
    assert_eq!(code, 200);
    assert_eq!(now["metadata"]["uid"], meta["uid"]);
    let (code, conflict) = api.call("PUT", &format!("{MAPS}/x"), stale.clone()).await;
    assert_eq!(code, 409);
    assert_eq!(
        conflict["message"],
        "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please apply your changes to the latest version and try again"
    );
    // Without a version it overwrites.
    stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (code, _) = api.call("PUT", &format!("{MAPS}/x"), stale).await;
    assert_eq!(code, 200);

    let (code, status) = api.call("DELETE", &format!("{MAPS}/x"), Value::Null).await;
    assert_eq!((code, status["status"].as_str()), (200, Some("Success")));
    assert_eq!(status["details"], json!({"name": "x", "kind": "configmaps", "uid": meta["uid"]}));
    let (code, gone) = api.call("GET", &format!("{MAPS}/x"), Value::Null).await;
    assert_eq!((code, gone["message"].as_str()), (404, Some("configmaps \"x\" not found")));
}

#[tokio::test]
async fn a_write_without_changes_writes_nothing() {
    let api = Api::start().await;
    let made = api.create(MAPS, map("x")).await;
    let before = api.store.current_revision();
    let (_, same) = api.call("PATCH", &format!("{MAPS}/x"), json!({"data": {"a": "1"}})).await;
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let (_, same) = api.call("PUT", &format!("{MAPS}/x"), made.clone()).await;
    assert_eq!(same, made);
    assert_eq!(api.store.current_revision(), before);
}

#[tokio::test]
async fn dry_run_stores_nothing() {
    let api = Api::start().await;
    let before = api.store.current_revision();
    let (code, shown) = api.call("POST", &format!("{MAPS}?dryRun=All"), map("x")).await;
    assert_eq!((code, shown["metadata"]["name"].as_str()), (201, Some("x")));
    assert_eq!(api.store.current_revision(), before);
    let (code, _) = api.call("POST", &format!("{MAPS}?dryRun=Some"), map("x")).await;
    assert_eq!(code, 422);
    api.create(MAPS, map("x")).await;
    let before = api.store.current_revision();
    let (code, shown) = api.call("PATCH", &format!("{MAPS}/x?dryRun=All"), json!({"data": {"b": "2"}})).await;
    assert_eq!((code, shown["data"]["b"].as_str()), (200, Some("2")));
    let (code, _) = api.call("DELETE", &format!("{MAPS}/x?dryRun=All"), Value::Null).await;
    assert_eq!((code, api.store.current_revision()), (200, before));
}

#[tokio::test]
async fn names_are_generated() {
    let api = Api::start().await;
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}});
    let name = api.create(MAPS, body).await["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("x-") && name.len() == 7, "{name}");
    let (code, refused) = api.call("POST", MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap"})).await;
    assert_eq!(code, 422);
    assert!(refused["message"].as_str().unwrap().contains("name or generateName is required"), "{refused}");
}

#[tokio::test]
async fn bodies_are_checked() {
    let api = Api::start().await;
    let check = async |uri: &str, body: Value, code: u16, part: &str| {
        let (got, status) = api.call("POST", uri, body).await;
        assert_eq!(got, code, "{status}");
        assert!(status["message"].as_str().unwrap().contains(part), "{status}");
    };
    let mut unknown = map("y");
    unknown["datx"] = json!({});
    check(
        &format!("{MAPS}?fieldValidation=Strict"),
        unknown.clone(),
        400,
        "strict decoding error: unknown field \"datx\"",
    )
    .await;
    check(
        MAPS,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}),
        400,
        "cannot be handled as a ConfigMap",
    )
    .await;
    check(
        MAPS,
        json!({"apiVersion": "apps/v1", "kind": "ConfigMap"}),
        400,
        "no kind \"ConfigMap\" is registered for version \"apps/v1\"",
    )
    .await;
    check(
        MAPS,
        json!({"apiVersion": "apps/v1", "kind": "Deployment"}),
        400,
        "Deployment in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Deployment) to (core.ConfigMap): unknown conversion",
    )
    .await;
    let mut elsewhere = map("y");
    elsewhere["metadata"]["namespace"] = "other".into();
    check(MAPS, elsewhere, 400, "does not match the namespace sent on the request").await;
    let mut mistyped = map("y");
    mistyped["data"]["a"] = json!(5);
    check(MAPS, mistyped, 400, "cannot unmarshal number").await;
    let mut versioned = map("y");
    versioned["metadata"]["resourceVersion"] = "7".into();
    check(MAPS, versioned, 500, "resourceVersion should not be set on objects to be created").await;

    let response = api.raw("POST", MAPS, &[("content-type", "application/json")], unknown.to_string()).await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["warning"], "299 - \"unknown field \\\"datx\\\"\"");
    let response = api.raw("POST", MAPS, &[("content-type", "text/plain")], "x").await;
    assert_eq!(response.status(), 415);
    let response = api.raw("POST", MAPS, &[], vec![b' '; 3 * 1024 * 1024 + 1]).await;
    assert_eq!(response.status(), 413);
    let response = api.raw("POST", MAPS, &[("content-type", "application/json")], "{\"a\":").await;
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn patches() {
    let api = Api::start().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = api.create(deployments, body).await;
    assert_eq!((made["metadata"]["generation"].as_i64(), made["spec"]["replicas"].as_i64()), (Some(1), Some(1)));
    let uri = format!("{deployments}/d");
    let strategic = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "j"}, {"name": "e", "image": "k"}]}}}});
    let (code, now) = api.typed("PATCH", &uri, "application/strategic-merge-patch+json", strategic).await;
    assert_eq!(code, 200, "{now}");
    assert_eq!(now["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2);
    assert_eq!(now["metadata"]["generation"], 2);
    let labels = json!([{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]);
    let (code, now) = api.typed("PATCH", &uri, "application/json-patch+json", labels).await;
    assert_eq!((code, now["metadata"]["generation"].as_i64()), (200, Some(2)), "labels do not change the generation");
    let test = json!([{"op": "test", "path": "/spec/replicas", "value": 7}]);
    let (code, _) = api.typed("PATCH", &uri, "application/json-patch+json", test).await;
    assert_eq!(code, 422);
    let (code, _) = api.typed("PATCH", &uri, "application/x", json!({})).await;
    assert_eq!(code, 415);
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 3}});
    let (code, _) = api.call("PATCH", &uri, stale).await;
    assert_eq!(code, 409);
    let status = json!({"status": {"replicas": 1, "observedGeneration": 2}});
    let (code, now) = api.call("PATCH", &format!("{uri}/status"), status).await;
    assert_eq!((code, now["status"]["replicas"].as_i64()), (200, Some(1)));
    let (code, scale) = api.call("PATCH", &format!("{uri}/scale"), json!({"spec": {"replicas": 4}})).await;
    assert_eq!((code, scale["kind"].as_str(), scale["spec"]["replicas"].as_i64()), (200, Some("Scale"), Some(4)));
    assert_eq!(scale["status"]["selector"], "a=b");
    assert_eq!(api.get(&uri).await["metadata"]["generation"], 3);
}

#[tokio::test]
async fn apply() {
    let api = Api::start().await;
    let apply = async |manager: &str, force: &str, data: Value| {
        let uri = format!("{MAPS}/x?fieldManager={manager}{force}");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data});
        api.typed("PATCH", &uri, "application/apply-patch+yaml", body).await
    };
    let (code, made) = apply("one", "", json!({"a": "1", "b": "1"})).await;
    assert_eq!(code, 201, "{made}");
    let (code, same) = apply("one", "", json!({"a": "1", "b": "1"})).await;
    assert_eq!((code, &same["metadata"]["resourceVersion"]), (200, &made["metadata"]["resourceVersion"]));
    let (code, conflict) = apply("two", "", json!({"a": "2"})).await;
    assert_eq!((code, conflict["details"]["causes"][0]["field"].as_str()), (409, Some(".data.a")));
    assert_eq!(conflict["message"], "Apply failed with 1 conflict: conflict with \"one\": .data.a");
    let (code, now) = apply("two", "&force=true", json!({"a": "2"})).await;
    assert_eq!((code, &now["data"]), (200, &json!({"a": "2", "b": "1"})));
    let (code, now) = apply("one", "", json!({})).await;
    assert_eq!(
        (code, &now["data"]),
        (200, &json!({"a": "2"})),
        "fields that one no longer applies are removed, two's stay"
    );
    let (code, _) = api.typed("PATCH", &format!("{MAPS}/x"), "application/apply-patch+yaml", map("x")).await;
    assert_eq!(code, 422, "a manager is required");
    // A field outside the schema cannot be owned, however lenient the request is.
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "datx": {}});
    for lenience in ["Strict", "Warn", "Ignore"] {
        let uri = format!("{MAPS}/x?fieldManager=one&fieldValidation={lenience}");
        let (code, reply) = api.typed("PATCH", &uri, "application/apply-patch+yaml", unknown.clone()).await;
        let text = "failed to create typed patch object (/x; /v1, Kind=ConfigMap): .datx: field not declared in schema";
        assert_eq!((code, reply["message"].as_str()), (500, Some(text)));
    }
}

#[tokio::test]
async fn finalizers_delay_the_deletion() {
    let api = Api::start().await;
    let mut body = map("x");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(MAPS, body).await;
    let (code, marked) = api.call("DELETE", &format!("{MAPS}/x"), Value::Null).await;
    assert_eq!(code, 200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    let (code, last) = api.call("PATCH", &format!("{MAPS}/x"), json!({"metadata": {"finalizers": null}})).await;
    assert_eq!((code, last["metadata"]["name"].as_str()), (200, Some("x")));
    assert_eq!(api.call("GET", &format!("{MAPS}/x"), Value::Null).await.0, 404);

    api.create(MAPS, map("y")).await;
    let (_, marked) = api.call("DELETE", &format!("{MAPS}/y?propagationPolicy=Foreground"), Value::Null).await;
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let options = json!({"preconditions": {"uid": "nope"}});
    let (code, _) = api.call("DELETE", &format!("{MAPS}/y"), options).await;
    assert_eq!(code, 409);
}

#[tokio::test]
async fn pods_are_deleted_with_grace() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.create(pods, pod("free", "")).await;
    let (code, _) = api.call("DELETE", &format!("{pods}/free"), Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(
        api.call("GET", &format!("{pods}/free"), Value::Null).await.0,
        404,
        "without a node there is no grace period"
    );

    api.create(pods, pod("bound", "n1")).await;
    let (_, marked) = api.call("DELETE", &format!("{pods}/bound"), Value::Null).await;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let (_, same) = api.call("DELETE", &format!("{pods}/bound"), Value::Null).await;
    assert_eq!(same["metadata"]["resourceVersion"], marked["metadata"]["resourceVersion"]);
    let (_, shorter) = api.call("DELETE", &format!("{pods}/bound"), json!({"gracePeriodSeconds": 5})).await;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let (code, _) = api.call("DELETE", &format!("{pods}/bound"), json!({"gracePeriodSeconds": 0})).await;
    assert_eq!(code, 200);
    assert_eq!(api.call("GET", &format!("{pods}/bound"), Value::Null).await.0, 404);
}

#[tokio::test]
async fn namespaces_wait_for_their_finalizer() {
    let api = Api::start().await;
    let ns = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
    api.create("/api/v1/namespaces", ns).await;
    let (code, marked) = api.call("DELETE", "/api/v1/namespaces/x", Value::Null).await;
    assert_eq!((code, marked["status"]["phase"].as_str()), (200, Some("Terminating")));
    let (code, again) = api.call("DELETE", "/api/v1/namespaces/x", Value::Null).await;
    assert_eq!(code, 409);
    assert!(
        again["message"]
            .as_str()
            .unwrap()
            .contains("The system is ensuring all content is removed from this namespace.")
    );
    let (code, refused) = api.call("POST", "/api/v1/namespaces/x/configmaps", map("m")).await;
    assert_eq!(code, 403, "{refused}");
    let mut last = api.get("/api/v1/namespaces/x").await;
    last["spec"]["finalizers"] = json!([]);
    let (code, _) = api.call("PUT", "/api/v1/namespaces/x/finalize", last).await;
    assert_eq!(code, 200);
    assert_eq!(api.call("GET", "/api/v1/namespaces/x", Value::Null).await.0, 404);
}

#[tokio::test]
async fn bindings_and_evictions() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.create(pods, pod("p", "")).await;
    let nominated = json!({"status": {"nominatedNodeName": "n2"}});
    assert_eq!(api.call("PATCH", &format!("{pods}/p/status"), nominated).await.0, 200);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let (code, done) = api.call("POST", &format!("{pods}/p/binding"), binding.clone()).await;
    assert_eq!((code, done["status"].as_str()), (201, Some("Success")), "{done}");
    let bound = api.get(&format!("{pods}/p")).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(bound["status"]["conditions"][0]["observedGeneration"], bound["metadata"]["generation"]);
    assert_eq!(bound["status"]["nominatedNodeName"], Value::Null, "the nomination is cleared");
    let (code, twice) = api.call("POST", &format!("{pods}/p/binding"), binding).await;
    assert_eq!(code, 409);
    assert!(twice["message"].as_str().unwrap().contains("already assigned to node \"n1\""));

    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {}}});
    api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await;
    let status = json!({"status": {"phase": "Running"}});
    assert_eq!(api.call("PATCH", &format!("{pods}/p/status"), status).await.0, 200);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let (code, refused) = api.call("POST", &format!("{pods}/p/eviction"), eviction.clone()).await;
    assert_eq!(code, 429, "{refused}");
    assert_eq!(refused["details"]["causes"][0]["reason"], "DisruptionBudget");
    let allow = json!({"status": {"disruptionsAllowed": 1, "observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    let (code, b) = api.call("PATCH", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b/status", allow).await;
    assert_eq!(code, 200, "{b}");
    let (code, done) = api.call("POST", &format!("{pods}/p/eviction"), eviction).await;
    assert_eq!(code, 201, "{done}");
    assert!(api.get(&format!("{pods}/p")).await["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn paths_that_are_not_served() {
    let api = Api::start().await;
    const NOT_ALLOWED: &str = "the server does not allow this method on the requested resource";
    const NOT_FOUND: &str = "the server could not find the requested resource";
    let object = "/api/v1/namespaces/default/configmaps/a";
    let collection = "/api/v1/namespaces/default/configmaps";
    for (method, uri, code, message) in [
        ("GET", "/api/v1/nope", 404, NOT_FOUND),
        ("GET", "/apis/apps/v9/things", 404, NOT_FOUND),
        ("GET", "/api/v1/namespaces/default/nodes", 404, NOT_FOUND),
        ("GET", "/api/v1/namespaces/default/pods/p/nope", 404, NOT_FOUND),
        ("PUT", "/api/v1/namespaces/default/bindings/x", 404, NOT_FOUND),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x", 404, NOT_FOUND),
        ("GET", "/api/v1/namespaces/default/bindings", 405, NOT_ALLOWED),
        ("POST", object, 405, NOT_ALLOWED),
        ("PUT", collection, 405, NOT_ALLOWED),
        ("PATCH", collection, 405, NOT_ALLOWED),
        ("OPTIONS", collection, 405, NOT_ALLOWED),
        ("POST", "/api/v1/pods", 405, NOT_ALLOWED),
        ("DELETE", "/api/v1/namespaces", 405, NOT_ALLOWED),
        ("POST", "/api/v1/namespaces/default/pods/a/status", 405, NOT_ALLOWED),
        ("DELETE", "/api/v1", 405, NOT_ALLOWED),
    ] {
        let (got, status) = api.call(method, uri, Value::Null).await;
        assert_eq!((got, &status["message"]), (code, &json!(message)), "{method} {uri}: {status}");
        assert_eq!((&status["kind"], &status["details"]), (&json!("Status"), &json!({})), "{method} {uri}");
    }
    // Outside the API, errors are not Status objects.
    for uri in ["/nope", "/apis/nope/v1/things", "/apis/nope", "/healthz/nope", "/debug"] {
        let (got, text) = api.call("GET", uri, Value::Null).await;
        assert_eq!((got, text), (404, json!("404 page not found\n")), "{uri}");
    }
    assert_eq!(api.call("HEAD", object, Value::Null).await.0, 405);
}

#[tokio::test]
async fn numbers_in_a_query_are_parsed_as_upstream_does() {
    let api = Api::start().await;
    let uri = "/api/v1/namespaces/default/configmaps";
    for (query, code, message) in [
        (
            "/a?resourceVersion=x",
            500,
            r#"resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        (
            "?watch=1&resourceVersion=-1",
            500,
            r#"resourceVersion: Invalid value: "-1": strconv.ParseUint: parsing "-1": invalid syntax"#,
        ),
        (
            "?resourceVersion=99999999999999999999",
            400,
            "invalid resource version: resourceVersion: Invalid value: \
          \"99999999999999999999\": strconv.ParseUint: parsing \"99999999999999999999\": value out of range",
        ),
        ("?timeoutSeconds=x", 400, r#"strconv.ParseInt: parsing "x": invalid syntax"#),
        ("?labelSelector=a%3D%3D%3Db", 400, "unable to parse requirement: found '=', expected: identifier"),
        ("?fieldSelector=a%3D%3D%3Db", 400, "invalid field selector: unescaped character in value: 61"),
    ] {
        let (got, status) = api.call("GET", &format!("{uri}{query}"), Value::Null).await;
        assert_eq!((got, &status["message"]), (code, &json!(message)), "{query}");
        let reason = if code == 500 { Value::Null } else { json!("BadRequest") };
        assert_eq!(status["reason"], reason, "{query}");
    }
}

#[tokio::test]
async fn a_job_with_a_generated_name_is_labelled_with_it() {
    let api = Api::start().await;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "j-"}, "spec": {"template": template}});
    let job = api.create("/apis/batch/v1/namespaces/default/jobs", job).await;
    let name = &job["metadata"]["name"];
    assert!(name.as_str().unwrap().starts_with("j-"), "{job}");
    assert_eq!(&job["spec"]["template"]["metadata"]["labels"]["job-name"], name);
    assert_eq!(job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]);
}

/// Only kinds that count spec changes have a server-side generation; otherwise the client sets it, as in upstream.
#[tokio::test]
async fn the_server_sets_the_generation_of_kinds_that_count_it() {
    let api = Api::start().await;
    let map = |generation: i64| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "g", "generation": generation}});
    let (code, refused) = api.call("POST", MAPS, map(-1)).await;
    assert_eq!(code, 422, "{refused}");
    assert_eq!(
        refused["message"],
        r#"ConfigMap "g" is invalid: metadata.generation: Invalid value: -1: must be greater than or equal to 0"#
    );
    assert_eq!(api.create(MAPS, map(4)).await["metadata"]["generation"], 4);
    let claimed = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "g", "generation": -7}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(api.create(deployments, claimed).await["metadata"]["generation"], 1);
}

#[tokio::test]
async fn deleting_a_job_without_propagation_policy_orphans_its_pods() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let api = Api::start().await;
    let spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    for (name, options, left) in [("a", Value::Null, true), ("b", json!({"propagationPolicy": "Background"}), false)] {
        api.create(JOBS, json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}))
            .await;
        let body = if options.is_null() { String::new() } else { options.to_string() };
        let answer = api.raw("DELETE", &format!("{JOBS}/{name}"), &[("content-type", "application/json")], body).await;
        let warned = answer.headers().get("warning").map(|w| w.to_str().unwrap().to_owned()).unwrap_or_default();
        assert_eq!(warned.contains("child pods are preserved by default when jobs are deleted"), left, "{warned}");
        let (code, job) = api.call("GET", &format!("{JOBS}/{name}"), Value::Null).await;
        assert_eq!(code == 200, left);
        if left {
            assert_eq!(job["metadata"]["finalizers"], json!(["orphan"]));
        }
    }
}

#[tokio::test]
async fn a_status_without_a_spec_is_accepted() {
    const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
    let api = Api::start().await;
    let spec = json!({"attacher": "a.example", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    api.create(ATTACHMENTS, json!({"metadata": {"name": "a"}, "spec": spec})).await;
    let change = json!({"metadata": {"labels": {"a": "b"}}, "status": {"attached": true}});
    let (code, now) = api.call("PATCH", &format!("{ATTACHMENTS}/a/status"), change).await;
    assert_eq!((code, &now["status"]["attached"], &now["metadata"]["labels"]), (200, &json!(true), &Value::Null));
}

#[tokio::test]
async fn a_network_policy_that_is_not_enforced_gets_a_warning() {
    let uri = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}}});
    for (enforced, expected) in [(true, 0), (false, 1)] {
        let api = Api::with(|config| config.enforces_network_policies = enforced).await;
        let answer = api.raw("POST", uri, &[("content-type", "application/json")], policy.to_string()).await;
        let warnings: Vec<&str> = answer.headers().get_all("warning").iter().filter_map(|w| w.to_str().ok()).collect();
        assert_eq!((answer.status().as_u16(), warnings.len()), (201, expected), "{warnings:?}");
        assert!(warnings.iter().all(|w| w.contains("do not enforce network policies")), "{warnings:?}");
    }
    let blocks = json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "fd00::/8"}}]);
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "egress": [{"to": blocks}]}});
    let api = Api::start().await;
    let answer = api.raw("POST", uri, &[("content-type", "application/json")], policy.to_string()).await;
    let warnings: Vec<&str> = answer.headers().get_all("warning").iter().filter_map(|w| w.to_str().ok()).collect();
    assert!(
        matches!(warnings[..], [w] if w.contains("spec.egress[0].to[1].ipBlock.cidr: fd00::/8 has no effect")),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn a_scale_stays_in_its_namespace() {
    let api = Api::start().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"app": "x"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": template});
    api.create(deployments, json!({"metadata": {"name": "x"}, "spec": spec})).await;
    let scale = |namespace: &str| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": {"name": "x", "namespace": namespace}, "spec": {"replicas": 2}})
    };
    let uri = format!("{deployments}/x/scale");
    let (code, refused) = api.call("PUT", &uri, scale("kube-system")).await;
    let why = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!((code, &refused["message"]), (400, &json!(why)));
    assert_eq!(api.get(&uri).await["spec"]["replicas"], 1);
    assert_eq!(api.call("PUT", &uri, scale("default")).await.0, 200);
}
