//! How the cost of reads, watches and decisions grows: the CPU time of the server for one request, at three sizes each, so that a bend
//! is visible.
//!
//! `curves [ROWS]... [SIZE]...` (default: all rows, 1000 10000 50000 pods). ROWS names a part: `lists`, `single`, `listers`, `watchers`, or
//! what needs no pods: `bindings` and `collections` (a tenth of the size), `roles` (a fortieth), `resumed` (a hundredth). Parts that must
//! be named: `namespaces` (the size) and `endpoints` (a fiftieth) need a controller manager, `bound` (as many nodes as a fiftieth of the
//! size) a scheduler, and `role-starts` (a fiftieth) and `map-starts` (the size) a command that starts the server again (`starts`).
//!
//! Without `SUBJECT_URL` the API server runs in this process, whose CPU time then
//! includes the client's. `SUBJECT_URL`, `SUBJECT_TOKEN` and `SUBJECT_PIDS` name a running server, its administrator's token and its
//! processes (comma-separated, such as those of a kube-apiserver and its etcd); `PEER_URL`, `PEER_TOKEN` and `PEER_PIDS` a second one, for
//! the same rows. Both must be empty, and, where no part needs more, API servers alone (`kelson kube-apiserver`): where controllers run,
//! pods of nodes that do not exist are deleted.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on panics")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::block_on;
use crate::control_plane::{Cluster, PODS, pod};
use crate::sides::{ALL, JSON, PROTOBUF, Side, TABLE, print};
use crate::{bound, controlled, growth, starts};

const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

/// Measures the rows of all sizes.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let (rows, sizes): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| !arg.starts_with(|first: char| first.is_ascii_digit()));
    let is_known = |row: &&&str| OF_PODS.contains(row) || OF_OTHERS.contains(row) || OF_COMPONENTS.contains(row);
    if let Some(unknown) = rows.iter().find(|row| !is_known(row)) {
        anyhow::bail!("{unknown}: no such rows; there are {OF_PODS:?}, {OF_OTHERS:?} and {OF_COMPONENTS:?}");
    }
    let sizes: Vec<usize> = sizes.iter().map(|size| size.parse().context("a size")).collect::<Result<_, _>>()?;
    let sizes = if sizes.is_empty() { vec![1000, 10_000, 50_000] } else { sizes };
    block_on(2, measure(&rows, &sizes))
}

/// Parts whose size is a number of pods.
const OF_PODS: [&str; 4] = ["lists", "single", "listers", "watchers"];
/// Parts that need no pods.
const OF_OTHERS: [&str; 4] = ["bindings", "roles", "resumed", "collections"];
/// Parts that need other components or commands, and so must be named.
const OF_COMPONENTS: [&str; 5] = ["namespaces", "endpoints", "bound", "role-starts", "map-starts"];

async fn measure(rows: &[&str], sizes: &[usize]) -> anyhow::Result<()> {
    let subject = match Side::named("SUBJECT")? {
        Some(subject) => subject,
        None => Side {
            client: Cluster::start(false).await?.client,
            pids: vec![std::process::id()],
            config: None,
            restart: None,
        },
    };
    let sides: Vec<Side> = std::iter::once(subject).chain(Side::named("PEER")?).collect();
    println!("CPU time of one request in ms, of the subject{}", if sides.len() > 1 { " and of the peer" } else { "" });
    let is_chosen = |part: &str| rows.is_empty() || rows.contains(&part);
    let mut made = 0;
    for size in sizes.iter().filter(|_| OF_PODS.into_iter().any(is_chosen)) {
        for side in &sides {
            fill(side, made, *size).await?;
        }
        made = made.max(*size);
        if is_chosen("lists") {
            lists(&sides, *size).await?;
        }
        if is_chosen("single") {
            growth::single(&sides, *size).await?;
        }
        if is_chosen("listers") {
            growth::beside_listers(&sides, *size).await?;
        }
        if is_chosen("watchers") {
            watchers(&sides, (*size / 10).max(10)).await?;
        }
    }
    for size in sizes.iter().map(|size| size / 10) {
        if is_chosen("bindings") {
            bindings(&sides, size).await?;
        }
        if is_chosen("roles") {
            roles(&sides, size / 4).await?;
        }
        if is_chosen("resumed") {
            growth::resumed(&sides, size.div_ceil(10)).await?;
        }
        if is_chosen("collections") {
            growth::collection(&sides, size).await?;
        }
    }
    for size in sizes {
        of_components(rows, &sides, *size).await?;
    }
    std::process::exit(0)
}

async fn of_components(rows: &[&str], sides: &[Side], size: usize) -> anyhow::Result<()> {
    let is_chosen = |part: &str| rows.contains(&part);
    if is_chosen("namespaces") {
        controlled::namespace(sides, size).await?;
    }
    if is_chosen("endpoints") {
        controlled::endpoints(sides, size / 50).await?;
    }
    if is_chosen("bound") {
        bound::pods(sides, size / 50).await?;
    }
    if is_chosen("role-starts") {
        starts::with_roles(sides, size / 50).await?;
    }
    if is_chosen("map-starts") {
        starts::with_maps(sides, size).await?;
    }
    Ok(())
}

