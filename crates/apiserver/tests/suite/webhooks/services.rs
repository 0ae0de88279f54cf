//! Webhooks that are configured by a service: how the service is resolved, and which certificates are trusted.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{World, answer};
use crate::common::Api;

/// Makes the service `hook` resolve to the world's server.
pub async fn serve(world: &World) {
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443}]}});
    world.api.create("/api/v1/namespaces/default/services", service).await;
    endpoint(world).await;
}

/// Writes the slice to the store, because the API accepts no loopback address.
async fn endpoint(world: &World) {
    let slice = json!({"metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}}, "addressType": "IPv4",
        "ports": [{"name": "", "port": world.server.address.port()}], "endpoints": [{"addresses": ["127.0.0.1"]}]});
    store(&world.api, "discovery.k8s.io", "endpointslices", "default", "hook-1", slice).await;
}

/// Configures the service instead of the URL.
pub fn by_service(hook: &mut Value, path: &str) {
    hook["clientConfig"]["service"] = json!({"namespace": "default", "name": "hook", "path": path});
    hook["clientConfig"]["url"].take();
}

#[tokio::test]
async fn a_service_is_reached_by_its_endpoints_and_its_new_ca_applies_at_once() {
    let world = World::new(|seen| answer(seen, json!({"allowed": false}))).await;
    let hook = world.hook("s", |h| by_service(h, "/judge"));
    world.validating("s", vec![hook]).await;
    let message = |answer: (u16, Value)| answer.1["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        message(world.post("m").await),
        "Internal error occurred: failed calling webhook \"s.example.com\": failed to call webhook: \
         Post \"https://hook.default.svc:443/judge?timeout=10s\": service \"hook\" not found"
    );
    world
        .api
        .create(
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443}]}}),
        )
        .await;
    assert!(message(world.post("m").await).ends_with("no endpoints available for service \"hook\""));
    endpoint(&world).await;
    let denied = "admission webhook \"s.example.com\" denied the request without explanation";
    assert_eq!(message(world.post("m").await), denied);
    let next = world.server.change_authority(&["hook.default.svc"]);
    let bundle =
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": STANDARD.encode(next)}]);
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/s";
    let (code, _) = world.api.typed("PATCH", path, "application/json-patch+json", bundle).await;
    assert_eq!(code, 200);
    assert_eq!(message(world.post("m").await), denied);
}

/// Writes an object directly to the store.
pub async fn store(api: &Api, group: &str, resource: &str, namespace: &str, name: &str, mut object: Value) {
    use kelson_store::{Body, Fields, Key, Labels, RecordMeta, Resource, Uid, Write};
    object["metadata"]["resourceVersion"] = "".into();
    let none: [(&str, &str); 0] = [];
    let meta = RecordMeta {
        uid: Uid::new("u"),
        labels: Labels::new(none),
        fields: Fields::default(),
        deleting: false,
        expires_at_s: 0,
    };
    let key = Key::new(Resource::new(group, resource), namespace, name);
    let body = Body::locate(object.to_string()).expect("a body");
    api.store.commit(Write::create(key, body, meta)).await.expect("stored");
}
