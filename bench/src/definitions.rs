//! The cost of custom resource definitions: creates a number of them (by default 500) in a server in memory, starts
//! another server with the same store, and prints time and resident memory per definition. `definitions [COUNT]`
use std::sync::Arc;
use std::time::Instant;

use kelson_apiserver::{ApiServer, Config, Running};
use kelson_auth::{UserInfo, user};
use kelson_store::{Store, StoreOptions};
use kelson_transport::Request;
use serde_json::{Map, Value, json};

use crate::block_on;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The number of fields in each schema; with their descriptions, about eight kilobytes.
const FIELDS: usize = 60;

/// Returns resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

fn definition(i: usize) -> Value {
    let field = |n: usize| {
        let text = format!("Field {n} of kind {i}: what it means, in a sentence of a usual length, with an example.");
        (format!("field{n}"), json!({"type": "string", "description": text, "maxLength": 63}))
    };
    let fields: Map<String, Value> = (0..FIELDS).map(field).collect();
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": fields}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("kind{i}s.example.com")}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": format!("kind{i}s"), "kind": format!("Kind{i}")}, "versions": [version]}})
}

async fn create(running: &Running, body: Value) -> anyhow::Result<()> {
    let admin = UserInfo::new("admin", [user::MASTERS]);
    let request = http::Request::builder().method("POST").uri(DEFINITIONS).header("content-type", "application/json");
    let request: Request = request.body(body.to_string().into())?;
    let answer = running.in_process(admin).send(request).await?;
    anyhow::ensure!(answer.status() == 201, "not created: {}", answer.status());
    Ok(())
}

/// Creates the definitions and prints their cost.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let count: usize = args.first().map_or(Ok(500), |n| n.parse())?;
    block_on(2, measure(count))
}

async fn measure(count: usize) -> anyhow::Result<()> {
    let store = Store::in_memory(StoreOptions::default());
    let running = Arc::new(ApiServer::start(Config::new(store.clone())).await?);
    create(&running, definition(0)).await?;
    let (before, begun) = (resident_kib(), Instant::now());
    for i in 1..=count {
        create(&running, definition(i)).await?;
    }
    let each = (resident_kib().saturating_sub(before)) as f64 / count as f64;
    println!("{count} definitions of {} bytes made in {:?}", definition(1).to_string().len(), begun.elapsed());
    println!("resident memory: {each:.1} KiB each");
    let begun = Instant::now();
    let again = ApiServer::start(Config::new(store)).await?;
    println!("another server over the same store: ready after {:?}", begun.elapsed());
    again.shutdown().await;
    Ok(())
}
