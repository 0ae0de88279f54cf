//! Extensions of the API: a definition serves its kinds as soon as the POST is answered, gets names that are free, and is deleted with
//! its objects; aggregated API servers serve group versions.

use crate::common::{Api, Lines};
use base64::Engine as _;
use kelson_doubles::webhook::{Behaviour, TestServer};
use kelson_store::{Body, Fields, Key, Labels, RecordMeta, Resource, Uid, Write};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(plural: &str, kind: &str, versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [&plural[..1]], "categories": ["all"]},
            "versions": versions,
        },
    })
}

fn version(name: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

fn one_version() -> Value {
    json!([version("v1", true)])
}

fn path(version: &str, plural: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/{plural}")
}

fn object(version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": kind, "metadata": {"name": name}, "spec": {"n": 1}})
}

fn condition(definition: &Value, kind: &str) -> String {
    let all = definition["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|c| c["type"] == kind);
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    found.map_or("none".into(), |c| format!("{} {}", text(&c["status"]), text(&c["reason"])))
}

/// Waits by a watch until an object meets a condition.
async fn until(api: &Api, uri: &str, name: &str, wanted: impl Fn(&str, &Value) -> bool) -> Value {
    let watch = format!("{uri}?watch=1&fieldSelector=metadata.name%3D{name}");
    let mut lines = Lines::new(api.raw("GET", &watch, &[], "").await);
    loop {
        let event = lines.next().await.expect("an event");
        if wanted(event["type"].as_str().unwrap_or(""), &event["object"]) {
            return event["object"].clone();
        }
    }
}

#[tokio::test]
async fn a_kind_is_served_when_its_definition_is_answered() {
    let api = Api::start().await;
    let made = api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    assert_eq!(condition(&made, "NamesAccepted"), "True NoConflicts");
    assert_eq!(condition(&made, "Established"), "True InitialNamesAccepted");
    assert_eq!(made["status"]["acceptedNames"], made["spec"]["names"]);
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    let entries = made["metadata"]["managedFields"].as_array().unwrap();
    let of_server = entries.iter().find(|e| e["manager"] == "kube-apiserver").expect("the server's entry");
    assert_eq!((&of_server["subresource"], entries.len()), (&json!("status"), 2));
    assert!(of_server["fieldsV1"]["f:status"]["f:acceptedNames"].is_object(), "{of_server}");
    let created = api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    assert_eq!(created["metadata"]["generation"], 1);
    let groups = api.get("/apis").await;
    let last = groups["groups"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["name"], &last["preferredVersion"]["version"]), (&json!("example.com"), &json!("v1")));
    let resources = api.get("/apis/example.com/v1").await;
    let entry = &resources["resources"][0];
    assert_eq!((&entry["shortNames"], &entry["categories"]), (&json!(["w"]), &json!(["all"])));
    assert_eq!(entry["singularName"], "widget");
    assert_eq!(entry["storageVersionHash"].as_str().map(str::len), Some(12));
    let index = api.get("/openapi/v3").await;
    assert!(index["paths"]["apis/example.com/v1"].is_object());
}

#[tokio::test]
async fn definitions_are_served_again_after_a_restart() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    let again = Api::over(api.store.clone()).await;
    assert_eq!(again.get(&path("v1", "widgets")).await["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_name_belongs_to_one_definition_of_its_group() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    let second = api.create(DEFINITIONS, definition("gadgets", "Widget", one_version())).await;
    assert_eq!(condition(&second, "NamesAccepted"), "False ListKindConflict");
    assert_eq!(condition(&second, "Established"), "False NotAccepted");
    let (code, _) = api.call("GET", &path("v1", "gadgets"), Value::Null).await;
    assert_eq!(code, 404);
    let (code, _) = api.call("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    assert_eq!(code, 200);
    let established = |_: &str, d: &Value| condition(d, "Established") == "True InitialNamesAccepted";
    until(&api, DEFINITIONS, "gadgets.example.com", established).await;
    api.get(&path("v1", "gadgets")).await;
}

#[tokio::test]
async fn a_definition_is_deleted_with_its_objects() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    let mut held = object("v1", "Widget", "held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(&path("v1", "widgets"), held).await;
    let (code, marked) = api.call("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    assert_eq!((code, condition(&marked, "Terminating").as_str()), (200, "True InstanceDeletionPending"));
    assert_eq!(marked["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let (code, why) = api.call("POST", &path("v1", "widgets"), object("v1", "Widget", "late")).await;
    assert_eq!(code, 403, "{why}");
    assert!(
        why["message"]
            .as_str()
            .unwrap()
            .ends_with("create not allowed while custom resource definition is terminating")
    );
    let underway = |_: &str, d: &Value| condition(d, "Terminating") == "True InstanceDeletionInProgress";
    until(&api, DEFINITIONS, "widgets.example.com", underway).await;
    let held = format!("{}/held", path("v1", "widgets"));
    let (code, _) = api.call("PATCH", &held, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200);
    until(&api, DEFINITIONS, "widgets.example.com", |event, _| event == "DELETED").await;
    let (code, _) = api.call("GET", &path("v1", "widgets"), Value::Null).await;
    assert_eq!(code, 404);
    let (code, _) = api.call("GET", "/apis/example.com", Value::Null).await;
    assert_eq!(code, 404, "the group is removed with its last kind");
    assert_eq!(api.store.count(Resource::new("example.com", "widgets")), 0);
}

#[tokio::test]
async fn updates_of_the_definition_add_and_remove_versions() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    let name = format!("{DEFINITIONS}/widgets.example.com");
    let mut first = version("v1", false);
    first["deprecated"] = true.into();
    let patch = json!({"spec": {"versions": [first, version("v2", true)]}});
    let (code, changed) = api.call("PATCH", &name, patch).await;
    assert_eq!((code, &changed["status"]["storedVersions"]), (200, &json!(["v1", "v2"])), "{changed}");
    assert_eq!(changed["metadata"]["generation"], 2);
    let read = api.get(&format!("{}/a", path("v2", "widgets"))).await;
    assert_eq!((&read["apiVersion"], &read["spec"]["n"]), (&json!("example.com/v2"), &json!(1)));
    let old = api.raw("GET", &format!("{}/a", path("v1", "widgets")), &[], "").await;
    let warning = old.headers().get("warning").and_then(|w| w.to_str().ok());
    assert_eq!(warning, Some("299 - \"example.com/v1 Widget is deprecated; use example.com/v2 Widget\""));
    // A write stores the object in the current storage version, and watchers of both versions see it in theirs.
    let mut watch = Lines::new(api.raw("GET", &format!("{}?watch=1", path("v1", "widgets")), &[], "").await);
    assert_eq!(watch.next().await.expect("an event")["object"]["apiVersion"], "example.com/v1");
    let (code, _) = api.call("PATCH", &format!("{}/a", path("v2", "widgets")), json!({"spec": {"n": 2}})).await;
    assert_eq!(code, 200);
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["object"]["apiVersion"], &event["object"]["spec"]["n"]), (&json!("example.com/v1"), &json!(2)));
    let resource = Resource::new("example.com", "widgets");
    let stored = api.store.get(resource, "default", "a").expect("stored");
    assert!(stored.bytes().starts_with(b"{\"apiVersion\":\"example.com/v2\""));
    let groups = api.get("/apis/example.com").await;
    assert_eq!(groups["preferredVersion"]["version"], "v2");
    let mut unserved = version("v1", false);
    unserved["served"] = false.into();
    let (code, _) = api.call("PATCH", &name, json!({"spec": {"versions": [unserved, version("v2", true)]}})).await;
    assert_eq!(code, 200);
    let (code, _) = api.call("GET", &path("v1", "widgets"), Value::Null).await;
    assert_eq!(code, 404);
}

fn with_schema(name: &str, storage: bool, schema: Value) -> Value {
    json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema}})
}

