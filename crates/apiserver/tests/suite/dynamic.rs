//! A kind that is registered at runtime takes the same path as built-in ones.

use std::borrow::Cow;
use std::sync::Arc;

use crate::common::{Api, Lines};
use futures::future::BoxFuture;
use kelson_apiserver::{Conversion, Converter, DynamicSchema, ObjectSchema, Served};
use kelson_codec::{DecodeError, Decoded};
use kelson_meta::{Gvk, Gvr, Status};
use kelson_resources::{Errors, Options, Path, ScalePaths, Strategy, Text};
use kelson_schema::Descriptions;
use kelson_schema::shape::Shape;
use kelson_structural::publish::openapi::Dialect;
use kelson_structural::{Structural, publish};
use serde_json::{Value, json};

/// A small strategy like a custom resource's: defaults, a rule, default columns.
struct Crontabs(Options);

impl Crontabs {
    fn new() -> Self {
        let storage = Gvk::new("stable.example.com", "v1", "CronTab");
        let mut options = Options::of_kind("stable.example.com".to_owned(), "crontabs".to_owned(), storage, true);
        options.subresources = Cow::Owned(vec![Text::Owned("status".to_owned())]);
        options.scale = Some(ScalePaths::usual());
        options.generation = true;
        options.fields = Cow::Owned(vec![Text::Owned("spec.image".to_owned())]);
        Self(options)
    }
}

impl Strategy for Crontabs {
    fn options(&self) -> &Options {
        &self.0
    }
    fn default(&self, _version: &str, object: &mut Value) -> Result<(), Status> {
        if object["spec"]["image"] == "none" {
            return Err(Status::bad_request("no image can be chosen"));
        }
        if object["spec"]["replicas"].is_null() {
            object["spec"]["replicas"] = 1.into();
        }
        Ok(())
    }
    fn check(&self, object: &Value, e: &mut Errors) {
        if object["spec"]["replicas"].as_i64().is_some_and(|n| n > 9) {
            e.invalid(&Path::new("spec").child("replicas"), object["spec"]["replicas"].clone(), "too many");
        }
    }
}

/// Keeps known fields of `spec` and reports others.
struct Schema(Structural);

fn openapi() -> Value {
    json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {
                "image": {"type": "string"},
                "replicas": {"type": "integer"},
                "ports": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}},
                },
            }},
            "status": {"type": "object"},
        },
    })
}

impl DynamicSchema for Schema {
    fn shape(&self) -> Shape {
        publish::shape(self.0.resource())
    }
    fn normalize(&self, mut object: Value, strict: bool) -> Result<Decoded, DecodeError> {
        let mut decoded = Decoded::default();
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            if spec.get("replicas").is_some_and(|r| !r.is_i64()) {
                return Err(DecodeError::Json("spec.replicas: not a number".into()));
            }
            spec.retain(|key, _| {
                let known = matches!(key.as_str(), "image" | "replicas" | "ports");
                if !known && strict {
                    decoded.strict.0.push(format!("unknown field \"spec.{key}\""));
                }
                known
            });
        }
        decoded.value = object;
        Ok(decoded)
    }
    fn openapi(&self, _dialect: Dialect, _texts: &Descriptions) -> Value {
        openapi()
    }
}

const PATH: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

async fn start() -> Api {
    let api = Api::start().await;
    let schema = ObjectSchema::Dynamic(Arc::new(Schema(Structural::parse(&openapi()).expect("structural"))));
    let (gvr, gvk) = names("v1");
    let served = Served::dynamic(gvr, gvk, Arc::new(Crontabs::new()), schema);
    api.running.server().catalog.insert(Arc::new(served));
    api
}

fn names(version: &str) -> (Gvr, Gvk) {
    (Gvr::new("stable.example.com", version, "crontabs"), Gvk::new("stable.example.com", version, "CronTab"))
}