/// Makes pods up to a number, ten of them with one label in common, on a hundred nodes.
async fn fill(side: &Side, from: usize, to: usize) -> anyhow::Result<()> {
    let account = json!({"metadata": {"name": "default"}});
    let _there = side.send(Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account).await;
    for n in from..to {
        let mut pod = pod(&format!("pod-{n}"));
        pod["metadata"]["labels"]["few"] = (n < 10).to_string().into();
        pod["metadata"]["annotations"] = json!({"example.com/text": "a text of some length ".repeat(40)});
        pod["spec"]["nodeName"] = format!("node-{}", n % 100).into();
        side.send(Method::POST, PODS, &pod).await?;
    }
    Ok(())
}

async fn lists(sides: &[Side], size: usize) -> anyhow::Result<()> {
    for (what, path, accept) in [
        ("list whole, JSON", ALL, JSON),
        ("list whole, protobuf", ALL, PROTOBUF),
        ("list metadata, JSON", ALL, METADATA),
        ("list metadata, protobuf", ALL, METADATA_PROTOBUF),
        ("list as table", ALL, TABLE),
        ("list by spec.nodeName", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnone", JSON),
        ("list by metadata.name", "/api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dpod-7", JSON),
        ("list by a label of ten", "/api/v1/pods?labelSelector=few%3Dtrue", JSON),
    ] {
        let mut costs = Vec::new();
        for side in sides {
            costs.push(side.cost(|_| side.read(path, accept)).await?);
        }
        print(what, size, &costs);
    }
    let mut peaks = Vec::new();
    for side in sides {
        let before = side.peak_mb();
        futures::future::try_join_all((0..4).map(|_| side.read(ALL, PROTOBUF))).await?;
        peaks.push((side.peak_mb() - before) as f64);
    }
    print("four protobuf lists: more memory at peak, MB", size, &peaks);
    Ok(())
}

/// A write beside watchers, each of another node.
async fn watchers(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for side in sides {
        let seen = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for n in 0..count {
            let path = format!("{ALL}?watch=1&resourceVersion=0&fieldSelector=spec.nodeName%3Dwatched-{n}");
            let (client, seen) = (side.client.clone(), Arc::clone(&seen));
            tasks.push(tokio::spawn(async move {
                let response = client.raw_accepting(Method::GET, &path, "", JSON, Bytes::new()).await?;
                seen.fetch_add(1, Ordering::Relaxed);
                let mut body = response.into_body();
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                anyhow::Ok(())
            }));
        }
        while seen.load(Ordering::Relaxed) < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let one = format!("{PODS}/pod-0");
        let write = |n: usize| {
            let body = json!({"metadata": {"annotations": {"example.com/turn": n.to_string()}}});
            let one = &one;
            async move { side.send(Method::PATCH, one, &body).await }
        };
        costs.push(side.cost(write).await?);
        for task in tasks {
            task.abort();
        }
    }
    print("write beside watchers of other nodes", count, &costs);
    Ok(())
}

/// A decision about a user with many role bindings in one namespace, of which none allows the request.
async fn bindings(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for side in sides {
        for n in 0..count {
            let group = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
            let rule = json!({"apiGroups": ["example.com"], "resources": [format!("kind-{n}")], "verbs": ["get"]});
            let role = json!({"metadata": {"name": format!("r-{n}")}, "rules": [rule]});
            let _there = side.send(Method::POST, &format!("{group}/roles"), &role).await;
            let binding = json!({"metadata": {"name": format!("b-{n}")},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": format!("r-{n}")},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "busy"}]});
            let _there = side.send(Method::POST, &format!("{group}/rolebindings"), &binding).await;
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "busy",
            "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "secrets"}}});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        costs.push(side.cost(|_| side.send(Method::POST, path, &review)).await?);
    }
    print("decision about a user with role bindings", count, &costs);
    Ok(())
}

/// A write of one ClusterRole while others are gathered into `view`.
async fn roles(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for side in sides {
        for n in 0..count {
            let rule = json!({"apiGroups": ["example.com"], "resources": [format!("kind-{n}")], "verbs": ["get"]});
            let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
            let role = json!({"metadata": {"name": format!("gathered-{n}"), "labels": labels}, "rules": [rule]});
            let _there = side.send(Method::POST, ROLES, &role).await;
        }
        let write = |n: usize| async move {
            let rule = json!({"apiGroups": ["example.com"], "resources": [format!("turn-{n}")], "verbs": ["get"]});
            side.send(Method::PATCH, &format!("{ROLES}/gathered-0"), &json!({"rules": [rule]})).await
        };
        costs.push(side.cost(write).await?);
    }
    print("write of a ClusterRole beside gathered ones", count, &costs);
    Ok(())
}
