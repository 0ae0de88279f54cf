//! All controllers under their own identities against the API server in this process, with its real rules: validation,
//! defaults, admission and RBAC. What the API does with what controllers write is only proven here.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use kelson_apiserver::ApiServer;
use kelson_auth::UserInfo;
use kelson_client::Client;
use kelson_controllers::{Config, Controllers, Running};
use kelson_meta::SystemClock;
use kelson_store::{Store, StoreOptions};
use serde_json::{Value, json};

/// Far longer than anything here takes; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(30);

struct Cluster {
    admin: Client,
    _controllers: Running,
}

fn user(name: &str) -> UserInfo {
    match name.strip_prefix("system:serviceaccount:kube-system:") {
        Some(account) => UserInfo::service_account("kube-system", account, ""),
        None => UserInfo::new(name, Vec::<String>::new()),
    }
}

async fn cluster() -> Cluster {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let store = Store::in_memory(StoreOptions::default());
    let api = ApiServer::start(kelson_apiserver::Config::new(store)).await.unwrap();
    let admin = Client::new(api.in_process(UserInfo::new("admin", ["system:masters"])), "test");
    let config =
        Config { cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()], root_ca: "PEM".into(), ..Config::default() };
    let factory = move |name: &str| Client::new(api.in_process(user(name)), "controllers");
    let controllers =
        Controllers::start(config, Box::new(factory), Arc::new(SystemClock), kelson_tasks::Tasks::root("controllers"));
    tokio::time::timeout(PATIENCE, controllers.synced()).await.expect("all informers read their state");
    Cluster { admin, _controllers: controllers }
}

impl Cluster {
    async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> Value {
        let bytes = Bytes::from(body.to_string());
        let answer = self.admin.call(method, path, kind, bytes).await.unwrap_or_else(|e| panic!("{path}: {e}"));
        serde_json::from_slice(&answer).unwrap()
    }
    async fn post(&self, path: &str, body: Value) -> Value {
        self.send(Method::POST, path, "application/json", &body).await
    }
    async fn merge(&self, path: &str, body: Value) {
        self.send(Method::PATCH, path, "application/merge-patch+json", &body).await;
    }
    async fn delete(&self, path: &str, policy: &str) {
        self.send(Method::DELETE, path, "application/json", &json!({"propagationPolicy": policy})).await;
    }
    async fn get(&self, path: &str) -> Option<Value> {
        let bytes = self.admin.call(Method::GET, path, "", Bytes::new()).await.ok()?;
        serde_json::from_slice(&bytes).ok()
    }
    async fn items(&self, path: &str) -> Vec<Value> {
        self.get(path).await.and_then(|v| v["items"].as_array().cloned()).unwrap_or_default()
    }
    /// Waits until `check` gives something.
    async fn until<T>(&self, what: &str, check: impl AsyncFn(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(v) = check(self).await {
                return v;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]}}}})
}

/// Binds and readies every pod that is not, as a scheduler and a kubelet would.
async fn run_pods(c: &Cluster) {
    for p in c.items(PODS).await {
        let path = format!("{PODS}/{}", p["metadata"]["name"].as_str().unwrap());
        if p["status"]["podIP"].is_null() {
            let ip = format!(
                "10.42.0.{}",
                2 + p["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() % 250
            );
            let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready});
            c.merge(&format!("{path}/status"), json!({"status": status})).await;
        }
    }
}