#[tokio::test]
async fn objects_are_pruned_defaulted_and_validated_by_their_schema() {
    let api = Api::start().await;
    let schema = json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}}},
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    }});
    api.create(DEFINITIONS, definition("widgets", "Widget", json!([with_schema("v1", true, schema)]))).await;
    let path = path("v1", "widgets");
    let widget = |spec: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
        "spec": spec, "status": {"ready": true}})
    };
    let (code, why) = api.call("POST", &path, widget(json!({"size": 0}))).await;
    assert_eq!((code, why["details"]["causes"][0]["field"].as_str()), (422, Some("spec.size")), "{why}");
    let strict = format!("{path}?fieldValidation=Strict");
    let (code, why) = api.call("POST", &strict, widget(json!({"size": 1, "odd": true}))).await;
    assert_eq!(code, 400);
    assert!(why["message"].as_str().unwrap_or("").contains("unknown field \"spec.odd\""), "{why}");
    let made = api.create(&path, widget(json!({"size": 1, "odd": true}))).await;
    assert_eq!((&made["spec"], &made["status"]), (&json!({"size": 1, "color": "red"}), &Value::Null));
    let (code, updated) = api.call("PATCH", &format!("{path}/a/status"), json!({"status": {"ready": false}})).await;
    assert_eq!(
        (code, &updated["status"], &updated["metadata"]["generation"]),
        (200, &json!({"ready": false}), &json!(1))
    );
    let (code, _) = api.call("PATCH", &format!("{path}/a/status"), json!({"status": {"ready": "no"}})).await;
    assert_eq!(code, 422);
    // A field that the schema neither declares nor preserves cannot be owned.
    for (field, wanted) in [("odd", 500), ("size", 200)] {
        let mut applied =
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {}});
        applied["spec"][field] = 2.into();
        let uri = format!("{path}/a?fieldManager=one&force=true&fieldValidation=Ignore");
        let (code, reply) = api.typed("PATCH", &uri, "application/apply-patch+yaml", applied).await;
        assert_eq!(code, wanted, "{reply}");
        let text = "failed to create typed patch object (/a; example.com/v1, Kind=Widget): .spec.odd: field not declared in schema";
        assert!(code == 200 || reply["message"] == text, "{reply}");
    }
    // A default that is added later applies to stored objects.
    let later = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer"}, "unit": {"type": "string", "default": "m"}}}}});
    let versions = json!({"spec": {"versions": [with_schema("v1", true, later)]}});
    let (code, _) = api.call("PATCH", &format!("{DEFINITIONS}/widgets.example.com"), versions).await;
    assert_eq!(code, 200);
    assert_eq!(api.get(&format!("{path}/a")).await["spec"], json!({"size": 2, "unit": "m"}));
    assert_eq!(api.get(&path).await["items"][0]["spec"], json!({"size": 2, "unit": "m"}));
    let document = api.get("/openapi/v3/apis/example.com/v1").await;
    let published = &document["components"]["schemas"]["com.example.v1.Widget"]["properties"]["spec"];
    assert_eq!(published["properties"]["unit"]["default"], "m");
}

