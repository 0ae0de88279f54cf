//! Two servers on one etcd, one of which serves an API that the other does not, as during an upgrade: both answer alike.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::servers::{Cluster, Datastore};
use kelson_blackbox::{Needs::OwnNode, Outcome, Subject, Test, eventually};
use serde_json::{Value, json};

/// The time limit of a start, and of learning what the other server serves.
const PATIENCE: Duration = Duration::from_secs(90);
/// An alpha API, which is not served by default.
const VERSIONS: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
/// The server without the API, and the one with it.
const OLD: usize = 0;
const NEW: usize = 1;
/// The number of both.
const SERVERS: usize = 2;

pub fn tests() -> Vec<Test> {
    vec![Test { name: "peers::servers_of_different_apis_answer_alike", needs: OwnNode, run: alike }]
}

fn alike(_: &Subject) -> Outcome {
    // Its own thread, since it moves to the network of the servers.
    std::thread::spawn(two_servers).join().map_err(|_| anyhow::anyhow!("the test panicked"))?
}

fn object(name: &str) -> Value {
    json!({"apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion", "metadata": {"name": name}, "spec": {}})
}

/// Waits until a server answers a list of the API with this code.
fn until(cluster: &Cluster, server: usize, wanted: u16) -> Outcome {
    let mut client = cluster.client(server);
    eventually(&format!("server {server} answers {wanted}"), PATIENCE, || {
        let (code, answer) = client.call("GET", VERSIONS, &Value::Null)?;
        ensure!(code == wanted, "{code} {answer}");
        Ok(())
    })
    .with_context(|| cluster.logs())
}

fn two_servers() -> Outcome {
    let mut cluster = Cluster::start(Datastore::External, SERVERS)?;
    // Where a server of upstream on the same etcd looks for the addresses of others.
    eventually("both servers announce their address", PATIENCE, || {
        let keys = cluster.keys("/registry/peerserverleases/apiserver-")?;
        ensure!(keys.len() == SERVERS, "{keys:?}");
        Ok(())
    })?;
    until(&cluster, OLD, 404)?;
    cluster.stations[NEW].server.kill();
    cluster.stations[NEW].server.add_args(&["--runtime-config=internal.apiserver.k8s.io/v1alpha1=true"]);
    cluster.stations[NEW].server.start()?;
    until(&cluster, NEW, 200)?;
    until(&cluster, OLD, 200)?;

    let (mut old, mut new) = (cluster.client(OLD), cluster.client(NEW));
    let (code, made) = old.call("POST", VERSIONS, &object("a.x"))?;
    ensure!(code == 201, "{code} {made}");
    let (code, read) = new.call("GET", &format!("{VERSIONS}/a.x"), &Value::Null)?;
    ensure!(code == 200 && read["metadata"] == made["metadata"], "{code} {read}");
    let from = made["metadata"]["resourceVersion"].as_str().context("a resourceVersion")?;
    let mut watch = old.watch(&format!("{VERSIONS}?watch=true&resourceVersion={from}"), PATIENCE)?;
    let (code, second) = new.call("POST", VERSIONS, &object("b.x"))?;
    ensure!(code == 201, "{code} {second}");
    let event = watch.next()?.context("no event")?;
    ensure!(event["type"] == "ADDED" && event["object"]["metadata"] == second["metadata"], "{event}");
    drop(watch);

    // A server that crashed has not left: its API is not unknown.
    cluster.stations[NEW].server.kill();
    until(&cluster, OLD, 503)?;
    cluster.stations[NEW].server.start()?;
    until(&cluster, OLD, 200)
}
