//! The annotation of nodes with the time for which kubelets may cache secrets and config maps. It grows with the
//! cluster to limit the load of large clusters. Upstream `pkg/controller/ttl`.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kelson_client::{Change, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::ObjectKey;
use serde_json::json;

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::views::NodeView;

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The minimum and the maximum number of nodes, and the seconds. The ranges overlap, so that a cluster whose size
/// varies around a limit does not update all nodes each time.
const STEPS: &[(usize, usize, u32)] =
    &[(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

/// Returns the step for this number of nodes, given the previous step.
fn step(mut before: usize, nodes: usize) -> usize {
    while before + 1 < STEPS.len() && nodes > STEPS[before].1 {
        before += 1;
    }
    while before > 0 && nodes < STEPS[before].0 {
        before -= 1;
    }
    before
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let nodes = ctx.informers.nodes.reader();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let (count, at) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let (q, all, now_at) = (queue.clone(), nodes.clone(), Arc::clone(&at));
    nodes.on_change(move |change| {
        let count = match change {
            Change::Added(_) => count.fetch_add(1, Ordering::Relaxed) + 1,
            Change::Deleted(_) => count.fetch_sub(1, Ordering::Relaxed) - 1,
            Change::Updated { .. } => count.load(Ordering::Relaxed),
        };
        let before = now_at.load(Ordering::Relaxed);
        let after = step(before, count);
        if after != before {
            now_at.store(after, Ordering::Relaxed);
            all.list().iter().for_each(|n| q.add(ObjectKey::new("", &n.metadata.name)));
        }
        if !matches!(change, Change::Deleted(_)) {
            q.add(ObjectKey::new("", &change.object().metadata.name));
        }
    });
    ctx.run_queue_of(nodes.clone(), &queue, WORKERS, move |key| {
        let (client, nodes, at) = (client.clone(), nodes.clone(), Arc::clone(&at));
        async move {
            let Some(node) = nodes.get(&key) else { return Ok(()) };
            let seconds = STEPS[at.load(Ordering::Relaxed)].2;
            let has = node.metadata.annotations.get(ANNOTATION).and_then(|t| t.parse::<u32>().ok());
            if has == Some(seconds) {
                return Ok(());
            }
            let patch = json!({"metadata": {"annotations": {ANNOTATION: seconds.to_string()}}});
            let o = WriteOptions::default();
            match client.patch::<NodeView>("", &key.name, "", PatchKind::Merge, &patch, &o).await {
                Err(e) if !e.is_not_found() => Err(SyncError::from(e)),
                _ => Ok(()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    #[test]
    fn steps_overlap() {
        let mut at = 0;
        for (nodes, want) in
            [(1, 0), (100, 0), (101, 15), (100, 15), (90, 15), (89, 0), (3000, 300), (1800, 300), (1799, 60), (0, 0)]
        {
            at = step(at, nodes);
            assert_eq!(STEPS[at].2, want, "{nodes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_say_how_long() {
        let api = Api::start().await;
        let _running = run(&api, &["ttl-controller"], Config::default()).await;
        api.create("v1/nodes", json!({"metadata": {"name": "n1", "annotations": {ANNOTATION: "x"}}})).await;
        let shown = async |name: &str| {
            api.settle().await;
            let node = api.get("v1/nodes", "", name).await.unwrap();
            node["metadata"]["annotations"][ANNOTATION].as_str().unwrap_or("none").to_owned()
        };
        assert_eq!(shown("n1").await, "0", "what is no number is none");
        for n in 2..=101 {
            api.create("v1/nodes", json!({"metadata": {"name": format!("n{n}")}})).await;
        }
        assert_eq!((shown("n1").await, shown("n101").await), ("15".to_owned(), "15".to_owned()));
    }
}