async fn table(api: &Api, uri: &str) -> Value {
    let accept = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let answer = api.raw("GET", uri, &[accept], "").await;
    let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.expect("a body").to_bytes();
    serde_json::from_slice(&bytes).expect("JSON")
}

#[tokio::test]
async fn tables_have_the_columns_of_the_version_with_their_cells() {
    let api = Api::start().await;
    let mut own = version("v1", true);
    own["additionalPrinterColumns"] = json!([
        {"name": "Phase", "type": "string", "jsonPath": ".spec.phase", "description": "The current phase."},
        {"name": "Count", "type": "integer", "format": "int32", "jsonPath": ".spec.n"},
        {"name": "Since", "type": "date", "jsonPath": ".spec.since"},
        {"name": "Node", "type": "string", "jsonPath": ".spec.node", "priority": 1},
    ]);
    api.create(DEFINITIONS, definition("widgets", "Widget", json!([own, version("v2", false)]))).await;
    for (name, spec) in [
        ("a", json!({"phase": "Up", "n": 3, "since": "2000-01-01T00:00:00Z"})),
        ("b", json!({"phase": "Down", "n": "three", "since": "long ago", "node": "n1"})),
        ("c", json!({"since": ""})),
    ] {
        let widget =
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec});
        api.create(&path("v1", "widgets"), widget).await;
    }
    let shown = table(&api, &path("v1", "widgets")).await;
    let columns = shown["columnDefinitions"].as_array().expect("columns");
    let reply: Vec<_> = columns.iter().map(|c| json!([c["name"], c["type"], c["format"], c["priority"]])).collect();
    let want = json!([
        ["Name", "string", "name", 0],
        ["Phase", "string", "", 0],
        ["Count", "integer", "int32", 0],
        ["Since", "date", "", 0],
        ["Node", "string", "", 1],
    ]);
    assert_eq!(json!(reply), want);
    assert_eq!(columns[1]["description"], "The current phase.");
    assert_eq!(columns[2]["description"], "Custom resource definition column (in JSONPath format): .spec.n");
    let since = shown["rows"][0]["cells"][3].as_str().unwrap_or("").to_owned();
    assert!(since.ends_with('y'), "{since} is an age in years");
    let cells: Vec<&Value> = shown["rows"].as_array().expect("rows").iter().map(|r| &r["cells"]).collect();
    let want = json!([
        ["a", "Up", 3, since, null],
        ["b", "Down", null, "<invalid>", "n1"],
        ["c", null, null, "<unknown>", null],
    ]);
    assert_eq!(json!(cells), want);
    // A version without columns shows the age.
    let shown = table(&api, &format!("{}/a", path("v2", "widgets"))).await;
    let names: Vec<&Value> =
        shown["columnDefinitions"].as_array().expect("columns").iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["Name", "Age"]);
    let cells = shown["rows"][0]["cells"].as_array().expect("cells");
    assert!(cells.len() == 2 && cells[1].as_str().is_some_and(|age| age.ends_with('s')), "{cells:?}");
}

