//! Slices and endpoints against the API on a paused clock.
use std::time::Duration;

use serde_json::json;

use crate::testing::{Barred, Gate, run, run_through};
use crate::{BatchPeriods, Config};
use kelson_simulation::Api;

#[tokio::test(start_paused = true)]
async fn follows_pods() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, &["endpointslice-controller", "endpoints-controller"], Config::default()).await;
    api.create("v1/nodes", json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}}})).await;
    api.create(
        "v1/services",
        json!({"metadata": {"name": "web", "namespace": "n", "labels": {"team": "a"}},
        "spec": {"selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}}),
    )
    .await;
    api.settle().await;
    let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
    let empty = |v: &serde_json::Value| v.as_array().is_none_or(Vec::is_empty);
    assert!(slices.len() == 1 && empty(&slices[0]["endpoints"]) && empty(&slices[0]["ports"]));
    for (name, ip) in [("a", "10.42.0.2"), ("b", "10.42.0.3")] {
        api.create(
            "v1/pods",
            json!({"metadata": {"name": name, "namespace": "n", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]}, "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True"}]}}),
        ).await;
    }
    api.settle().await;
    let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
    assert_eq!(slices.len(), 1);
    let s = &slices[0];
    assert_eq!(s["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(s["endpoints"].as_array().unwrap().len(), 2);
    assert_eq!(s["endpoints"][0]["zone"], "z");
    assert_eq!(
        s["metadata"]["labels"],
        json!({"team": "a", "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"})
    );
    assert_eq!(s["metadata"]["ownerReferences"][0]["kind"], "Service");
    let e = api.get("v1/endpoints", "n", "web").await.unwrap();
    assert_eq!(e["subsets"][0]["addresses"].as_array().unwrap().len(), 2);

    api.change("v1/pods", "n", "a", |v| v["status"]["conditions"][0]["status"] = json!("False")).await;
    api.settle().await;
    let e = api.get("v1/endpoints", "n", "web").await.unwrap();
    assert_eq!(e["subsets"][0]["notReadyAddresses"][0]["ip"], "10.42.0.2");
    api.remove("v1/services", "n", "web").await;
    api.settle().await;
    assert!(api.get("v1/endpoints", "n", "web").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn changes_of_pods_are_gathered_as_long_as_is_configured() {
    let periods =
        BatchPeriods { endpoints: Duration::from_secs(20), slices: Duration::from_secs(60), mirrored: Duration::ZERO };
    let config = Config { batch_periods: periods, ..Config::default() };
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, &["endpointslice-controller", "endpoints-controller"], config).await;
    api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
    api.create("v1/services", json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec})).await;
    api.settle().await;
    let status = json!({"phase": "Running", "podIP": "10.42.0.2", "podIPs": [{"ip": "10.42.0.2"}],
        "conditions": [{"type": "Ready", "status": "True"}]});
    let (metadata, container) =
        (json!({"name": "a", "namespace": "n", "labels": {"app": "web"}}), json!([{"name": "c", "image": "c"}]));
    let spec = json!({"nodeName": "n1", "containers": container});
    api.create("v1/pods", json!({"metadata": metadata, "spec": spec, "status": status})).await;
    let shown = async || {
        let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
        let legacy = api.get("v1/endpoints", "n", "web").await.unwrap_or_default();
        let some = |v: &serde_json::Value| v.as_array().is_some_and(|all| !all.is_empty());
        (some(&legacy["subsets"]), slices.iter().any(|s| some(&s["endpoints"])))
    };
    for (seconds, expected) in [(10, (false, false)), (20, (true, false)), (40, (true, true))] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(shown().await, expected, "after {seconds} seconds more");
    }
}

