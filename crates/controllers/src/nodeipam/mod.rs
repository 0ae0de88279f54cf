//! Allocates the pod CIDRs of nodes. The only record is the node's `spec.podCIDRs`. Upstream
//! `pkg/controller/nodeipam/ipam/range_allocator.go`.
mod cidrs;

use std::sync::Arc;

use ipnet::IpNet;
use kelson_client::{Change, Client, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use serde_json::json;

use self::cidrs::CidrSet;
use crate::shared::context::{Context, SyncError};
use crate::shared::informers::SharedInformer;
use crate::views::NodeView;

struct Allocator {
    client: Client,
    recorder: EventRecorder,
    nodes: SharedInformer<NodeView>,
    state: Mutex<State>,
}

struct State {
    sets: Vec<CidrSet>,
    /// Whether the pod CIDRs of existing nodes have been marked as allocated.
    primed: bool,
}

/// Starts the allocator, unless there is no cluster CIDR.
pub fn start(ctx: &Arc<Context>) {
    let config = &ctx.config;
    let mut sets = Vec::new();
    for net in &config.cluster_cidrs {
        let prefix = if net.addr().is_ipv4() { config.node_cidr_mask_size_v4 } else { config.node_cidr_mask_size_v6 };
        match CidrSet::new(*net, prefix.max(net.prefix_len())) {
            Ok(mut set) => {
                config.service_cidr.iter().for_each(|s| set.occupy(s));
                sets.push(set);
            }
            Err(e) => tracing::error!(error = %e, "the pod CIDR allocator cannot start; nodes get no pod CIDRs"),
        }
    }
    if sets.is_empty() || sets.len() != config.cluster_cidrs.len() {
        return;
    }
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(Allocator {
        recorder: ctx.recorder(&client, "cidrAllocator"),
        client,
        nodes: ctx.informers.nodes.reader(),
        state: Mutex::new(State { sets, primed: false }),
    });
    let (q, a) = (queue.clone(), Arc::clone(&me));
    me.nodes.on_change(move |change| {
        let node = change.object();
        if let Change::Deleted(n) = change {
            a.release(n);
            return;
        }
        if node.spec.pod_cidrs.is_empty() || matches!(change, Change::Added(_)) {
            q.add(ObjectKey::new("", &node.metadata.name));
        }
    });
    // A single worker, so that two nodes never get the same pod CIDR.
    ctx.run_queue_of(me.nodes.clone(), &queue, 1, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn ranges(node: &NodeView) -> impl Iterator<Item = IpNet> + '_ {
    node.spec.pod_cidrs.iter().filter_map(|c| c.parse().ok())
}

impl Allocator {
    fn release(&self, node: &NodeView) {
        let mut state = self.state.lock();
        for net in ranges(node) {
            state.sets.iter_mut().for_each(|s| s.release(&net));
        }
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(node) = self.nodes.get(key) else { return Ok(()) };
        self.prime();
        if !node.spec.pod_cidrs.is_empty() {
            let mut state = self.state.lock();
            for net in ranges(&node) {
                state.sets.iter_mut().for_each(|s| s.occupy(&net));
            }
            return Ok(());
        }
        if node.metadata.is_deleting() {
            return Ok(());
        }
        let Some(nets) = self.allocate() else {
            let message = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.recorder.event(&ObjectRef::of(&*node), EventType::Normal, "CIDRNotAvailable", message);
            return Err(SyncError::Other(format!("no pod CIDR is left for node {}", key.name)));
        };
        let text: Vec<String> = nets.iter().map(ToString::to_string).collect();
        // The resourceVersion must match: a node that got a pod CIDR meanwhile keeps it.
        let patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"podCIDR": text[0], "podCIDRs": text}});
        let options = WriteOptions::default();
        let sent = self.client.patch::<NodeView>("", &key.name, "", PatchKind::Strategic, &patch, &options).await;
        if let Err(e) = sent {
            // A request without a response may have succeeded. The subnet then stays allocated until the node's watch
            // event.
            if e.status().is_some() {
                let mut state = self.state.lock();
                for net in &nets {
                    state.sets.iter_mut().for_each(|s| s.undo(net));
                }
            }
            return if e.is_not_found() { Ok(()) } else { Err(e.into()) };
        }
        tracing::info!(node = %key.name, pod_cidrs = %text.join(","), "allocated pod CIDRs to node");
        Ok(())
    }

    /// Marks the pod CIDRs of all nodes as allocated, before the first allocation.
    fn prime(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.primed, true) {
            return;
        }
        for node in self.nodes.list() {
            for net in ranges(&node) {
                state.sets.iter_mut().for_each(|s| s.occupy(&net));
            }
        }
    }

    /// Allocates a subnet of each cluster CIDR, or none.
    fn allocate(&self) -> Option<Vec<IpNet>> {
        let mut state = self.state.lock();
        let mut got = Vec::with_capacity(state.sets.len());
        for i in 0..state.sets.len() {
            match state.sets[i].allocate() {
                Some(net) => got.push(net),
                None => {
                    for net in &got {
                        state.sets.iter_mut().for_each(|s| s.undo(net));
                    }
                    return None;
                }
            }
        }
        Some(got)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn each_node_its_own() {
        let api = Api::start().await;
        let config = Config { cluster_cidrs: vec!["10.42.0.0/22".parse().unwrap()], ..Config::default() };
        api.create(
            "v1/nodes",
            json!({"metadata": {"name": "old"}, "spec": {"podCIDR": "10.42.0.0/24", "podCIDRs": ["10.42.0.0/24"]}}),
        )
        .await;
        for n in ["a", "b", "c", "d"] {
            api.create("v1/nodes", json!({"metadata": {"name": n}, "spec": {}})).await;
        }
        let _running = run(&api, &["node-ipam-controller"], config).await;
        api.settle().await;
        let mut got: Vec<String> = api
            .list("v1/nodes")
            .await
            .iter()
            .filter_map(|n| n["spec"]["podCIDRs"][0].as_str().map(str::to_owned))
            .collect();
        got.sort();
        assert_eq!(got, ["10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24", "10.42.3.0/24"]);
        assert!(api.events().await.iter().any(|e| e.starts_with("CIDRNotAvailable Node ")));
        api.remove("v1/nodes", "", "old").await;
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert!(
            api.list("v1/nodes").await.iter().all(|n| n["spec"]["podCIDRs"][0].is_string()),
            "the freed range is used"
        );
    }
}