#[tokio::test]
async fn the_selector_of_a_scale_is_the_string_at_its_path() {
    let api = Api::start().await;
    let scaled = |selector: Option<&str>| {
        let mut scaled = version("v1", true);
        let scale =
            json!({"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": selector});
        scaled["subresources"] = json!({"scale": scale});
        json!([scaled])
    };
    api.create(DEFINITIONS, definition("widgets", "Widget", scaled(Some(".status.selector")))).await;
    api.create(DEFINITIONS, definition("gadgets", "Gadget", scaled(None))).await;
    let selector = "app in (a,b),!old";
    for (plural, kind) in [("widgets", "Widget"), ("gadgets", "Gadget")] {
        let mut scaled = object("v1", kind, "a");
        scaled["status"] = json!({"n": 2, "selector": selector});
        scaled["matchLabels"] = json!({"app": "a"});
        api.create(&path("v1", plural), scaled).await;
    }
    let scale = api.get(&format!("{}/a/scale", path("v1", "widgets"))).await;
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 1}), &json!({"replicas": 2, "selector": selector}))
    );
    let (code, scale) =
        api.call("PATCH", &format!("{}/a/scale", path("v1", "widgets")), json!({"spec": {"replicas": 4}})).await;
    assert_eq!((code, &scale["spec"]["replicas"], &scale["status"]["selector"]), (200, &json!(4), &json!(selector)));
    let scale = api.get(&format!("{}/a/scale", path("v1", "gadgets"))).await;
    assert_eq!(scale["status"], json!({"replicas": 2}), "without a selector path there is no selector");
    // A scale without a version is written to any version; one with an outdated version is rejected.
    let put = |metadata: Value, n: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": n}});
    let uri = format!("{}/a/scale", path("v1", "gadgets"));
    for (metadata, n, wanted) in [
        (json!({"name": "a", "namespace": "default"}), 5, 200),
        (json!({"name": "a", "namespace": "default", "resourceVersion": "1"}), 6, 409),
        (json!({"name": "a", "namespace": "other"}), 6, 400),
    ] {
        let (code, reply) = api.call("PUT", &uri, put(metadata.clone(), n)).await;
        assert_eq!(code, wanted, "{metadata}: {reply}");
    }
    let (code, reply) = api.call("PUT", &uri, put(json!({"name": "a"}), -1)).await;
    assert_eq!((code, &reply["details"]["causes"][0]["field"]), (422, &json!(".spec.n")), "{reply}");
}

