//! The controller on the API server in memory.
use super::*;
use crate::testing::run;
use crate::{Config, Running};
use kelson_simulation::Api;

const SERVICES: &str = "v1/services";

async fn with(enabled: bool) -> (Api, Running) {
    let api = Api::start().await;
    api.namespace("n").await;
    let running = controller(&api, enabled).await;
    (api, running)
}

async fn controller(api: &Api, enabled: bool) -> Running {
    let config = Config { service_load_balancer: enabled, ..Config::default() };
    run(api, &["service-lb-controller"], config).await
}

async fn node(api: &Api, name: &str, ip: &str) {
    api.create("v1/nodes", json!({"metadata": {"name": name}})).await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": ip}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    api.patch("v1/nodes", "", name, "status", status).await;
    ready(api, name, "True").await;
}

async fn ready(api: &Api, name: &str, status: &str) {
    let condition = json!({"type": "Ready", "status": status});
    api.patch("v1/nodes", "", name, "status", json!({"status": {"conditions": [condition]}})).await;
}

async fn service(api: &Api, name: &str, port: u16, spec: Value) {
    let mut object = json!({"metadata": {"name": name, "namespace": "n"},
        "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"port": port}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    api.create(SERVICES, object).await;
}

/// The addresses of a service; `None` if it does not exist.
async fn addresses(api: &Api, name: &str) -> Option<Vec<String>> {
    api.settle().await;
    let service = api.get(SERVICES, "n", name).await?;
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    assert!(ingress.iter().all(|i| i["ipMode"] == "VIP"), "{ingress:?}");
    Some(ingress.iter().map(|i| i["ip"].as_str().unwrap_or_default().to_owned()).collect())
}

async fn reasons(api: &Api) -> Vec<String> {
    api.settle().await;
    let events = api.events().await;
    events.iter().map(|e| e.split(' ').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_service_has_the_addresses_of_ready_nodes_until_it_goes() {
    let (api, _running) = with(true).await;
    service(&api, "web", 80, json!({})).await;
    assert_eq!(addresses(&api, "web").await.expect("there"), [""; 0]);
    assert_eq!(reasons(&api).await, ["UnAvailableLoadBalancer"], "once");
    node(&api, "a", "10.0.0.1").await;
    assert_eq!(addresses(&api, "web").await.expect("there"), ["10.0.0.1"]);
    node(&api, "b", "10.0.0.2").await;
    assert_eq!(addresses(&api, "web").await.expect("there"), ["10.0.0.1", "10.0.0.2"]);
    let all = reasons(&api).await;
    for reason in ["EnsuringLoadBalancer", "EnsuredLoadBalancer", "UpdatedLoadBalancer"] {
        assert!(all.iter().any(|r| r == reason), "{reason}: {all:?}");
    }
    ready(&api, "b", "False").await;
    assert_eq!(addresses(&api, "web").await.expect("there"), ["10.0.0.1"]);
    let web = api.get(SERVICES, "n", "web").await.expect("there");
    assert_eq!(web["metadata"]["finalizers"], json!([FINALIZER]));
    api.delete(SERVICES, "n", "web", json!({})).await;
    assert_eq!(addresses(&api, "web").await, None, "the finalizer is gone");
    assert!(reasons(&api).await.iter().any(|r| r == "DeletedLoadBalancer"));
}

#[tokio::test(start_paused = true)]
async fn a_second_service_waits_for_a_port() {
    let (api, _running) = with(true).await;
    node(&api, "a", "10.0.0.1").await;
    service(&api, "first", 80, json!({})).await;
    assert_eq!(addresses(&api, "first").await.expect("there"), ["10.0.0.1"]);
    service(&api, "second", 80, json!({})).await;
    service(&api, "kubelet", 10250, json!({})).await;
    assert_eq!(addresses(&api, "second").await.expect("there"), [""; 0]);
    let events = api.events().await.join("\n");
    assert!(events.contains("port 80/TCP of node a is in use by service n/first"), "{events}");
    assert!(events.contains("port 10250/TCP of node a is in use by the kubelet"), "{events}");
    api.delete(SERVICES, "n", "first", json!({})).await;
    assert_eq!(addresses(&api, "second").await.expect("there"), ["10.0.0.1"]);
}

#[tokio::test(start_paused = true)]
async fn local_traffic_follows_ready_endpoints() {
    let (api, _running) = with(true).await;
    node(&api, "a", "10.0.0.1").await;
    node(&api, "b", "10.0.0.2").await;
    service(&api, "web", 80, json!({"externalTrafficPolicy": "Local"})).await;
    assert_eq!(addresses(&api, "web").await.expect("there"), [""; 0]);
    let slices = "discovery.k8s.io/v1/endpointslices";
    let slice = json!({"metadata": {"name": "web-1", "namespace": "n", "labels": {SERVICE_NAME_LABEL: "web"}},
        "addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [
            {"addresses": ["10.42.0.5"], "nodeName": "b", "conditions": {"ready": true}},
            {"addresses": ["10.42.0.6"], "nodeName": "a", "conditions": {"ready": false}}]});
    api.create(slices, slice).await;
    assert_eq!(addresses(&api, "web").await.expect("there"), ["10.0.0.2"]);
    api.change(slices, "n", "web-1", |slice| slice["endpoints"][1]["conditions"]["ready"] = true.into()).await;
    assert_eq!(addresses(&api, "web").await.expect("there"), ["10.0.0.1", "10.0.0.2"]);
}

#[tokio::test(start_paused = true)]
async fn other_classes_and_types_are_left_alone() {
    let (api, _running) = with(true).await;
    node(&api, "a", "10.0.0.1").await;
    service(&api, "theirs", 80, json!({"loadBalancerClass": "example.com/other"})).await;
    service(&api, "ours", 81, json!({"loadBalancerClass": CLASS, "allocateLoadBalancerNodePorts": false})).await;
    assert_eq!(addresses(&api, "theirs").await.expect("there"), [""; 0]);
    assert_eq!(addresses(&api, "ours").await.expect("there"), ["10.0.0.1"]);
    let theirs = api.get(SERVICES, "n", "theirs").await.expect("there");
    assert!(theirs["metadata"]["finalizers"].is_null(), "{theirs}");
    api.change(SERVICES, "n", "ours", |s| {
        s["spec"]["type"] = "ClusterIP".into();
        for field in ["loadBalancerClass", "allocateLoadBalancerNodePorts", "externalTrafficPolicy"] {
            s["spec"].as_object_mut().expect("a spec").remove(field);
        }
    })
    .await;
    assert_eq!(addresses(&api, "ours").await.expect("there"), [""; 0]);
    let ours = api.get(SERVICES, "n", "ours").await.expect("there");
    assert!(ours["metadata"]["finalizers"].is_null() && !ours.to_string().contains(MANAGED), "{ours}");
}

#[tokio::test(start_paused = true)]
async fn disabled_it_takes_back_what_it_gave() {
    let (api, running) = with(true).await;
    node(&api, "a", "10.0.0.1").await;
    service(&api, "web", 80, json!({})).await;
    assert_eq!(addresses(&api, "web").await.expect("there"), ["10.0.0.1"]);
    running.shutdown().await;
    let _running = controller(&api, false).await;
    assert_eq!(addresses(&api, "web").await.expect("there"), [""; 0]);
    let web = api.get(SERVICES, "n", "web").await.expect("there");
    assert!(web["metadata"]["finalizers"].is_null() && !web.to_string().contains(MANAGED), "{web}");
}

async fn with_pools(api: &Api, pools: &[&str]) -> Running {
    let load_balancer_pools = pools.iter().map(|text| text.parse().expect("a pool")).collect();
    run(api, &["service-lb-controller"], Config { load_balancer_pools, ..Config::default() }).await
}

/// The addresses of a service, the node that announces it, and the reason of its condition.
async fn pooled(api: &Api, name: &str) -> String {
    let all = addresses(api, name).await.expect("there").join(",");
    let service = api.get(SERVICES, "n", name).await.expect("there");
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let node = text(&service["metadata"]["annotations"][pooled::ANNOUNCED_BY]);
    format!("{all} {node} {}", text(&service["status"]["conditions"][0]["reason"]))
}

#[tokio::test(start_paused = true)]
async fn an_address_of_a_pool_is_announced_by_one_node_that_works() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = with_pools(&api, &["192.0.2.10-192.0.2.11"]).await;
    service(&api, "web", 80, json!({})).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.10 - Allocated");
    assert_eq!(reasons(&api).await.iter().filter(|r| *r == "UnAvailableLoadBalancer").count(), 1);
    for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        node(&api, name, ip).await;
        assert_eq!(pooled(&api, "web").await, "192.0.2.10 a Allocated", "it stays where it is");
    }
    ready(&api, "a", "False").await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.10 b Allocated");
    api.change("v1/nodes", "", "b", |node| node["spec"]["unschedulable"] = true.into()).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.10 c Allocated");
    ready(&api, "a", "True").await;
    api.change("v1/nodes", "", "c", |node| node["metadata"]["labels"][EXCLUDE] = "".into()).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.10 a Allocated");
    api.delete("v1/nodes", "", "a", json!({})).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.10 b Allocated", "a cordoned node is better than none");
    assert!(reasons(&api).await.iter().any(|r| r == "NodeAssigned"));
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_free_addresses_is_an_event_and_a_condition() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = with_pools(&api, &["192.0.2.10"]).await;
    node(&api, "a", "10.0.0.1").await;
    service(&api, "first", 80, json!({})).await;
    assert_eq!(pooled(&api, "first").await, "192.0.2.10 a Allocated");
    service(&api, "second", 80, json!({})).await;
    service(&api, "third", 80, json!({"loadBalancerIP": "192.0.2.99"})).await;
    assert_eq!(pooled(&api, "second").await, " - AddressPoolExhausted");
    assert_eq!(pooled(&api, "third").await, " - AddressNotInPool");
    let events = api.events().await.join("\n");
    assert!(
        events.contains("SyncLoadBalancerFailed") && events.contains("no address is free in the pools"),
        "{events}"
    );
    api.delete(SERVICES, "n", "first", json!({})).await;
    assert_eq!(pooled(&api, "second").await, "192.0.2.10 a Allocated");
}

#[tokio::test(start_paused = true)]
async fn addresses_of_pools_survive_a_restart_and_local_traffic_decides_the_node() {
    let api = Api::start().await;
    api.namespace("n").await;
    let running = with_pools(&api, &["192.0.2.10-192.0.2.20"]).await;
    node(&api, "a", "10.0.0.1").await;
    node(&api, "b", "10.0.0.2").await;
    service(&api, "web", 80, json!({"loadBalancerIP": "192.0.2.15", "externalTrafficPolicy": "Local"})).await;
    service(&api, "other", 81, json!({})).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.15 - Allocated", "no node has an endpoint");
    let slice = json!({"metadata": {"name": "web-1", "namespace": "n", "labels": {SERVICE_NAME_LABEL: "web"}},
        "addressType": "IPv4", "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["10.42.0.5"], "nodeName": "b", "conditions": {"ready": true}}]});
    api.create("discovery.k8s.io/v1/endpointslices", slice).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.15 b Allocated");
    running.shutdown().await;
    api.change(SERVICES, "n", "web", |service| {
        drop(service["spec"].as_object_mut().map(|s| s.remove("loadBalancerIP")))
    })
    .await;
    let running = with_pools(&api, &["192.0.2.10-192.0.2.20"]).await;
    assert_eq!(pooled(&api, "web").await, "192.0.2.15 b Allocated");
    assert_eq!(pooled(&api, "other").await, "192.0.2.10 a Allocated");
    running.shutdown().await;
    // Without pools, services have the addresses of nodes again, and nothing of the pools is left.
    let _running = controller(&api, true).await;
    assert_eq!(pooled(&api, "web").await, "10.0.0.2 - -");
    let web = api.get(SERVICES, "n", "web").await.expect("there");
    assert!(
        web["status"]["conditions"].is_null() && web["metadata"]["annotations"].get(pooled::ANNOUNCED_BY).is_none()
    );
}
