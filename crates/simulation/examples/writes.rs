//! What writes cost, readers in the process included: the API server in memory, pods that are created, patched and
//! applied one after the other, and the controllers' and the scheduler's informers that read each change.
//!
//! `writes OPERATION COUNT [--no-readers]`, OPERATION one of `create`, `merge`, `status`, `apply`. The instructions of one
//! operation are the difference of two runs under a counter:
//! `valgrind --tool=callgrind target/release/examples/writes create 300`, and the same with 100.
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

const PODS: &str = "/api/v1/namespaces/default/pods";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

type Failure = Box<dyn std::error::Error>;

/// A pod as a replica set makes it, for a scheduler that does not run.
fn pod(name: &str) -> Value {
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

/// A pod's status as a kubelet writes it; `n` makes each write differ.
fn status(n: usize) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let kinds = ["Initialized", "Ready", "ContainersReady", "PodScheduled"];
    json!({"status": {
        "phase": "Running", "podIP": "10.42.0.7", "podIPs": [{"ip": "10.42.0.7"}],
        "conditions": kinds.map(condition), "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{
            "name": "web", "image": "registry.example.com/team/web:1.2.3", "imageID": "sha256:1", "ready": true,
            "restartCount": n, "started": true, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    }})
}

struct Cluster {
    client: Client,
}

impl Cluster {
    async fn start(readers: bool) -> Result<Self, Failure> {
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
        Ok(Self { client })
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> Result<(), Failure> {
        self.client.call(method, path, kind, Bytes::from(body.to_string())).await?;
        Ok(())
    }

    async fn run(&self, operation: &str, count: usize) -> Result<(), Failure> {
        let one = format!("{PODS}/one");
        // Without the controllers nobody makes it.
        let account = json!({"metadata": {"name": "default"}});
        // Refused where it is there already.
        let _ =
            self.send(Method::POST, "/api/v1/namespaces/default/serviceaccounts", "application/json", &account).await;
        if operation != "create" {
            self.send(Method::POST, PODS, "application/json", &pod("one")).await?;
        }
        for n in 0..count {
            match operation {
                "create" => self.send(Method::POST, PODS, "application/json", &pod(&format!("pod-{n}"))).await?,
                "merge" => {
                    let patch = json!({"metadata": {"annotations": {"example.com/turn": n.to_string()}}});
                    self.send(Method::PATCH, &one, MERGE, &patch).await?;
                }
                "status" => self.send(Method::PATCH, &format!("{one}/status"), STRATEGIC, &status(n)).await?,
                "apply" => {
                    let mut wanted = pod("applied");
                    wanted["metadata"]["labels"]["turn"] = n.to_string().into();
                    let path = format!("{PODS}/applied?fieldManager=writes");
                    self.send(Method::PATCH, &path, APPLY, &wanted).await?;
                }
                other => return Err(format!("no operation {other:?}").into()),
            }
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [operation, count, more @ ..] = args.as_slice() else {
        return Err("writes OPERATION COUNT [--no-readers]".into());
    };
    let cluster = Cluster::start(!more.iter().any(|a| a == "--no-readers")).await?;
    let begun = std::time::Instant::now();
    let count = count.parse()?;
    cluster.run(operation, count).await?;
    println!("{operation}: {count} in {:?}", begun.elapsed());
    // What the readers have not read yet, they read now.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    std::process::exit(0)
}
