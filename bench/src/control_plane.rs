//! A control plane in one process, for measuring writes and memory: the API server in memory, and the informers of
//! controllers and scheduler that read each change.
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use kelson_apiserver::{ApiServer, Config};
use kelson_auth::{UserInfo, user};
use kelson_client::Client;
use kelson_controllers::Controllers;
use kelson_meta::SystemClock;
use kelson_scheduler::Scheduler;
use kelson_store::{Store, StoreOptions};
use kelson_tasks::Tasks;
use serde_json::{Value, json};

/// The path of the pods in the default namespace.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// Returns a pod as a replica set creates it, for a scheduler that does not run.
pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "web", "image": "registry.example.com/team/web:1.2.3",
                "ports": [{"name": "http", "containerPort": 8080}],
                "env": [{"name": "MODE", "value": "production"}, {"name": "ZONE", "value": "a"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "web"}}],
        },
    })
}

/// A running control plane.
pub struct Cluster {
    /// A client of its administrator.
    pub client: Client,
}

impl Cluster {
    /// Starts it, with or without informers.
    pub async fn start(readers: bool) -> anyhow::Result<Self> {
        let config = Config::new(Store::in_memory(StoreOptions::default()));
        let server = ApiServer::start(config).await?;
        server.ready().await;
        let client = Client::new(server.in_process(UserInfo::new("admin", [user::MASTERS])), "writes");
        if readers {
            let tasks = Tasks::root("writes");
            let at = server.clone();
            let factory = move |name: &str| {
                let who = match name.strip_prefix("system:serviceaccount:").and_then(|a| a.split_once(':')) {
                    Some((namespace, account)) => UserInfo::service_account(namespace, account, ""),
                    None => UserInfo::new(name, Vec::<String>::new()),
                };
                Client::new(at.in_process(who), "controller-manager")
            };
            let (config, clock) = (kelson_controllers::Config::default(), Arc::new(SystemClock));
            std::mem::forget(Controllers::start(config, Box::new(factory), clock.clone(), tasks.child("controllers")));
            let who = UserInfo::new("system:kube-scheduler", Vec::<String>::new());
            let client = Client::new(server.in_process(who), "scheduler");
            std::mem::forget(Scheduler::start(kelson_scheduler::Config::default(), client, clock, None, &tasks));
        }
        std::mem::forget(server);
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let started = Self { client };
        // Without the controllers nothing else creates it; an existing one is an error that is ignored.
        let account = json!({"metadata": {"name": "default"}});
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let _ = started.send(Method::POST, accounts, "application/json", &account).await;
        Ok(started)
    }

    /// Sends a request with a JSON body.
    pub async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> anyhow::Result<()> {
        self.client.call(method, path, kind, Bytes::from(body.to_string())).await?;
        Ok(())
    }
}
