//! IPAddress objects of Services: created before the Service, deleted after it, and unique between two servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use crate::common::Api;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    service["spec"]["ports"] = json!([{"port": 80}]);
    service
}

/// The owners of IPAddress objects, without the server's own.
async fn owners(api: &Api) -> Vec<(String, String)> {
    let list = api.get(ADDRESSES).await;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let of = |a: &Value| (text(&a["metadata"]["name"]), text(&a["spec"]["parentRef"]["name"]));
    list["items"].as_array().unwrap().iter().map(of).filter(|(_, parent)| parent != "kubernetes").collect()
}

/// Waits until the IPAddress objects are these; some are deleted in the background.
async fn until(api: &Api, wanted: &[(String, String)]) {
    let is_so = async {
        while owners(api).await != wanted {
            tokio::task::yield_now().await;
        }
    };
    let done = tokio::time::timeout(std::time::Duration::from_secs(30), is_so).await;
    assert!(done.is_ok(), "{:?}, not {wanted:?}", owners(api).await);
}

fn owned(ip: &str, name: &str) -> Vec<(String, String)> {
    vec![(ip.to_owned(), name.to_owned())]
}

#[tokio::test]
async fn an_ip_address_object_exists_as_long_as_its_service() {
    let api = Api::start().await;
    let kubernetes = api.get(&format!("{SERVICES}/kubernetes")).await;
    let first = kubernetes["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert_eq!(api.get(&format!("{ADDRESSES}/{first}")).await["spec"]["parentRef"]["name"], "kubernetes");
    let s = api.create(SERVICES, service("s", json!({}))).await;
    let ip = s["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert_eq!(owners(&api).await, owned(&ip, "s"));
    let object = api.get(&format!("{ADDRESSES}/{ip}")).await;
    assert_eq!(object["spec"], json!({"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}));
    assert_eq!(
        object["metadata"]["labels"],
        json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
    );
    // Rejected services, dry runs and headless services have no address.
    api.create(SERVICES, service("headless", json!({"clusterIP": "None"}))).await;
    let (code, _) = api.call("POST", &format!("{SERVICES}?dryRun=All"), service("dry", json!({}))).await;
    assert_eq!(code, 201);
    let (code, _) = api.call("POST", SERVICES, service("bad", json!({"sessionAffinity": "Odd"}))).await;
    assert_eq!(code, 422);
    until(&api, &owned(&ip, "s")).await;
    let (code, refused) = api.call("POST", SERVICES, service("t", json!({"clusterIP": ip}))).await;
    assert_eq!((code, refused["message"].as_str().unwrap().contains("provided IP is already allocated")), (422, true));
    // Released, allocated again, deleted.
    let path = format!("{SERVICES}/s");
    let (code, _) = api.call("DELETE", &path, Value::Null).await;
    assert_eq!((code, owners(&api).await), (200, vec![]));
    api.create(SERVICES, service("t", json!({"clusterIP": ip}))).await;
    assert_eq!(owners(&api).await, owned(&ip, "t"));
    let mut outside = api.get(&format!("{SERVICES}/t")).await;
    outside["spec"] = json!({"type": "ExternalName", "externalName": "example.com"});
    let (code, answer) = api.call("PUT", &format!("{SERVICES}/t"), outside).await;
    assert_eq!((code, owners(&api).await), (200, vec![]), "{answer}");
}

#[tokio::test]
async fn deleted_address_objects_are_created_again_and_leftovers_replaced() {
    let api = Api::start().await;
    let s = api.create(SERVICES, service("s", json!({}))).await;
    let ip = s["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let (code, _) = api.call("DELETE", &format!("{ADDRESSES}/{ip}"), Value::Null).await;
    assert_eq!(code, 200);
    until(&api, &owned(&ip, "s")).await;
    let (code, _) = api.call("DELETE", &format!("{SERVICES}/s"), Value::Null).await;
    assert_eq!(code, 200);
    let object = |by: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": ip, "labels": {"ipaddress.kubernetes.io/managed-by": by}},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "gone"}}})
    };
    // A leftover of a service that was never stored.
    api.create(ADDRESSES, object("ipallocator.k8s.io")).await;
    api.create(SERVICES, service("next", json!({"clusterIP": ip}))).await;
    assert_eq!(owners(&api).await, owned(&ip, "next"));
    let (code, _) = api.call("DELETE", &format!("{SERVICES}/next"), Value::Null).await;
    assert_eq!(code, 200);
    // An address with an object created by a user is not allocated.
    api.create(ADDRESSES, object("me")).await;
    let (code, _) = api.call("POST", SERVICES, service("next", json!({"clusterIP": ip}))).await;
    assert_eq!(code, 422);
    assert_eq!(owners(&api).await, owned(&ip, "gone"));
}