fn crontab(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn it_is_created_read_listed_watched_and_deleted() {
    let api = start().await;
    let watch = api.raw("GET", &format!("{PATH}?watch=1"), &[], "").await;
    let mut watch = Lines::new(watch);
    let made = api.create(PATH, crontab("a", json!({"image": "x", "odd": 1}))).await;
    assert_eq!(made["spec"], json!({"image": "x", "replicas": 1}), "pruned and defaulted");
    assert_eq!(made["metadata"]["generation"], 1);
    api.create(PATH, crontab("b", json!({"image": "y"}))).await;
    assert_eq!(watch.event().await, "ADDED a");
    assert_eq!(watch.event().await, "ADDED b");
    let list = api.get(&format!("{PATH}?fieldSelector=spec.image%3Dy")).await;
    assert_eq!(list["kind"], "CronTabList");
    assert_eq!(list["items"][0]["metadata"]["name"], "b");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let (code, _) = api.call("DELETE", &format!("{PATH}/a"), Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(watch.event().await, "DELETED a");
    let (code, _) = api.call("GET", &format!("{PATH}/a"), Value::Null).await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn invalid_objects_are_rejected() {
    let api = start().await;
    let (code, why) =
        api.call("POST", &format!("{PATH}?fieldValidation=Strict"), crontab("a", json!({"odd": 1}))).await;
    assert_eq!((code, why["message"].as_str().unwrap_or("").contains("spec.odd")), (400, true), "{why}");
    let (code, _) = api.call("POST", PATH, crontab("a", json!({"replicas": "many"}))).await;
    assert_eq!(code, 400);
    let (code, _) = api.call("POST", PATH, crontab("a", json!({"replicas": 10}))).await;
    assert_eq!(code, 422);
    let (code, why) = api.call("POST", PATH, crontab("a", json!({"image": "none"}))).await;
    assert_eq!((code, why["message"].as_str()), (400, Some("no image can be chosen")));
}

#[tokio::test]
async fn it_takes_all_patches_but_strategic_merge() {
    let api = start().await;
    api.create(PATH, crontab("a", json!({"image": "x", "ports": [{"name": "web", "port": 1}]}))).await;
    let path = format!("{PATH}/a");
    let patches = [
        ("application/json-patch+json", json!([{"op": "replace", "path": "/spec/image", "value": "j"}])),
        ("application/merge-patch+json", json!({"spec": {"replicas": 2}, "metadata": {"labels": {"s": "1"}}})),
    ];
    for (kind, patch) in patches {
        let (code, value) = api.typed("PATCH", &path, kind, patch).await;
        assert_eq!(code, 200, "{kind}: {value}");
    }
    let labels = json!({"metadata": {"labels": {"s": "2"}}});
    let (code, value) = api.typed("PATCH", &path, "application/strategic-merge-patch+json", labels).await;
    assert_eq!((code, value["reason"].as_str()), (415, Some("UnsupportedMediaType")), "{value}");
    let config = json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "a"},
        "spec": {"ports": [{"name": "admin", "port": 2}]}});
    let apply = format!("{path}?fieldManager=me");
    let (code, value) = api.typed("PATCH", &apply, "application/apply-patch+yaml", config).await;
    assert_eq!(code, 200, "{value}");
    assert_eq!(value["spec"]["ports"].as_array().map(Vec::len), Some(2), "merged by the schema's key: {value}");
    assert_eq!((&value["spec"]["image"], &value["spec"]["replicas"]), (&json!("j"), &json!(2)));
    assert_eq!(value["metadata"]["labels"]["s"], "1");
    assert!(value["metadata"]["managedFields"].as_array().unwrap().iter().any(|m| m["manager"] == "me"));
    assert_eq!(value["metadata"]["generation"], 4);
}

