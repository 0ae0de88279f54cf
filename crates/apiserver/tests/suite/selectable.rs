//! Selectable fields of custom resources: each version selects by its own fields, whatever version objects are stored in and even if
//! they were stored before the definition had the fields.

use crate::common::{Api, Lines};
use base64::Engine as _;
use kelson_doubles::webhook::{Behaviour, TestServer};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "/apis/example.com/v1/namespaces/default/widgets";
const V2: &str = "/apis/example.com/v2/namespaces/default/widgets";

fn version(name: &str, storage: bool, fields: &[&str]) -> Value {
    // The schemas differ, because versions that share a schema cannot have different selectable fields.
    let known: &[&str] = if name == "v1" { &["hostPort"] } else { &["host", "port"] };
    let properties: serde_json::Map<String, Value> =
        known.iter().map(|f| ((*f).to_owned(), json!({"type": "string"}))).collect();
    let selectable: Vec<Value> = fields.iter().map(|f| json!({"jsonPath": f})).collect();
    json!({"name": name, "served": true, "storage": storage, "selectableFields": selectable,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
}

fn definition(versions: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": versions}})
}

fn widget(name: &str, host_port: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "hostPort": host_port})
}

async fn names(api: &Api, uri: &str) -> Vec<String> {
    let list = api.get(uri).await;
    let items = list["items"].as_array().expect("items");
    items.iter().map(|i| i["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect()
}

/// Splits `hostPort` for v2 and joins it for v1.
fn split(review: &Value) -> Value {
    let wanted = review["request"]["desiredAPIVersion"].clone();
    let mut objects = review["request"]["objects"].as_array().expect("objects").clone();
    for object in &mut objects {
        object["apiVersion"] = wanted.clone();
        let map = object.as_object_mut().expect("an object");
        if wanted == "example.com/v2" {
            let both = map.remove("hostPort").unwrap_or_default();
            let (host, port) = both.as_str().and_then(|b| b.split_once(':')).unwrap_or(("", ""));
            map.insert("host".into(), host.into());
            map.insert("port".into(), port.into());
        } else {
            let mut text = |key: &str| map.remove(key).and_then(|v| Some(v.as_str()?.to_owned())).unwrap_or_default();
            let both = format!("{}:{}", text("host"), text("port"));
            map.insert("hostPort".into(), both.into());
        }
    }
    let response =
        json!({"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response})
}

#[tokio::test]
async fn each_version_selects_by_its_own_fields() {
    let server = TestServer::start(&["localhost"], |seen| {
        let review: Value = serde_json::from_slice(&seen.body).expect("a review");
        Behaviour::Answer(200, split(&review).to_string().into_bytes())
    })
    .await;
    let api = Api::start().await;
    let versions = json!([version("v1", true, &[".hostPort"]), version("v2", false, &[".host", ".port"])]);
    let mut made = definition(versions);
    let bundle = base64::engine::general_purpose::STANDARD.encode(server.ca());
    made["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://localhost:{}/convert", server.address.port()), "caBundle": bundle}}});
    api.create(DEFINITIONS, made).await;
    let mut watch = Lines::new(api.raw("GET", &format!("{V2}?watch=1&fieldSelector=host%3Dhost1"), &[], "").await);
    for (name, host_port) in [("a", "host1:80"), ("b", "host1:8080"), ("c", "host2:80")] {
        api.create(V1, widget(name, host_port)).await;
    }
    assert_eq!(names(&api, &format!("{V1}?fieldSelector=hostPort%3Dhost1:80")).await, ["a"]);
    assert_eq!(names(&api, &format!("{V2}?fieldSelector=host%3Dhost1")).await, ["a", "b"]);
    assert_eq!(names(&api, &format!("{V2}?fieldSelector=host%3Dhost1,port%3D80")).await, ["a"]);
    assert_eq!(names(&api, &format!("{V2}?fieldSelector=host!%3Dhost1")).await, ["c"]);
    assert_eq!(names(&api, &format!("{V2}?fieldSelector=host%3Dhost1,metadata.name%3Db")).await, ["b"]);
    let first = api.get(&format!("{V2}?fieldSelector=port%3D80&limit=1")).await;
    let token = first["metadata"]["continue"].as_str().expect("more");
    assert_eq!(names(&api, &format!("{V2}?fieldSelector=port%3D80&limit=1&continue={token}")).await, ["c"]);
    let (code, why) = api.call("GET", &format!("{V1}?fieldSelector=host%3Dhost1"), Value::Null).await;
    assert_eq!(code, 400, "v1 cannot select by a field of v2: {why}");
    assert_eq!([watch.event().await, watch.event().await], ["ADDED a", "ADDED b"]);
    let (code, why) = api.call("PATCH", &format!("{V1}/a"), json!({"hostPort": "host3:80"})).await;
    assert_eq!(code, 200, "{why}");
    assert_eq!(watch.event().await, "DELETED a");
    let (code, why) = api.call("PATCH", &format!("{V1}/c"), json!({"hostPort": "host1:90"})).await;
    assert_eq!(code, 200, "{why}");
    assert_eq!(watch.event().await, "ADDED c");
    let (code, why) = api.call("DELETE", &format!("{V2}?fieldSelector=host%3Dhost1"), Value::Null).await;
    assert_eq!(code, 200, "{why}");
    assert_eq!(names(&api, V1).await, ["a"]);
}

#[tokio::test]
async fn objects_stored_before_the_fields_were_selectable_are_found() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition(json!([version("v1", true, &[])]))).await;
    api.create(V1, widget("a", "host1:80")).await;
    api.create(V1, widget("b", "host2:80")).await;
    let named = json!({"spec": {"versions": [version("v1", true, &[".hostPort"])]}});
    let (code, why) = api.call("PATCH", &format!("{DEFINITIONS}/widgets.example.com"), named).await;
    assert_eq!(code, 200, "{why}");
    let uri = format!("{V1}?fieldSelector=hostPort%3Dhost1:80");
    assert_eq!(names(&api, &uri).await, ["a"]);
    let mut watch = Lines::new(api.raw("GET", &format!("{uri}&watch=1"), &[], "").await);
    assert_eq!(watch.event().await, "ADDED a");
}