#[tokio::test]
async fn a_failing_rule_for_an_unchanged_field_is_a_warning() {
    let api = Api::start().await;
    let schema = |rules: Value| {
        let number = json!({"type": "integer"});
        let range =
            json!({"type": "object", "properties": {"min": number, "max": number}, "x-kubernetes-validations": rules});
        let spec = json!({"type": "object", "properties": {"range": range, "note": {"type": "string"}}});
        let status = json!({"type": "object", "properties": {"ready": {"type": "boolean"}}});
        json!([with_schema("v1", true, json!({"type": "object", "properties": {"spec": spec, "status": status}}))])
    };
    api.create(DEFINITIONS, definition("widgets", "Widget", schema(json!([])))).await;
    let mut widget = object("v1", "Widget", "a");
    widget["spec"] = json!({"range": {"min": 3, "max": 2}});
    api.create(&path("v1", "widgets"), widget).await;
    let versions = json!({"spec": {"versions": schema(json!([{"rule": "self.min <= self.max"}]))}});
    let (code, why) = api.call("PATCH", &format!("{DEFINITIONS}/widgets.example.com"), versions).await;
    assert_eq!(code, 200, "{why}");
    let uri = format!("{}/a", path("v1", "widgets"));
    let merge = [("content-type", "application/merge-patch+json")];
    for (uri, patch, want) in [
        (uri.clone(), json!({"spec": {"note": "x"}}), true),
        (format!("{uri}/status"), json!({"status": {"ready": true}}), true),
        (uri, json!({"spec": {"range": {"max": 4}}}), false),
    ] {
        let answer = api.raw("PATCH", &uri, &merge, patch.to_string()).await;
        let warnings: Vec<&str> = answer.headers().get_all("warning").iter().filter_map(|w| w.to_str().ok()).collect();
        let reply =
            warnings.iter().any(|w| w.contains("spec.range: ") && w.contains("failed rule: self.min <= self.max"));
        assert_eq!(
            (answer.status().as_u16(), warnings.len(), reply),
            (200, usize::from(want), want),
            "{patch} {warnings:?}"
        );
    }
}

/// Makes a service resolve to a server of this test. Its loopback address cannot be written through the API.
async fn lead(api: &Api, server: &TestServer) {
    let service = json!({"metadata": {"name": "far"}, "spec": {"ports": [{"port": 443, "protocol": "TCP"}]}});
    api.create("/api/v1/namespaces/default/services", service).await;
    let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}],
        "metadata": {"labels": {"kubernetes.io/service-name": "far"}, "name": "far-1", "resourceVersion": ""},
        "ports": [{"name": "", "port": server.address.port(), "protocol": "TCP"}]});
    let key = Key::new(Resource::new("discovery.k8s.io", "endpointslices"), "default", "far-1");
    let meta = RecordMeta {
        uid: Uid::new("far"),
        labels: Labels::new([("kubernetes.io/service-name", "far")]),
        fields: Fields::default(),
        deleting: false,
        expires_at_s: 0,
    };
    let body = Body::locate(slice.to_string()).expect("a body");
    api.store.commit(Write::create(key, body, meta)).await.expect("stored");
}

fn bundle(server: &TestServer) -> String {
    base64::engine::general_purpose::STANDARD.encode(server.ca())
}

