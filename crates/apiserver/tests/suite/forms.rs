//! Content negotiation: clauses of `Accept` by class of kind and verb, and pieces of bounded size in every encoding.
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::common::{Api, Lines};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CUSTOM: &str = "/apis/example.com/v1/namespaces/default/things";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn started() -> Api {
    let api = Api::start().await;
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (plural, scope) in [("things", "Namespaced"), ("places", "Cluster")] {
        let kind = if plural == "things" { "Thing" } else { "PoolShare" };
        let names = json!({"plural": plural, "kind": kind});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}});
        let definition = json!({"metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": scope, "names": names, "versions": [version]}});
        api.create(DEFINITIONS, definition).await;
    }
    api
}

fn object(collection: &str, name: &str) -> Value {
    let (version, kind) = if collection == MAPS { ("v1", "ConfigMap") } else { ("example.com/v1", "Thing") };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}})
}

/// Code and media type of an answer.
async fn asked(api: &Api, method: &str, uri: &str, accept: &str, body: Value) -> (u16, String) {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = api.raw(method, uri, &[("accept", accept), ("content-type", kind)], body).await;
    let media = answer.headers().get("content-type").map(|v| v.to_str().expect("a media type").to_owned());
    (answer.status().as_u16(), media.unwrap_or_default())
}

#[tokio::test]
async fn a_write_in_an_unsupported_form_is_not_done() {
    let api = started().await;
    let json = "application/json".to_owned();
    for (collection, first) in [(MAPS, PROTOBUF.to_owned()), (CUSTOM, json.clone())] {
        for (i, accept) in [format!("{PROTOBUF}, */*"), format!("{PROTOBUF},{json}")].iter().enumerate() {
            let (name, new) = (format!("a{i}"), object(collection, &format!("a{i}")));
            let one = format!("{collection}/{name}");
            for (method, uri, body, code) in [
                ("POST", collection, new, 201),
                ("GET", &one, Value::Null, 200),
                ("GET", collection, Value::Null, 200),
                ("PATCH", &one, json!({"metadata": {"labels": {"a": "b"}}}), 200),
                ("DELETE", &one, Value::Null, 200),
                ("DELETE", collection, Value::Null, 200),
            ] {
                assert_eq!(
                    asked(&api, method, uri, accept, body).await,
                    (code, first.clone()),
                    "{method} {uri} {accept}"
                );
            }
        }
    }
    // A single unsupported form is rejected before anything is done, and the error is in the client's form.
    let refused = (406, PROTOBUF.to_owned());
    assert_eq!(asked(&api, "POST", CUSTOM, PROTOBUF, object(CUSTOM, "never")).await, refused);
    assert_eq!(api.call("GET", &format!("{CUSTOM}/never"), Value::Null).await.0, 404);
    api.create(CUSTOM, object(CUSTOM, "there")).await;
    let there = format!("{CUSTOM}/there");
    assert_eq!(asked(&api, "PATCH", &there, PROTOBUF, json!({"metadata": {"labels": {"a": "b"}}})).await, refused);
    for uri in [CUSTOM, &there] {
        assert_eq!(asked(&api, "DELETE", uri, PROTOBUF, Value::Null).await, refused);
        assert_eq!(asked(&api, "GET", uri, PROTOBUF, Value::Null).await, refused);
    }
    let (code, found) = api.call("GET", &there, Value::Null).await;
    assert_eq!((code, found["metadata"].get("labels")), (200, None));
    let lists = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    assert_eq!(asked(&api, "DELETE", &there, lists, Value::Null).await.0, 406);
    assert_eq!(api.call("GET", &there, Value::Null).await.0, 200);
}

#[tokio::test]
async fn watches_have_a_form_of_the_kind() {
    let api = started().await;
    api.create(CUSTOM, object(CUSTOM, "a")).await;
    let watch = format!("{CUSTOM}?watch=1");
    for accept in [
        format!("{PROTOBUF},application/json"),
        format!("{PROTOBUF}, */*"),
        format!("{PROTOBUF};stream=watch,application/json;stream=watch"),
    ] {
        let answer = api.raw("GET", &watch, &[("accept", &accept)], "").await;
        assert_eq!(answer.headers()["content-type"], "application/json", "{accept}");
        assert_eq!(Lines::new(answer).event().await, "ADDED a");
    }
    for (uri, accept) in [
        (watch.as_str(), PROTOBUF),
        (&watch, "application/yaml"),
        ("/api/v1/services?watch=1", "application/yaml"),
        ("/api/v1/services?watch=1", "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1"),
        ("/api/v1/services?watch=1", "application/json;g=meta.k8s.io;v=v1"),
    ] {
        assert_eq!(asked(&api, "GET", uri, accept, Value::Null).await.0, 406, "{uri} {accept}");
    }
}

#[tokio::test]
async fn only_reads_go_across_namespaces() {
    let api = started().await;
    let across = "/apis/example.com/v1/things";
    for (method, uri, body) in [
        ("DELETE", across, Value::Null),
        ("POST", across, object(CUSTOM, "a")),
        ("PATCH", across, json!({})),
        ("PUT", across, object(CUSTOM, "a")),
        ("GET", "/apis/example.com/v1/namespaces/default/places", Value::Null),
    ] {
        let (code, text) = api.call(method, uri, body).await;
        assert_eq!((code, text), (404, json!("404 page not found\n")), "{method} {uri}");
    }
    assert_eq!(api.call("GET", across, Value::Null).await.0, 200);
    assert_eq!(
        api.call("DELETE", "/api/v1/configmaps", Value::Null).await.0,
        405,
        "routes of built-in kinds have methods"
    );
}