/// A ready pod `a` of service `web` on node `n1` in zone `z`.
async fn one_endpoint(api: &Api) {
    api.namespace("n").await;
    let labels = json!({"topology.kubernetes.io/zone": "z"});
    api.create("v1/nodes", json!({"metadata": {"name": "n1", "labels": labels}})).await;
    let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
    api.create("v1/services", json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec})).await;
    let status = json!({"phase": "Running", "podIP": "10.42.0.2", "podIPs": [{"ip": "10.42.0.2"}],
        "conditions": [{"type": "Ready", "status": "True"}]});
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]});
    let metadata = json!({"name": "a", "namespace": "n", "labels": {"app": "web"}});
    api.create("v1/pods", json!({"metadata": metadata, "spec": spec, "status": status})).await;
    api.settle().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_have_zone_hints() {
    let api = Api::start().await;
    let _running = run(&api, &["endpointslice-controller"], Config::default()).await;
    one_endpoint(&api).await;
    let hints = async || api.list("discovery.k8s.io/v1/endpointslices").await[0]["endpoints"][0]["hints"].clone();
    assert!(hints().await.is_null());
    for (field, want) in [
        (json!("PreferSameZone"), json!({"forZones": [{"name": "z"}]})),
        (json!("PreferSameNode"), json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]})),
        (json!("PreferClose"), json!({"forZones": [{"name": "z"}]})),
        (json!(null), json!(null)),
    ] {
        api.change("v1/services", "n", "web", |s| s["spec"]["trafficDistribution"] = field.clone()).await;
        api.settle().await;
        assert_eq!(hints().await, want, "{field}");
    }
    let mode = |s: &mut serde_json::Value| {
        s["metadata"]["annotations"] = json!({"service.kubernetes.io/topology-mode": "Auto"});
    };
    api.change("v1/services", "n", "web", mode).await;
    api.settle().await;
    let reported = "TopologyAwareHintsDisabled Insufficient Node information: allocatable CPU or zone not specified on one or \
                more nodes, addressType: IPv4";
    assert!(api.events().await.iter().any(|e| e == reported), "{:?}", api.events().await);
    // Two zones, and a pod in each.
    for (name, zone) in [("n1", "z"), ("n2", "y")] {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        let status = json!({"allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]});
        if name == "n2" {
            api.create("v1/nodes", json!({"metadata": {"name": name, "labels": labels}, "status": status})).await;
        } else {
            api.change("v1/nodes", "", name, |n| n["status"] = status.clone()).await;
        }
    }
    let mut second = api.get("v1/pods", "n", "a").await.unwrap();
    let status = json!({"phase": "Running", "podIP": "10.42.1.2", "podIPs": [{"ip": "10.42.1.2"}],
        "conditions": [{"type": "Ready", "status": "True"}]});
    second["metadata"] = json!({"name": "b", "namespace": "n", "labels": {"app": "web"}});
    second["spec"] = json!({"nodeName": "n2", "containers": [{"name": "c", "image": "c"}]});
    second["status"] = status;
    api.create("v1/pods", second).await;
    api.settle().await;
    let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
    let mut zones: Vec<_> = slices[0]["endpoints"].as_array().unwrap().iter().map(|e| e["hints"].to_string()).collect();
    zones.sort();
    assert_eq!(zones, [r#"{"forZones":[{"name":"y"}]}"#, r#"{"forZones":[{"name":"z"}]}"#]);
    let reported = "TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4";
    assert!(api.events().await.iter().any(|e| e == reported));
    api.change("v1/services", "n", "web", |s| s["metadata"]["annotations"] = json!({})).await;
    api.settle().await;
    assert!(hints().await.is_null());
    let reported = "TopologyAwareHintsDisabled Topology Aware Hints has been disabled, addressType: IPv4";
    assert!(api.events().await.iter().any(|e| e == reported));
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_replaced_without_reading_them_again() {
    let (api, gate) = (Api::start().await, Gate::default());
    gate.bar("GET /api/v1/namespaces/n/endpoints/web", Barred::Fails);
    let _running = run_through(&api, &["endpoints-controller"], &gate);
    one_endpoint(&api).await;
    let annotate = |e: &mut serde_json::Value| e["metadata"]["annotations"] = json!({"example.com/mine": "kept"});
    api.change("v1/endpoints", "n", "web", annotate).await;
    let before = api.writes().len();
    api.change("v1/pods", "n", "a", |v| v["status"]["conditions"][0]["status"] = json!("False")).await;
    api.settle().await;
    let e = api.get("v1/endpoints", "n", "web").await.unwrap();
    assert_eq!(e["subsets"][0]["notReadyAddresses"][0]["ip"], "10.42.0.2");
    assert_eq!(e["metadata"]["annotations"], json!({"example.com/mine": "kept"}));
    let puts = api.writes()[before..].iter().filter(|w| *w == "PUT /api/v1/namespaces/n/endpoints/web").count();
    assert_eq!(puts, 1, "one write for one change");
}