#[tokio::test]
async fn a_webhook_converts_and_must_not_change_the_object() {
    let server = TestServer::start(&["localhost"], |seen| {
        let review: Value = serde_json::from_slice(&seen.body).expect("a review");
        let wanted = review["request"]["desiredAPIVersion"].clone();
        let mut objects = review["request"]["objects"].as_array().expect("objects").clone();
        for object in &mut objects {
            object["apiVersion"] = wanted.clone();
            object["spec"]["converted"] = wanted.clone();
            object["metadata"]["labels"] = json!({"by": "webhook"});
            if object["metadata"]["name"] == "moved" && wanted == "example.com/v2" {
                object["metadata"]["name"] = "elsewhere".into();
            }
        }
        let response =
            json!({"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
        let answer = json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response});
        Behaviour::Answer(200, answer.to_string().into_bytes())
    })
    .await;
    let api = Api::start().await;
    let mut made = definition("widgets", "Widget", json!([version("v1", true), version("v2", false)]));
    made["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://localhost:{}/convert", server.address.port()), "caBundle": bundle(&server)}}});
    api.create(DEFINITIONS, made).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "b")).await;
    assert!(server.seen().is_empty(), "nothing to convert yet");
    let list = api.get(&path("v2", "widgets")).await;
    assert_eq!(list["items"][1]["spec"]["converted"], "example.com/v2");
    assert_eq!(list["items"][1]["metadata"]["labels"], json!({"by": "webhook"}));
    assert_eq!(server.seen().len(), 1, "many objects are converted in one call");
    assert!(!server.seen()[0].headers.contains_key("traceparent"), "no trace was requested");
    // Conversions are cached, so that a list converts only new objects.
    api.create(&path("v1", "widgets"), object("v1", "Widget", "c")).await;
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traced = api.raw("GET", &path("v2", "widgets"), &[("traceparent", TRACE)], "").await;
    assert_eq!((traced.status().as_u16(), &server.seen()[1].headers["traceparent"]), (200, &TRACE.parse().unwrap()));
    api.create(&path("v1", "widgets"), object("v1", "Widget", "moved")).await;
    let (code, why) = api.call("GET", &format!("{}/moved", path("v2", "widgets")), Value::Null).await;
    assert_eq!(code, 500);
    assert!(why["message"].as_str().unwrap_or("").contains("must have the same name: moved != elsewhere"), "{why}");
}

#[tokio::test]
async fn managed_fields_are_known_in_every_version() {
    const APPLY: &str = "application/apply-patch+yaml";
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", json!([version("v1", true), version("v2", false)]))).await;
    let at = |version: &str, manager: &str| format!("{}/a?fieldManager={manager}", path(version, "widgets"));
    let config = |version: &str, spec: Value| {
        let mut made = object(version, "Widget", "a");
        made["spec"] = spec;
        made
    };
    let (code, made) = api.typed("PATCH", &at("v1", "one"), APPLY, config("v1", json!({"n": 1, "m": 1}))).await;
    assert_eq!(code, 201, "{made}");
    let (code, status) = api.typed("PATCH", &at("v2", "two"), APPLY, config("v2", json!({"n": 2}))).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (409, &json!(".spec.n")), "{status}");
    // A manager in another version owns what it applies; an update takes fields from both.
    let (code, _) = api.typed("PATCH", &at("v2", "two"), APPLY, config("v2", json!({"k": 2}))).await;
    assert_eq!(code, 200);
    let (code, now) = api.call("PATCH", &at("v2", "three"), json!({"spec": {"n": 3, "k": 3}})).await;
    assert_eq!(code, 200, "{now}");
    let owns = |object: &Value, manager: &str| {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let entry = entries.iter().find(|e| e["manager"] == manager)?;
        let fields = entry["fieldsV1"]["f:spec"].as_object()?;
        Some(fields.keys().filter(|k| *k != ".").cloned().collect::<Vec<_>>().join(" "))
    };
    let owned = ["one", "two", "three"].map(|manager| owns(&now, manager).unwrap_or_default());
    assert_eq!(owned, ["f:m", "", "f:k f:n"]);
    // Fields that are no longer applied are removed, although they were applied in another version.
    let (code, now) = api.typed("PATCH", &at("v2", "one"), APPLY, config("v2", json!({"x": 1}))).await;
    assert_eq!((code, &now["spec"]), (200, &json!({"k": 3, "n": 3, "x": 1})), "{now}");
}

