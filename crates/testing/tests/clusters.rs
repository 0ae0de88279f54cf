//! Clusters in typical uses: a single one, forks, several at the same time, with controllers and nodes, and stopped.
#![allow(missing_docs, clippy::unwrap_used)]

/// The example that users of the crate copy.
#[path = "../../../examples/cluster-per-test/rust/namespaces.rs"]
mod example;

use std::time::Duration;

use http::Method;
use kelson_client::Client;
use kelson_testing::{Cluster, Error, Nodes, Options};
use serde_json::{Value, json};

/// The maximum wait for something that happens by itself, also on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn call(client: &Client, method: Method, path: &str, body: &Value) -> Value {
    let bytes = if body.is_null() { String::new() } else { body.to_string() };
    let answer = client.call(method, path, "application/json", bytes.into()).await;
    serde_json::from_slice(&answer.unwrap_or_else(|e| panic!("{path}: {e}"))).unwrap()
}

async fn get(client: &Client, path: &str) -> Option<Value> {
    match client.call(Method::GET, path, "", "".into()).await {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap()),
        Err(e) if e.is_not_found() => None,
        Err(e) => panic!("{path}: {e}"),
    }
}

async fn post(client: &Client, path: &str, body: Value) -> Value {
    call(client, Method::POST, path, &body).await
}

async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

fn definition(n: usize) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("ships{n}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": format!("ships{n}"), "singular": format!("ship{n}"), "kind": format!("Ship{n}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {"masts": {"type": "integer", "default": 3}}}}}}}]}})
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SHIPS: &str = "/apis/example.com/v1/namespaces/default/ships0";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_has_what_was_there_and_goes_its_own_way() {
    let original = Cluster::start(Options::default()).await.unwrap();
    let client = original.client();
    assert!(get(&client, "/api/v1/namespaces/default").await.is_some(), "the namespace default is there");
    for n in 0..3 {
        post(&client, DEFINITIONS, definition(n)).await;
    }
    let ship = json!({"apiVersion": "example.com/v1", "kind": "Ship0", "metadata": {"name": "mary"}, "spec": {}});
    post(&client, SHIPS, ship.clone()).await;

    let fork = original.fork().await.unwrap();
    let theirs = fork.client();
    let kept = get(&theirs, &format!("{SHIPS}/mary")).await.unwrap();
    assert_eq!(kept["spec"]["masts"], 3, "the definition's defaults hold: {kept}");
    let another =
        json!({"apiVersion": "example.com/v1", "kind": "Ship0", "metadata": {"name": "anne"}, "spec": {"masts": "x"}});
    let refused = theirs.call(Method::POST, SHIPS, "application/json", another.to_string().into()).await;
    assert!(refused.is_err(), "the definition's schema holds");
    call(&theirs, Method::DELETE, &format!("{DEFINITIONS}/ships1.example.com"), &Value::Null).await;
    until("the kind goes with its definition", async || {
        get(&theirs, "/apis/example.com/v1/namespaces/default/ships1").await.is_none().then_some(())
    })
    .await;
    assert!(get(&client, "/apis/example.com/v1/namespaces/default/ships1").await.is_some(), "the original's stays");
    post(&theirs, MAPS, json!({"metadata": {"name": "mine"}})).await;
    assert!(get(&client, &format!("{MAPS}/mine")).await.is_none());
    assert_ne!((original.url(), original.ca_pem()), (fork.url(), fork.ca_pem()));
    assert!(original.kubeconfig().unwrap().contains(&original.url()));

    // The fork continues without its original, and the other way round.
    original.shutdown().await;
    let again = fork.fork().await.unwrap();
    assert!(get(&again.client(), &format!("{MAPS}/mine")).await.is_some());
    fork.shutdown().await;
    post(&again.client(), DEFINITIONS, definition(7)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_decide_for_everybody_but_the_administrator() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    let jane = cluster.client_as("jane");
    let refused = jane.call(Method::GET, "/api/v1/pods", "", "".into()).await.unwrap_err();
    assert!(refused.to_string().contains("jane"), "{refused}");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let binding = json!({"metadata": {"name": "jane"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]});
    post(&cluster.client(), &format!("{rbac}/clusterrolebindings"), binding).await;
    assert!(get(&jane, "/api/v1/pods").await.is_some());
    // Permissions granted before the fork exist in it.
    let fork = cluster.fork().await.unwrap();
    assert!(get(&fork.client_as("jane"), "/api/v1/pods").await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_controllers_that_are_named_run() {
    let bare = Cluster::start(Options::default()).await.unwrap();
    let controllers = ["namespace", "serviceaccount"].map(str::to_owned).to_vec();
    let busy = bare.fork_with(Options { controllers, ..Options::default() }).await.unwrap();
    for cluster in [&bare, &busy] {
        post(&cluster.client(), "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    }
    let account = "/api/v1/namespaces/n/serviceaccounts/default";
    until("the default account is made", async || get(&busy.client(), account).await).await;
    assert!(get(&bare.client(), account).await.is_none());
    call(&busy.client(), Method::DELETE, "/api/v1/namespaces/n", &Value::Null).await;
    until("the namespace goes", async || get(&busy.client(), "/api/v1/namespaces/n").await.is_none().then_some(()))
        .await;
    busy.shutdown().await;
    let nonsense = Options { controllers: vec!["nonsense".into()], ..Options::default() };
    assert!(matches!(Cluster::start(nonsense).await, Err(Error::UnknownController(name)) if name == "nonsense"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_seem_to_run_on_hollow_nodes() {
    let controllers = ["deployment", "replicaset"].map(str::to_owned).to_vec();
    let nodes = Nodes { count: 2, ..Nodes::default() };
    let cluster = Cluster::start(Options { controllers, scheduler: true, nodes, ..Options::default() }).await.unwrap();
    let client = cluster.client();
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    post(&client, "/apis/apps/v1/namespaces/default/deployments", deployment).await;
    until("both replicas are available", async || {
        let web = get(&client, "/apis/apps/v1/namespaces/default/deployments/web").await?;
        (web["status"]["availableReplicas"] == 2).then_some(())
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_keeps_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { directory: Some(dir.path().join("store")), ..Options::default() };
    let first = Cluster::start(options.clone()).await.unwrap();
    post(&first.client(), MAPS, json!({"metadata": {"name": "kept"}})).await;
    first.shutdown().await;
    let second = Cluster::start(options).await.unwrap();
    assert!(get(&second.client(), &format!("{MAPS}/kept")).await.is_some());
    let fork = second.fork().await.unwrap();
    post(&fork.client(), MAPS, json!({"metadata": {"name": "not-kept"}})).await;
    assert!(get(&second.client(), &format!("{MAPS}/not-kept")).await.is_none());
}
