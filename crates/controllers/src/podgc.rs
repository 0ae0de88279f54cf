//! The pod garbage collector. It deletes terminated pods above a threshold, pods of deleted nodes, pods that were
//! deleted before they were scheduled, and pods of nodes that are marked as out of service. Upstream
//! `pkg/controller/podgc`.
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Change, Client, DeleteOptions, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::{Clock, ObjectKey};
use serde_json::json;

use crate::nodelifecycle::taints::OUT_OF_SERVICE;
use crate::shared::context::{Context, SyncError, WORKERS, get_value};
use crate::shared::informers::SharedInformer;
use crate::shared::pods::disruption_target;
use crate::views::IndexKey;
use crate::views::condition;
use crate::views::{NodeView, PodView};

/// The delay before a missing node counts as deleted, since it may not be in the cache yet.
const QUARANTINE: Duration = Duration::from_secs(40);
/// The delay between the termination of a pod and the count of terminated pods.
const COUNT_DELAY: Duration = Duration::from_secs(20);
/// The maximum number of terminated pods that are deleted after one count.
const REMOVE_MAX: usize = 500;

struct PodGarbageCollector {
    client: Client,
    clock: Arc<dyn Clock>,
    nodes: SharedInformer<NodeView>,
    pods: SharedInformer<PodView>,
    threshold: usize,
}

/// Starts the pod garbage collector.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(PodGarbageCollector {
        client: ctx.client(),
        clock: Arc::clone(&ctx.clock),
        nodes: ctx.informers.nodes.reader(),
        pods: ctx.informers.pods.reader(),
        threshold: ctx.config.terminated_pod_threshold,
    });
    // The empty key counts all terminated pods.
    let (q, nodes, counts) = (queue.clone(), me.nodes.clone(), me.threshold > 0);
    me.pods.on_change(move |change| {
        let (Change::Added(pod) | Change::Updated { new: pod, .. }) = change else { return };
        if counts && pod.is_terminal() {
            q.add_after(ObjectKey::default(), COUNT_DELAY);
        }
        let node = &pod.spec.node_name;
        if node.is_empty() {
            if pod.metadata.is_deleting() {
                q.add(pod.metadata.key());
            }
        } else {
            match nodes.get(&ObjectKey::new("", node)) {
                None => q.add_after(pod.metadata.key(), QUARANTINE),
                Some(n) if pod.metadata.is_deleting() && is_out_of_service(&n) => q.add(pod.metadata.key()),
                Some(_) => {}
            }
        }
    });
    let (q, pods) = (queue.clone(), me.pods.clone());
    me.nodes.on_change(move |change| {
        let node = change.object();
        let delay = match change {
            Change::Deleted(_) => QUARANTINE,
            _ if is_out_of_service(node) => Duration::ZERO,
            _ => return,
        };
        for p in pods.bucket(&IndexKey::Node(node.metadata.name.clone())) {
            q.add_after(p.metadata.key(), delay);
        }
    });
    ctx.run_queue_of(me.pods.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { if key.name.is_empty() { me.count().await } else { me.sync(&key).await } }
    });
}

fn is_out_of_service(n: &NodeView) -> bool {
    let not_ready = condition::find(&n.status.conditions, "Ready").is_none_or(|c| c.status != "True");
    not_ready && n.spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE)
}