/// The pieces of an answer.
async fn pieces(api: &Api, method: &str, uri: &str, accept: &str) -> Vec<bytes::Bytes> {
    let answer = api.raw(method, uri, &[("accept", accept)], "").await;
    assert_eq!(answer.status(), 200, "{method} {uri} {accept}");
    let (mut body, mut pieces) = (answer.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        pieces.push(frame.expect("a frame").into_data().expect("data"));
    }
    pieces
}

#[tokio::test]
async fn no_list_is_held_whole() {
    const OBJECTS: usize = 60;
    const OBJECT_BYTES: usize = 20_000;
    const PIECE_BYTES_MAX: usize = 3 * 64 * 1024;
    let api = started().await;
    for i in 0..OBJECTS {
        let mut map = object(MAPS, &format!("m{i:02}"));
        map["data"] = json!({"t": "x".repeat(OBJECT_BYTES)});
        map["metadata"]["annotations"] = json!({"n": "y".repeat(OBJECT_BYTES)});
        api.create(MAPS, map).await;
    }
    let (table, metadata) = ("as=Table;g=meta.k8s.io;v=v1", "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let mut whole = Vec::new();
    for (method, accept) in [
        ("GET", "application/json".to_owned()),
        ("GET", "application/yaml".to_owned()),
        ("GET", PROTOBUF.to_owned()),
        ("GET", format!("application/json;{table}")),
        ("GET", format!("application/yaml;{table}")),
        ("GET", format!("application/json;{metadata}")),
        ("GET", format!("application/yaml;{metadata}")),
        ("GET", format!("{PROTOBUF};{metadata}")),
        ("DELETE", "application/json".to_owned()),
    ] {
        let pieces = pieces(&api, method, MAPS, &accept).await;
        let largest = pieces.iter().map(bytes::Bytes::len).max().unwrap_or(0);
        assert!(largest <= PIECE_BYTES_MAX && pieces.len() > 5, "{accept}: {} pieces, {largest}", pieces.len());
        whole.push(pieces.concat());
    }
    // The server writes its own objects meanwhile, so two lists may have different revisions.
    let timeless = |mut list: Value| {
        list["metadata"]["resourceVersion"] = Value::Null;
        list
    };
    let read = |bytes: &[u8]| timeless(serde_json::from_slice(bytes).expect("JSON"));
    let yaml = |bytes: &[u8]| {
        timeless(kelson_codec::decode(kelson_codec::Encoding::Yaml, None, bytes, true).expect("YAML").value)
    };
    let items = |list: &Value| list["items"].as_array().expect("items").clone();
    let list = read(&whole[0]);
    assert_eq!(items(&list).len(), OBJECTS);
    assert_eq!(yaml(&whole[1]), list);
    let (_, mut proto) = kelson_codec::proto::decode(&whole[2]).expect("protobuf");
    for item in proto["items"].as_array_mut().expect("items") {
        item.as_object_mut().expect("an object").retain(|key, _| key != "kind" && key != "apiVersion");
    }
    assert_eq!(proto["items"], list["items"]);
    assert_eq!(yaml(&whole[4]), read(&whole[3]));
    let partial = read(&whole[5]);
    assert_eq!(yaml(&whole[6]), partial);
    let (_, proto) = kelson_codec::proto::decode(&whole[7]).expect("protobuf");
    for ((shown, object), message) in items(&partial).iter().zip(items(&list)).zip(items(&proto)) {
        assert_eq!(shown["kind"], "PartialObjectMetadata");
        assert_eq!((&shown["metadata"], &message["metadata"]), (&object["metadata"], &object["metadata"]));
    }
    let deleted = read(&whole[8]);
    assert_eq!((items(&deleted), deleted["kind"].as_str()), (items(&list), Some("ConfigMapList")), "the last state");
    for accept in ["application/yaml", PROTOBUF] {
        let empty = pieces(&api, "GET", MAPS, accept).await.concat();
        match accept {
            PROTOBUF => assert_eq!(kelson_codec::proto::decode(&empty).expect("protobuf").0.kind, "ConfigMapList"),
            _ => assert_eq!(yaml(&empty)["items"], json!([])),
        }
    }
}

#[tokio::test]
async fn initial_events_are_sent_in_pieces() {
    let api = started().await;
    let begun = api.get(MAPS).await["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    for i in 0..100 {
        let mut map = object(MAPS, &format!("m{i:02}"));
        map["data"] = json!({"t": "x".repeat(10_000)});
        api.create(MAPS, map).await;
    }
    let uri = format!("{MAPS}?watch=1&resourceVersion={begun}");
    for accept in ["application/json", PROTOBUF] {
        let mut body = api.raw("GET", &uri, &[("accept", accept)], "").await.into_body();
        let mut all = 0;
        while all < 1_000_000 {
            let piece = body.frame().await.expect("more").expect("a frame").into_data().expect("data").len();
            assert!(piece < 100_000, "{accept}: {piece} bytes at once");
            all += piece;
        }
    }
}