#[tokio::test]
async fn its_status_scale_table_and_documents_are_served() {
    let api = start().await;
    api.create(PATH, crontab("a", json!({"image": "x"}))).await;
    let (code, value) =
        api.call("PATCH", &format!("{PATH}/a/status"), json!({"status": {"n": 1}, "spec": {"image": "z"}})).await;
    assert_eq!((code, &value["status"]["n"], &value["spec"]["image"]), (200, &json!(1), &json!("x")));
    let (code, scale) = api.call("PATCH", &format!("{PATH}/a/scale"), json!({"spec": {"replicas": 3}})).await;
    assert_eq!((code, &scale["kind"], &scale["spec"]["replicas"]), (200, &json!("Scale"), &json!(3)));
    let accept = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = api.raw("GET", PATH, &[accept], "").await;
    let bytes = http_body_util::BodyExt::collect(table.into_body()).await.expect("body").to_bytes();
    let table: Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!((&table["kind"], &table["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    let resources = api.get("/apis/stable.example.com/v1").await;
    let named: Vec<&str> =
        resources["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    assert_eq!(named, ["crontabs", "crontabs/status", "crontabs/scale"]);
    let document = api.get("/openapi/v3/apis/stable.example.com/v1").await;
    let schemas = &document["components"]["schemas"];
    assert!(schemas["com.example.stable.v1.CronTab"]["properties"]["spec"].is_object(), "{schemas}");
    assert!(schemas["com.example.stable.v1.CronTabList"].is_object());
}

/// Sets the target version; rejects objects with a certain name.
struct Marking;

impl Marking {
    fn convert(object: Value, to: &Gvk) -> Result<Value, Status> {
        let mut object = object;
        if object["metadata"]["name"] == "broken" && to.version == "v2" {
            return Err(Status::internal("conversion failed"));
        }
        object["apiVersion"] = to.api_version().into();
        object["spec"]["image"] = to.version.as_str().into();
        Ok(object)
    }
}

impl Converter for Marking {
    fn served<'a>(&'a self, to: &'a Gvk, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            objects.into_iter().map(|object| Self::convert(object, to)).collect()
        })
    }
    fn stored<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(async move { Self::convert(object, &names("v1").1) })
    }
}

#[tokio::test]
async fn another_version_is_converted_by_a_converter_that_waits() {
    let api = start().await;
    let (gvr, gvk) = names("v2");
    let mut served = Served::dynamic(gvr, gvk, Arc::new(Crontabs::new()), ObjectSchema::Open);
    served.conversion = Conversion::By(Arc::new(Marking));
    api.running.server().catalog.insert(Arc::new(served));
    let v2 = PATH.replace("/v1/", "/v2/");
    api.create(PATH, crontab("a", json!({"image": "x"}))).await;
    let one = api.get(&format!("{v2}/a")).await;
    assert_eq!((&one["apiVersion"], &one["spec"]["image"]), (&json!("stable.example.com/v2"), &json!("v2")));
    let (code, patched) = api.call("PATCH", &format!("{v2}/a"), json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &patched["apiVersion"]), (200, &json!("stable.example.com/v2")));
    let stored = api.get(&format!("{PATH}/a")).await;
    assert_eq!((&stored["spec"]["image"], &stored["spec"]["replicas"]), (&json!("v1"), &json!(5)));
    let list = api.get(&v2).await;
    assert_eq!(list["items"][0]["spec"]["image"], "v2");
    let watch = api.raw("GET", &format!("{v2}?watch=1"), &[], "").await;
    let mut watch = Lines::new(watch);
    assert_eq!(watch.next().await.expect("an event")["object"]["apiVersion"], "stable.example.com/v2");
    // A list that cannot be converted fails, and a watch reports an error: neither omits an object.
    api.create(PATH, crontab("broken", json!({}))).await;
    let (code, why) = api.call("GET", &v2, Value::Null).await;
    assert_eq!((code, &why["kind"]), (500, &json!("Status")));
    assert_eq!(watch.next().await.expect("an event")["type"], "ERROR");
    assert!(watch.next().await.is_none());
}