impl PodGarbageCollector {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(pod) = self.pods.get(key) else { return Ok(()) };
        let name = &pod.spec.node_name;
        if name.is_empty() {
            return if pod.metadata.is_deleting() { self.remove(&pod, None).await } else { Ok(()) };
        }
        match self.nodes.get(&ObjectKey::new("", name)) {
            Some(n) if pod.metadata.is_deleting() && is_out_of_service(&n) => self.remove(&pod, None).await,
            Some(_) => Ok(()),
            None => {
                // The cache may be outdated, so the API server is asked before pods are deleted.
                match get_value::<NodeView>(&self.client, "", name).await {
                    Err(e) if e.is_not_found() => self.remove(&pod, Some("PodGC: node no longer exists")).await,
                    Err(e) => Err(e.into()),
                    Ok(_) => Ok(()),
                }
            }
        }
    }

    async fn count(&self) -> Result<(), SyncError> {
        let mut done = self.pods.list();
        done.retain(|p| p.is_terminal());
        let Some(surplus) = done.len().checked_sub(self.threshold).filter(|n| *n > 0) else { return Ok(()) };
        let of = |p: &PodView| (p.metadata.creation_timestamp.clone(), p.metadata.name.clone());
        done.sort_by_cached_key(|p| of(p));
        for p in done.iter().take(surplus.min(REMOVE_MAX)) {
            self.remove(p, None).await?;
        }
        if surplus > REMOVE_MAX {
            return Err(SyncError::Other(format!("{} more finished pods to remove", surplus - REMOVE_MAX)));
        }
        Ok(())
    }

    /// Deletes a pod without a grace period. A pod that has not terminated is first marked as failed, so that its owner
    /// sees the failure.
    async fn remove(&self, pod: &PodView, disrupted: Option<&str>) -> Result<(), SyncError> {
        let (ns, name) = (&pod.metadata.namespace, &pod.metadata.name);
        if !pod.is_terminal() {
            let mut patch = match disrupted {
                Some(message) => disruption_target(&pod.metadata, "DeletionByPodGC", message, self.clock.now()),
                None => json!({"metadata": {"uid": pod.metadata.uid}}),
            };
            patch["status"]["phase"] = json!("Failed");
            let o = WriteOptions::default();
            match self.client.patch::<PodView>(ns, name, "status", PatchKind::Strategic, &patch, &o).await {
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) => return Err(e.into()),
                Ok(_) => {}
            }
        }
        let options = DeleteOptions::default().with_uid(&pod.metadata.uid).with_grace(0);
        match self.client.delete::<PodView>(ns, name, &options).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kelson_simulation::Api;
    use serde_json::Value;

    use super::*;
    use crate::Config;
    use crate::testing::run;

    fn pod(name: &str, node: &str, phase: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "n"}, "status": {"phase": phase},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c"}]}})
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_and_what_stays() {
        let api = Api::start().await;
        api.namespace("n").await;
        let config = Config { terminated_pod_threshold: 2, ..Config::default() };
        let _running = run(&api, &["pod-garbage-collector-controller"], config).await;
        api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
        for (name, phase) in [("a", "Succeeded"), ("bb", "Failed"), ("ccc", "Succeeded"), ("dddd", "Running")] {
            api.create("v1/pods", pod(name, "n1", phase)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        api.create("v1/pods", pod("lost", "n2", "Running")).await;
        let mut unbound = pod("unbound", "", "Pending");
        unbound["metadata"]["finalizers"] = json!(["example.com/hold"]);
        api.create("v1/pods", unbound).await;
        api.delete("v1/pods", "n", "unbound", json!({})).await;
        api.create("v1/pods", pod("waiting", "", "Pending")).await;
        let names = async |api: &Api| -> Vec<String> {
            api.list("v1/pods").await.iter().map(|p| p["metadata"]["name"].as_str().unwrap().to_owned()).collect()
        };
        api.settle().await;
        assert!(api.writes().iter().any(|w| w == "DELETE /api/v1/namespaces/n/pods/unbound"), "no kubelet will");
        api.change("v1/pods", "n", "unbound", |p| p["metadata"]["finalizers"] = json!([])).await;
        assert_eq!(names(&api).await, ["a", "bb", "ccc", "dddd", "lost", "waiting"]);
        tokio::time::sleep(Duration::from_secs(45)).await;
        assert_eq!(names(&api).await, ["bb", "ccc", "dddd", "waiting"], "the oldest finished one and the lost one");
        api.remove("v1/nodes", "", "n1").await;
        tokio::time::sleep(Duration::from_secs(45)).await;
        assert_eq!(names(&api).await, ["waiting"]);
    }
}
