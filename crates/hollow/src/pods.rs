//! Pods on hollow nodes: what is bound runs, what shall end ends, what is deleted goes.
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use kelson_client::{
    Change, Client, ClientError, DeleteOptions, Informer, InformerConfig, InformerHandle, PatchKind, WorkQueue,
    WriteOptions,
};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use serde_json::json;

use crate::addresses::Addresses;
use crate::config::{Config, address};
use crate::status::{self, Stage};
use crate::view::Pod;

/// Writes for pods under way at once.
const WORKERS: usize = 64;
/// The range of pod addresses: the one that providers share with their customers (RFC 6598), which holds four million.
pub const RANGE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10);

struct Pods {
    config: Arc<Config>,
    client: Client,
    clock: Arc<dyn Clock>,
    addresses: Arc<Mutex<Addresses>>,
    pods: InformerHandle<Pod>,
    queue: WorkQueue<ObjectKey>,
}

/// Follows pods and works on those of these nodes.
pub fn start(config: &Arc<Config>, client: &Client, clock: &Arc<dyn Clock>, tasks: &Tasks) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let addresses = Arc::new(Mutex::new(Addresses::new(RANGE.into(), 0)));
    let bound = InformerConfig { fields: "spec.nodeName!=".into(), ..InformerConfig::default() };
    let (q, of, taken) = (queue.clone(), Arc::clone(config), Arc::clone(&addresses));
    let informer = Informer::new(client.clone(), bound).on_change(move |change: &Change<Pod>| {
        let pod = change.object();
        if of.number(&pod.spec.node_name).is_none() {
            return;
        }
        match change {
            Change::Deleted(_) => taken.lock().give_back(&pod.status.pod_ip),
            _ => {
                taken.lock().note(&pod.status.pod_ip);
                q.add(ObjectKey::new(&pod.metadata.namespace, &pod.metadata.name));
            }
        }
    });
    let me = Arc::new(Pods {
        config: Arc::clone(config),
        client: client.clone(),
        clock: Arc::clone(clock),
        addresses,
        pods: informer.start_in(tasks),
        queue: queue.clone(),
    });
    let group = tasks.clone();
    tasks.spawn("hollow-pods", OnPanic::EndProcess, async move {
        // Addresses of pods that are there must be known before others are handed out.
        me.pods.synced().await;
        for _ in 0..WORKERS {
            let (me, queue) = (Arc::clone(&me), queue.clone());
            group.supervise("hollow-pods", move || {
                let (me, queue) = (Arc::clone(&me), queue.clone());
                async move {
                    let work = move |key: ObjectKey| {
                        let me = Arc::clone(&me);
                        async move { me.sync(&key).await }
                    };
                    queue
                        .work(
                            "hollow-pods",
                            work,
                            |key, error| tracing::debug!(%key, %error, "updating the pod failed; retrying"),
                        )
                        .await;
                }
            });
        }
    });
}

impl Pods {
    async fn sync(&self, key: &ObjectKey) -> Result<(), ClientError> {
        let Some(pod) = self.pods.get(key) else { return Ok(()) };
        let Some(node) = self.config.number(&pod.spec.node_name) else { return Ok(()) };
        if pod.metadata.is_deleting() {
            return self.end(&pod, node).await;
        }
        if pod.has_ended() {
            return Ok(());
        }
        if &*pod.status.phase != "Running" {
            return self.say(&pod, node, Stage::Running).await;
        }
        if pod.is_resized() {
            return self.say(&pod, node, Stage::Running).await;
        }
        if let Some(since) = pod.status.start_time.filter(|_| pod.ends()) {
            let left = self.config.run_for.saturating_sub(self.clock.now().duration_since(since).unsigned_abs());
            if left.is_zero() {
                return self.say(&pod, node, Stage::Succeeded).await;
            }
            self.queue.add_after(key.clone(), left.max(Duration::from_millis(1)));
        }
        Ok(())
    }

    /// The containers end at once, and then the pod is gone.
    async fn end(&self, pod: &Pod, node: usize) -> Result<(), ClientError> {
        if !pod.has_ended() && &*pod.status.phase == "Running" {
            match self.say(pod, node, Stage::Ended).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        let options = DeleteOptions::default().with_uid(&pod.metadata.uid).with_grace(0);
        match self.client.delete::<Pod>(&pod.metadata.namespace, &pod.metadata.name, &options).await {
            Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
            _ => Ok(()),
        }
    }

    async fn say(&self, pod: &Pod, node: usize, stage: Stage) -> Result<(), ClientError> {
        let now = format_seconds(self.clock.now());
        let since = pod.status.start_time.map_or_else(|| now.clone(), format_seconds);
        let host = address(node);
        let (ip, fresh) = match pod.status.pod_ip.parse() {
            Ok(ip) => (ip, false),
            Err(_) if pod.spec.host_network => (host, false),
            Err(_) => match self.addresses.lock().take() {
                Some(ip) => (ip, true),
                None => return Err(ClientError::Request("no free pod address".to_owned())),
            },
        };
        let patch = json!({"metadata": {"uid": pod.metadata.uid},
            "status": status::pod(pod, stage, host, ip, &since, &now)});
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let o = WriteOptions::default();
        let sent = self.client.patch::<Pod>(namespace, name, "status", PatchKind::Strategic, &patch, &o).await;
        if sent.is_err() && fresh {
            self.addresses.lock().give_back(&ip.to_string());
        }
        match sent {
            // The pod is gone, or another pod has its name; the watch reports either.
            Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
            other => other,
        }
    }
}
