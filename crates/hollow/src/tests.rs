//! Hollow nodes on the API server in memory, on a paused clock.
use std::sync::Arc;
use std::time::Duration;

use kelson_simulation::Api;
use kelson_tasks::Tasks;
use serde_json::{Value, json};

use crate::config::address;
use crate::{Config, Running, start};

async fn begin(nodes: usize) -> (Api, Running) {
    let api = Api::start().await;
    api.namespace("n").await;
    let config = Config { nodes, run_for: Duration::from_secs(30), ..Config::default() };
    let running = start(config, &api.client(), Arc::new(api.clock), &Tasks::root("hollow"));
    api.settle().await;
    assert_eq!(running.registered(), nodes);
    (api, running)
}

async fn pod(api: &Api, name: &str, node: &str, restart: &str) {
    let spec = json!({"nodeName": node, "restartPolicy": restart, "containers": [{"name": "c", "image": "i"}],
        "initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i", "restartPolicy": "Always"}]});
    api.create("v1/pods", json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})).await;
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|c| c["type"] == kind));
    found.and_then(|c| c["status"].as_str()).unwrap_or("absent")
}

#[tokio::test(start_paused = true)]
async fn nodes_live() {
    let (api, running) = begin(20).await;
    let node = api.get("v1/nodes", "", "hollow-7").await.unwrap();
    assert_eq!((condition(&node, "Ready"), &node["status"]["allocatable"]["pods"]), ("True", &json!("110")));
    assert_eq!(node["status"]["addresses"][0]["address"], json!(address(7)));
    let renewed = async || {
        let lease = api.get("coordination.k8s.io/v1/leases", "kube-node-lease", "hollow-7").await.unwrap();
        lease["spec"]["renewTime"].as_str().unwrap().to_owned()
    };
    let before = renewed().await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let after = renewed().await;
    assert!(after > before);
    let heard = |node: &Value| node["status"]["conditions"][3]["lastHeartbeatTime"].as_str().unwrap().to_owned();
    tokio::time::sleep(Duration::from_secs(320)).await;
    let later = api.get("v1/nodes", "", "hollow-7").await.unwrap();
    assert!(heard(&later) > heard(&node));
    // A deleted node is created again, with a new lease.
    api.remove("v1/nodes", "", "hollow-3").await;
    tokio::time::sleep(Duration::from_secs(330)).await;
    assert_eq!(condition(&api.get("v1/nodes", "", "hollow-3").await.unwrap(), "Ready"), "True");
    assert_eq!(running.registered(), 20);
    running.shutdown().await;
    let last = renewed().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(renewed().await, last, "switched off");
}

#[tokio::test(start_paused = true)]
async fn pods_run_end_and_go() {
    let (api, _running) = begin(2).await;
    pod(&api, "server", "hollow-1", "Always").await;
    pod(&api, "task", "hollow-0", "Never").await;
    pod(&api, "foreign", "other", "Always").await;
    api.settle().await;
    let get = async |name: &str| api.get("v1/pods", "n", name).await;
    let (server, task) = (get("server").await.unwrap(), get("task").await.unwrap());
    assert_eq!((&server["status"]["phase"], condition(&server, "Ready")), (&json!("Running"), "True"));
    assert_eq!(server["status"]["containerStatuses"][0]["ready"], true);
    let init = &server["status"]["initContainerStatuses"];
    assert!(init[0]["state"]["terminated"]["exitCode"] == 0 && init[1]["state"]["running"].is_object(), "{init}");
    assert_ne!(server["status"]["podIP"], task["status"]["podIP"]);
    assert_ne!(get("foreign").await.unwrap()["status"]["phase"], "Running");
    tokio::time::sleep(Duration::from_secs(31)).await;
    let task = get("task").await.unwrap();
    assert_eq!((&task["status"]["phase"], condition(&task, "Ready")), (&json!("Succeeded"), "False"));
    assert_eq!(task["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
    api.delete("v1/pods", "n", "server", json!({})).await;
    api.settle().await;
    assert!(get("server").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_resize_is_answered() {
    let (api, _running) = begin(1).await;
    let resources = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": "4"}});
    let spec = json!({"nodeName": "hollow-0", "restartPolicy": "Always", "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i", "resources": resources("1")}]});
    api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).await;
    let has = async || {
        api.settle().await;
        let pod = api.get("v1/pods", "n", "p").await.unwrap();
        let status = &pod["status"]["containerStatuses"][0];
        (status["resources"].clone(), status["allocatedResources"].clone())
    };
    assert_eq!(has().await, (resources("1"), json!({"cpu": "1"})));
    let resized = json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": resources("2")}]}});
    api.patch("v1/pods", "n", "p", "resize", resized).await;
    assert_eq!(has().await, (resources("2"), json!({"cpu": "2"})));
    let writes = api.writes().len();
    api.settle().await;
    assert_eq!(api.writes().len(), writes, "said once");
}
