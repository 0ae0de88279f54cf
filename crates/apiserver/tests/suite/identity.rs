//! The Leases of API server identities.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use crate::common::Api;
use kelson_meta::gates::FeatureGates;
use kelson_store::{Store, StoreOptions};
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// The upstream name for the server of a host named `vm`.
const NAME: &str = "apiserver-wlv32tlttr4jl3gtroqexyxapa";

/// Waits until the Lease meets a condition.
async fn until(api: &Api, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = |list: &Value| {
        let leases = list["items"].as_array().unwrap();
        leases.iter().find(|lease| lease["metadata"]["name"] == name).filter(|lease| wanted(lease)).cloned()
    };
    let list = api.until(LEASES, |list| found(list).is_some()).await;
    found(&list).unwrap()
}

async fn names(api: &Api) -> Vec<String> {
    let list = api.get(LEASES).await;
    let name = |lease: &Value| lease["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_renews_its_lease_and_deletes_it_at_the_end() {
    let store = Store::in_memory(StoreOptions::default());
    let path = format!("{LEASES}/{NAME}");
    let on = |store: &Store| Api::on(store.clone(), |config| config.identity_host = Some("vm".into()));
    let api = on(&store).await;
    let lease = until(&api, NAME, |_| true).await;
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": "vm"});
    assert_eq!(lease["metadata"]["labels"], labels);
    let address = json!({"kubernetes.io/peer-advertise-address": "127.0.0.1:6443"});
    assert_eq!(lease["metadata"]["annotations"], address);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert!(holder.starts_with(&format!("{NAME}_")), "{holder}");
    let renewed = |lease: &Value, before: &Value| lease["spec"]["renewTime"] != before["spec"]["renewTime"];
    let after = until(&api, NAME, |now| renewed(now, &lease)).await;
    assert_eq!(after["spec"]["holderIdentity"], *holder);
    // Changes by others are kept, and a deleted Lease is created again.
    api.typed("PATCH", &path, "application/merge-patch+json", json!({"metadata": {"labels": {"a": "b"}}})).await;
    let after = until(&api, NAME, |now| renewed(now, &after)).await;
    assert_eq!(after["metadata"]["labels"]["a"], "b");
    api.call("DELETE", &path, Value::Null).await;
    until(&api, NAME, |now| now["metadata"]["uid"] != after["metadata"]["uid"]).await;
    // A leftover of a process that died is replaced.
    let next = on(&store).await;
    let wanted = |now: &Value| now["spec"]["holderIdentity"] != *holder;
    until(&next, NAME, wanted).await;
    api.running.shutdown().await;
    next.running.shutdown().await;
    let left = Api::over(store).await;
    assert_eq!(names(&left).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_host_name_or_gate_has_no_lease() {
    let shut = |config: &mut kelson_apiserver::Config| {
        config.identity_host = Some("vm".into());
        config.feature_gates =
            FeatureGates::parse(["APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false"]).unwrap().into();
    };
    for api in [Api::start().await, Api::with(shut).await] {
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        assert_eq!(names(&api).await, Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn only_expired_leases_of_servers_are_deleted() {
    let store = Store::in_memory(StoreOptions::default());
    let before = Api::over(store.clone()).await;
    let lease = |name: &str, label: &str, renewed: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "labels": {"apiserver.kubernetes.io/identity": label}},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 3600, "renewTime": renewed}})
    };
    const LONG_AGO: &str = "2020-01-01T00:00:00.000000Z";
    before.create(LEASES, lease("gone", "kube-apiserver", LONG_AGO)).await;
    before.create(LEASES, lease("lives", "kube-apiserver", "2999-01-01T00:00:00.000000Z")).await;
    before.create(LEASES, lease("else", "another", LONG_AGO)).await;
    let api = Api::on(store, |config| config.identity_host = Some("vm".into())).await;
    until(&api, NAME, |_| true).await;
    api.until(LEASES, |list| !list["items"].as_array().unwrap().iter().any(|l| l["metadata"]["name"] == "gone")).await;
    assert_eq!(names(&api).await, [NAME, "else", "lives"]);
}