#[tokio::test]
async fn a_deployment_lives_and_dies() {
    let c = cluster().await;
    c.until("the default service account", async |c| c.get("/api/v1/namespaces/default/serviceaccounts/default").await)
        .await;
    c.until("the root CA", async |c| c.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt").await).await;
    c.post(DEPLOYMENTS, deployment("web")).await;
    c.post(
        "/api/v1/namespaces/default/services",
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}),
    )
    .await;
    c.until("three pods", async |c| (c.items(PODS).await.len() == 3).then_some(())).await;
    run_pods(&c).await;
    let path = format!("{DEPLOYMENTS}/web");
    let d = c
        .until("the deployment is available", async |c| {
            let d = c.get(&path).await?;
            (d["status"]["availableReplicas"] == 3).then_some(d)
        })
        .await;
    assert_eq!(d["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let generation = d["metadata"]["generation"].clone();

    c.merge(
        &path,
        json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}),
    )
    .await;
    let begun = Instant::now();
    loop {
        run_pods(&c).await;
        let d = c.get(&path).await.unwrap();
        let done =
            d["status"]["conditions"].as_array().unwrap().iter().any(|x| x["reason"] == "NewReplicaSetAvailable");
        if d["status"]["updatedReplicas"] == 3
            && d["status"]["replicas"] == 3
            && done
            && d["status"]["observedGeneration"] == d["metadata"]["generation"]
        {
            assert_ne!(d["metadata"]["generation"], generation);
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "never: rolled out: {}", d["status"]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(c.items(SETS).await.len(), 2, "the old set is kept for undo");

    c.delete(&path, "Foreground").await;
    c.until("all is collected", async |c| {
        let gone = c.get(&path).await.is_none() && c.items(SETS).await.is_empty() && c.items(PODS).await.is_empty();
        gone.then_some(())
    })
    .await;
}

#[tokio::test]
async fn orphans_stay_and_background_goes() {
    let c = cluster().await;
    c.post(DEPLOYMENTS, deployment("kept")).await;
    c.until("a set with pods", async |c| (c.items(PODS).await.len() == 3).then_some(())).await;
    c.delete(&format!("{DEPLOYMENTS}/kept"), "Orphan").await;
    c.until("the deployment is gone", async |c| c.get(&format!("{DEPLOYMENTS}/kept")).await.is_none().then_some(()))
        .await;
    let sets = c.items(SETS).await;
    assert_eq!((sets.len(), sets[0]["metadata"]["ownerReferences"].is_null()), (1, true));
    let set = format!("{SETS}/{}", sets[0]["metadata"]["name"].as_str().unwrap());
    c.delete(&set, "Background").await;
    c.until("its pods go too", async |c| c.items(PODS).await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn namespaces_nodes_and_endpoints() {
    let c = cluster().await;
    c.post("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short"}})).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}});
    c.post("/api/v1/namespaces/short/configmaps", map).await;
    c.until("its account", async |c| c.get("/api/v1/namespaces/short/serviceaccounts/default").await).await;
    c.delete("/api/v1/namespaces/short", "Background").await;
    c.until("the namespace is gone", async |c| c.get("/api/v1/namespaces/short").await.is_none().then_some(())).await;

    c.post("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).await;
    let range = c
        .until("a pod range", async |c| c.get("/api/v1/nodes/n1").await?["spec"]["podCIDR"].as_str().map(str::to_owned))
        .await;
    assert_eq!(range, "10.42.0.0/24");
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    c.merge("/api/v1/nodes/n1/status", json!({"status": {"conditions": ready}})).await;
    c.until("a ready node has no taint", async |c| {
        let n = c.get("/api/v1/nodes/n1").await?;
        n["spec"]["taints"].as_array().is_none_or(Vec::is_empty).then_some(())
    })
    .await;

    c.until("accounts", async |c| c.get("/api/v1/namespaces/default/serviceaccounts/default").await).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    c.post("/api/v1/namespaces/default/services", service).await;
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "web"}}});
    pod["spec"] = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "example.com/c:1"}]});
    c.post(PODS, pod).await;
    run_pods(&c).await;
    let slices =
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dweb";
    c.until("an endpoint", async |c| {
        let all = c.items(slices).await;
        (all.first()?["endpoints"][0]["conditions"]["ready"] == true).then_some(())
    })
    .await;
    c.until("legacy endpoints", async |c| {
        let e = c.get("/api/v1/namespaces/default/endpoints/web").await?;
        e["subsets"][0]["addresses"][0]["ip"].is_string().then_some(())
    })
    .await;
}
