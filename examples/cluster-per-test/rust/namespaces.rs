//! Each test has its cluster, in the process of the test: an API server with the controllers that the test names. A prepared cluster is
//! copied in milliseconds. In a crate of yours this is a file in `tests/`, with `kelson-testing` as a dev-dependency.
use std::time::Duration;

use http::Method;
use kelson_testing::{Cluster, Options};

const NAMESPACES: &str = "/api/v1/namespaces";

#[tokio::test]
async fn a_deleted_namespace_disappears() {
    let options = Options { controllers: vec!["namespace".to_owned()], ..Options::default() };
    let cluster = Cluster::start(options).await.expect("a cluster");
    let api = cluster.client();
    let body = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}"#;
    api.call(Method::POST, NAMESPACES, "application/json", body.into()).await.expect("creates");
    let demo = format!("{NAMESPACES}/demo");
    api.call(Method::DELETE, &demo, "", "".into()).await.expect("deletes");
    let gone = async {
        while api.call(Method::GET, &demo, "", "".into()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the namespace is gone within a minute");
}

#[tokio::test]
async fn a_copy_has_what_was_prepared() {
    let prepared = Cluster::start(Options::default()).await.expect("a cluster");
    let body = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}"#;
    prepared.client().call(Method::POST, NAMESPACES, "application/json", body.into()).await.expect("creates");
    let copy = prepared.fork().await.expect("a copy");
    // Programs in other languages and processes reach it with this file.
    assert!(copy.kubeconfig().expect("a kubeconfig").contains("certificate-authority-data"));
    copy.client().call(Method::GET, &format!("{NAMESPACES}/demo"), "", "".into()).await.expect("is there");
}
