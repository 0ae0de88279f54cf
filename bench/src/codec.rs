//! The speed of each codec for a pod.
use anyhow::Context as _;
use kelson_codec::{canonical_json, json, proto};
use kelson_schema::Schema;
use std::{hint::black_box, time::Instant};

const ROUNDS: u32 = 20_000;

fn measure(what: &str, bytes: usize, mut work: impl FnMut()) {
    let start = Instant::now();
    (0..ROUNDS).for_each(|_| work());
    let each = start.elapsed() / ROUNDS;
    let speed = bytes as f64 / each.as_secs_f64() / 1e6;
    println!("{what:<28} {each:>10.1?} {speed:>8.0} MB/s");
}

/// Prints time and rate of each codec.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    let pod = Schema::builtin().by_gvk("", "v1", "Pod").context("no type Pod")?;
    let text = serde_json::json!({"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-7d4b9c6f5-x2x8z","namespace":"default",
        "uid":"6f1c2a34-7f3e-4b55-9a56-0f2a5d0c9b11","resourceVersion":"12345","creationTimestamp":"2026-01-01T00:00:00Z",
        "labels":{"app":"web","pod-template-hash":"7d4b9c6f5"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet",
        "name":"web-7d4b9c6f5","uid":"0a1b2c3d-7f3e-4b55-9a56-0f2a5d0c9b11","controller":true,"blockOwnerDeletion":true}]},
        "spec":{"nodeName":"n1","serviceAccountName":"default","containers":[{"name":"web","image":"registry.example/web:1.2.3",
        "ports":[{"containerPort":8080,"protocol":"TCP"}],"env":[{"name":"A","value":"b"}],"imagePullPolicy":"IfNotPresent",
        "resources":{"limits":{"cpu":"500m","memory":"128Mi"},"requests":{"cpu":"100m","memory":"64Mi"}},
        "volumeMounts":[{"name":"token","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","readOnly":true}]}],
        "volumes":[{"name":"token","projected":{"defaultMode":420,"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}}]}}],
        "tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}]},
        "status":{"phase":"Running","podIP":"10.42.0.7","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:03Z"}]}})
    .to_string();
    let text = text.as_bytes();
    let value = json::decode(Some(pod), text, true)?.value;
    let message = proto::encode(pod, &value)?;
    measure("JSON, typed and strict", text.len(), || drop(black_box(json::decode(Some(pod), text, true))));
    measure("JSON, serde_json::Value", text.len(), || {
        drop(black_box(serde_json::from_slice::<serde_json::Value>(text)))
    });
    measure("tree to JSON", text.len(), || drop(black_box(canonical_json(&value))));
    measure("tree to JSON, declared", text.len(), || {
        let mut out = Vec::with_capacity(text.len());
        json::write_declared(pod, &value, &mut out);
        drop(black_box(out));
    });
    measure("protobuf to tree", message.len(), || drop(black_box(proto::decode(&message))));
    measure("tree to protobuf", message.len(), || drop(black_box(proto::encode(pod, &value))));
    Ok(())
}
