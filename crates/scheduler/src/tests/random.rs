//! State that is updated change by change equals state computed from scratch, after every change.
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{node, on, pod};
use crate::cluster::Cluster;
use crate::evaluation::memo::{Evaluations, Verdict};
use crate::plugins::table::Table;
use crate::view::{Node, Pod};

const CHANGES: usize = 400;

fn some_node(r: &mut StdRng) -> Arc<Node> {
    let name = format!("n{}", r.random_range(0..8));
    let zone = if r.random_bool(0.8) { json!({"zone": format!("z{}", r.random_range(0..3))}) } else { json!({}) };
    let taints = if r.random_bool(0.2) { json!([{"key": "k", "effect": "PreferNoSchedule"}]) } else { json!([]) };
    let images = if r.random_bool(0.5) { json!([{"names": ["i:latest"], "sizeBytes": 500 << 20}]) } else { json!([]) };
    let over = json!({"metadata": {"labels": zone}, "spec": {"taints": taints}, "status": {"images": images}});
    node(&name, over)
}

fn some_pod(r: &mut StdRng, name: &str) -> Arc<Pod> {
    let app = |r: &mut StdRng| json!({"matchLabels": {"app": format!("a{}", r.random_range(0..2))}});
    let key = |r: &mut StdRng| if r.random_bool(0.5) { "zone" } else { "kubernetes.io/hostname" };
    let spec: Value = match r.random_range(0..6) {
        0 => json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key(r),
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": app(r)}]}),
        1 => json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key(r),
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": app(r)}]}),
        2 => json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": key(r), "labelSelector": app(r)}]}}}),
        3 => json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": key(r), "labelSelector": app(r)}]}}}),
        4 => json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 7, "podAffinityTerm": {"topologyKey": key(r), "labelSelector": app(r)}}]}}}),
        _ => json!({"containers": [{"image": "i", "resources": {"requests": {"cpu": "700m"}}}]}),
    };
    pod(name, json!({"metadata": {"labels": {"app": format!("a{}", r.random_range(0..2))}}, "spec": spec}))
}

/// No evaluations yet, for the default plugins.
fn none() -> Evaluations {
    Evaluations::new(Arc::new(Table::default()))
}

/// All results and scores for a spec, by node name.
fn verdicts(evaluations: &mut Evaluations, cluster: &mut Cluster, pod: &Pod) -> Vec<(String, String)> {
    let e = evaluations.get(&pod.spec, cluster);
    let names: Vec<String> = cluster.nodes().iter().map(|n| n.node.name.to_string()).collect();
    let mut out = Vec::new();
    let mut order: Vec<u32> = (0..names.len() as u32).collect();
    order.sort_by_key(|i| names[*i as usize].clone());
    let (mut counted, mut part) = (vec![Vec::new(); order.len()], Vec::new());
    e.counted_scores(cluster, &order, &mut part, |weight, scores| {
        // A plugin whose scores are all zero and one without scores give the same result.
        if scores.iter().any(|s| *s != 0) {
            counted.iter_mut().zip(scores).for_each(|(all, score)| all.push((weight, *score)));
        }
    });
    for (k, i) in order.iter().enumerate() {
        let refused = match e.local(cluster, *i as usize) {
            Verdict::Refused(r) => Some(format!("{r:?}")),
            Verdict::Fits(_) => None,
        };
        let local = refused.unwrap_or_else(|| format!("{:?}", e.scores(*i as usize)));
        let refusal = e.counted_refusal(cluster, *i as usize);
        out.push((names[*i as usize].clone(), format!("{local} {refusal:?} {:?}", counted[k])));
    }
    out
}

fn rebuilt(nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> Cluster {
    let mut c = Cluster::default();
    nodes.iter().for_each(|n| c.put_node(Arc::clone(n)));
    for p in pods {
        c.put_pod(Arc::clone(p));
    }
    c
}

fn compare(seed: u64) {
    let mut r = StdRng::seed_from_u64(seed);
    let (mut cluster, mut kept) = (Cluster::default(), none());
    let (mut nodes, mut pods): (Vec<Arc<Node>>, Vec<Arc<Pod>>) = Default::default();
    let asking: Vec<_> = (0..6).map(|i| some_pod(&mut r, &format!("asking-{i}"))).collect();
    for change in 0..CHANGES {
        match r.random_range(0..10) {
            0 | 1 => {
                let n = some_node(&mut r);
                nodes.retain(|m| m.name != n.name);
                nodes.push(Arc::clone(&n));
                cluster.put_node(n);
            }
            2 if r.random_bool(0.3) && !nodes.is_empty() => {
                let n = nodes.swap_remove(r.random_range(0..nodes.len()));
                cluster.remove_node(&n.name);
            }
            3..=6 => {
                let name = format!("p{}", r.random_range(0..60));
                let p = on(&format!("n{}", r.random_range(0..8)), some_pod(&mut r, &name));
                pods.retain(|q| q.uid != p.uid);
                pods.push(Arc::clone(&p));
                if r.random_bool(0.5) {
                    cluster.put_pod(p);
                } else {
                    cluster.assume(p);
                }
            }
            _ if !pods.is_empty() => {
                let p = pods.swap_remove(r.random_range(0..pods.len()));
                assert!(cluster.remove_pod(&p.uid));
            }
            _ => {}
        }
        let mut fresh = rebuilt(&nodes, &pods);
        for p in &asking {
            let have = verdicts(&mut kept, &mut cluster, p);
            let want = verdicts(&mut none(), &mut fresh, p);
            assert_eq!(have, want, "seed {seed}, change {change}, {}", p.name);
        }
        if change % 100 == 99 {
            kept.clear();
        }
    }
}

#[test]
fn kept_equals_rebuilt() {
    for seed in 1..=6 {
        compare(seed);
    }
}