#[tokio::test]
async fn an_aggregated_server_serves_a_group_version() {
    const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
    let server = TestServer::start(&["far.default.svc"], |seen| {
        let answer = match seen.path.as_str() {
            "/apis/far.example.com/v1" => json!({"kind": "APIResourceList", "groupVersion": "far.example.com/v1",
                "resources": [{"name": "things", "kind": "Thing", "namespaced": true, "verbs": ["get", "list"]}]}),
            "/openapi/v2" => {
                json!({"swagger": "2.0", "paths": {"/apis/far.example.com/v1/things": {}, "/api/v1/pods": {}}})
            }
            path => json!({"kind": "Thing", "path": path}),
        };
        Behaviour::Answer(200, answer.to_string().into_bytes())
    })
    .await;
    let api = Api::start().await;
    let local = api.get(&format!("{SERVICES}/v1.apps")).await;
    assert_eq!(local["status"]["conditions"][0]["reason"], "Local");
    let service = json!({"metadata": {"name": "v1.far.example.com"}, "spec": {
        "group": "far.example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
        "service": {"namespace": "default", "name": "far"}, "caBundle": bundle(&server)}});
    api.create(SERVICES, service).await;
    let reason = |d: &Value| d["status"]["conditions"][0]["reason"].as_str().unwrap_or("").to_owned();
    until(&api, SERVICES, "v1.far.example.com", |_, d| reason(d) == "ServiceNotFound").await;
    let answer = api.raw("GET", "/apis/far.example.com/v1/things", &[], "").await;
    assert_eq!(answer.status(), 503);
    lead(&api, &server).await;
    until(&api, SERVICES, "v1.far.example.com", |_, d| reason(d) == "Passed").await;
    let groups = api.get("/apis").await;
    let last = groups["groups"].as_array().and_then(|g| g.last()).cloned().unwrap_or_default();
    assert_eq!(last["name"], "far.example.com");
    let reply = api.get("/apis/far.example.com/v1/namespaces/a/things/b?x=1").await;
    assert_eq!(reply["path"], "/apis/far.example.com/v1/namespaces/a/things/b?x=1");
    let seen = server.seen();
    let headers = &seen.last().expect("a request").headers;
    let all = |name: &str| headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect::<Vec<_>>().join(",");
    assert_eq!(
        (all("x-remote-user").as_str(), all("x-remote-group").as_str()),
        ("admin", "system:masters,system:authenticated")
    );
    let document = api.get("/openapi/v2").await;
    assert!(document["paths"].get("/apis/far.example.com/v1/things").is_some(), "its document is merged into ours");
    assert!(document["paths"].get("/api/v1/pods").is_some_and(|p| p != &json!({})), "our paths stay");
    let (code, _) = api.call("DELETE", &format!("{SERVICES}/v1.far.example.com"), Value::Null).await;
    assert_eq!(code, 200);
    let (code, _) = api.call("GET", "/apis/far.example.com/v1/things", Value::Null).await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn a_definition_adds_nothing_to_a_built_in_version() {
    let api = Api::start().await;
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == "v7", "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({
        "metadata": {"name": "foos.networking.k8s.io", "annotations": {"api-approved.kubernetes.io": "https://example.com"}},
        "spec": {"group": "networking.k8s.io", "scope": "Namespaced", "versions": [version("v1"), version("v7")],
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"}}});
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, made) = api.call("POST", crds, definition).await;
    assert_eq!(code, 201, "{made}");
    let served = |path: &'static str| {
        let api = &api;
        async move {
            let resources = api.get(path).await["resources"].clone();
            resources.as_array().is_some_and(|all| all.iter().any(|r| r["name"] == "foos"))
        }
    };
    assert!(!served("/apis/networking.k8s.io/v1").await);
    let foos = "/apis/networking.k8s.io/v1/namespaces/default/foos";
    assert_eq!(api.call("GET", foos, Value::Null).await.0, 404);
    assert!(served("/apis/networking.k8s.io/v7").await, "another version is served from the definition");
}
