//! The workloads of users: one constructor for each kind, so that deleted ones can be recreated.
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

pub const DEPLOYMENTS: &str = "apps/v1/deployments";
pub const STATEFUL_SETS: &str = "apps/v1/statefulsets";
pub const DAEMON_SETS: &str = "apps/v1/daemonsets";
pub const JOBS: &str = "batch/v1/jobs";
pub const ALL: [&str; 4] = [DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS, JOBS];

fn template(name: &str, container: Value) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 5, "containers": [container]}})
}

/// Returns an object of one of the kinds, as a user might write it.
pub fn any(resource: &str, namespace: &str, name: &str, rng: &mut StdRng) -> Value {
    let meta = json!({"name": name, "namespace": namespace});
    let server = json!({"name": "c", "image": "example.com/c:1", "ports": [{"name": "http", "containerPort": 8080}],
        "resources": {"requests": {"cpu": "10m"}}});
    let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, server)});
    match resource {
        DEPLOYMENTS => {
            spec["replicas"] = json!(rng.random_range(1..5));
            spec["strategy"] = json!({"type": if rng.random_bool(0.3) { "Recreate" } else { "RollingUpdate" }});
        }
        STATEFUL_SETS => {
            spec["replicas"] = json!(rng.random_range(1..4));
            spec["serviceName"] = json!(name);
            spec["podManagementPolicy"] = json!(if rng.random_bool(0.3) { "Parallel" } else { "OrderedReady" });
        }
        DAEMON_SETS => {}
        JOBS => {
            let command = json!(["exit-after", rng.random_range(1..40).to_string(), "0"]);
            spec = json!({"completions": rng.random_range(1..6), "parallelism": rng.random_range(1..4),
                "backoffLimit": 100, "template": template(name, json!({"name": "c", "image": "example.com/c:1", "command": command}))});
            spec["template"]["spec"]["restartPolicy"] = json!(if rng.random_bool(0.3) { "OnFailure" } else { "Never" });
            spec["completionMode"] = json!(if rng.random_bool(0.3) { "Indexed" } else { "NonIndexed" });
        }
        other => panic!("{other}: not a workload"),
    }
    json!({"metadata": meta, "spec": spec})
}

/// Returns a service for the pods of a workload.
pub fn service(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": {
        "selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]}})
}
