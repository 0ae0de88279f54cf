//! Time and memory of test clusters: from nothing to the first answer, a fork of one with a hundred definitions, and
//! many at the same time. `clusters [CLUSTERS]`
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on panics")]

use std::time::Instant;

use http::Method;
use kelson_client::Client;
use kelson_testing::{Cluster, Options};
use serde_json::json;

use crate::block_on;

/// The number of definitions in the forked cluster.
const DEFINITIONS: usize = 100;
const FORKS: usize = 50;

/// Returns resident memory in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

async fn answers(client: &Client) {
    client.call(Method::GET, "/api/v1/namespaces/default", "", "".into()).await.unwrap();
}

async fn define(client: &Client, n: usize) {
    let property =
        |i: usize| (format!("field{i}"), json!({"type": "object", "properties": {"value": {"type": "string"}}}));
    let properties: serde_json::Map<_, _> = (0..40).map(property).collect();
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("kinds{n}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": format!("kinds{n}"), "singular": format!("kind{n}"), "kind": format!("Kind{n}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": properties}}}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    client.call(Method::POST, path, "application/json", definition.to_string().into()).await.unwrap();
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Prints times and memory.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let many = args.first().map_or(Ok(1000), |n| n.parse())?;
    block_on(2, measure(many));
    Ok(())
}

async fn measure(many: usize) {
    let ms = |begun: Instant| begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let first = Cluster::start(Options::default()).await.unwrap();
    answers(&first.client()).await;
    println!("first cluster of the process, to its first answer: {:.1} ms", ms(begun));

    let mut times = Vec::new();
    for _ in 0..FORKS {
        let begun = Instant::now();
        let cluster = Cluster::start(Options::default()).await.unwrap();
        answers(&cluster.client()).await;
        times.push(ms(begun));
        cluster.shutdown().await;
    }
    println!("each further one: {:.2} ms", median(times));

    for n in 0..DEFINITIONS {
        define(&first.client(), n).await;
    }
    let (mut times, mut forks, before) = (Vec::new(), Vec::new(), resident());
    for _ in 0..FORKS {
        let begun = Instant::now();
        let fork = first.fork().await.unwrap();
        answers(&fork.client()).await;
        times.push(ms(begun));
        forks.push(fork);
    }
    let each = (resident().saturating_sub(before)) / FORKS;
    println!("a fork of one with {DEFINITIONS} definitions: {:.2} ms, {:.2} MB", median(times), each as f64 / 1e6);
    let begun = Instant::now();
    for fork in forks {
        fork.shutdown().await;
    }
    println!("ending a fork: {:.2} ms", ms(begun) / FORKS as f64);

    let (before, begun, mut alive) = (resident(), Instant::now(), Vec::with_capacity(many));
    for _ in 0..many {
        alive.push(Cluster::start(Options::default()).await.unwrap());
    }
    let took = begun.elapsed().as_secs_f64();
    for cluster in &alive {
        answers(&cluster.client()).await;
    }
    let each = (resident().saturating_sub(before)) / many.max(1);
    println!(
        "{many} clusters alive: {took:.1} s, {:.2} MB each, {:.0} MB in all",
        each as f64 / 1e6,
        resident() as f64 / 1e6
    );
}
