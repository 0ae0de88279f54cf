//! Keeps the node's status current: looks every ten seconds (or at once when the runtime's readiness changed), writes
//! what changed, and an unchanged status every five minutes.
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kelson_client::{Client, PatchKind, WriteOptions};
use kelson_cri::Runtime;
use kelson_meta::Clock;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::status::{Found, differ, status};
use super::{facts, lease, register};
use crate::config::Config;
use crate::env::fields::NodeFacts;

/// Everything the node's tasks need.
pub struct NodeSync {
    /// Configuration.
    pub config: Config,
    /// The API.
    pub client: Client,
    /// The runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// `containerd://1.7.0`.
    pub runtime_version: String,
    /// The server's port.
    pub port: u16,
    /// Told why the network is not ready.
    pub network_fault: watch::Sender<Option<String>>,
    /// Told what pods may see.
    pub node_facts: watch::Sender<Arc<NodeFacts>>,
    /// What the node is short of.
    pub pressure: watch::Receiver<facts::Pressure>,
    /// Told that the node was seen ready.
    pub ready: watch::Sender<bool>,
}

impl NodeSync {
    /// Registers and reports for ever.
    pub async fn run(self) {
        let mut pressure = self.pressure.clone();
        let mut current = self.look().await;
        let node = register::register(&self.client, &self.config, &current).await;
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let (client, clock) = (self.client.clone(), Arc::clone(&self.clock));
        let name = self.config.node_name.clone();
        tokio::spawn(lease::run(client, clock, name, uid, self.config.lease_duration));
        let mut written = Value::Null;
        let mut last = None;
        loop {
            let due = last.is_none_or(|t: tokio::time::Instant| t.elapsed() >= self.config.node_status_report);
            if due || differ(&written, &current) {
                match self.write(&current).await {
                    Ok(()) => {
                        self.ready.send_if_modified(|r| {
                            let now = current["conditions"][3]["status"] == "True";
                            std::mem::replace(r, now) != now
                        });
                        written = current.clone();
                        last = Some(tokio::time::Instant::now());
                    }
                    Err(e) => tracing::info!(error = %e, "node status not written"),
                }
            }
            // A node that is not ready yet is looked at more often: its first pod waits for it.
            let ready = current["conditions"][3]["status"] == "True";
            let pause = if ready { self.config.node_status_update } else { std::time::Duration::from_millis(500) };
            let changed = async {
                if pressure.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let _ = tokio::time::timeout(pause, changed).await;
            current = self.found(&current["conditions"]).await;
        }
    }

    async fn write(&self, current: &Value) -> Result<(), kelson_client::ClientError> {
        let patch = json!({"status": current});
        let options = WriteOptions::default();
        let name = &self.config.node_name;
        match self.client.patch::<Node>("", name, "status", PatchKind::Strategic, &patch, &options).await {
            Err(e) if e.is_not_found() => {
                // Somebody deleted the Node: register again.
                register::register(&self.client, &self.config, current).await;
                Ok(())
            }
            other => other,
        }
    }

    async fn look(&self) -> Value {
        let old = self.client.get_opt::<Node>("", &self.config.node_name).await.ok().flatten();
        let conditions = old.and_then(|n| n.status).and_then(|s| serde_json::to_value(s.conditions).ok());
        self.found(&conditions.unwrap_or(Value::Null)).await
    }

    async fn found(&self, old: &Value) -> Value {
        let capacity = facts::capacity(&self.config);
        let allocatable = facts::allocatable(&capacity, &self.config.reserved);
        let ips: Vec<String> = self.config.node_ips.iter().map(ToString::to_string).collect();
        let node = NodeFacts {
            name: self.config.node_name.clone(),
            host_ips: ips.clone(),
            allocatable: allocatable.clone(),
            machine_memory: facts::machine_memory().total,
        };
        self.node_facts.send_replace(Arc::new(node));
        let (faults, handlers) = self.runtime_state().await;
        let images = self.runtime.list_images(None).await.unwrap_or_default();
        let images = images
            .into_iter()
            .map(|i| (i.repo_digests.into_iter().chain(i.repo_tags).collect::<Vec<_>>(), i.size))
            .filter(|(names, _)| !names.is_empty())
            .collect();
        let found = Found {
            name: self.config.node_name.clone(),
            ips,
            port: self.port,
            capacity,
            allocatable,
            info: facts::system_info(&self.runtime_version),
            pressure: *self.pressure.borrow(),
            faults,
            images,
            handlers,
        };
        status(&found, old, self.clock.now())
    }

    async fn runtime_state(&self) -> (Vec<String>, Vec<String>) {
        let answer = match self.runtime.status(false).await {
            Ok(a) => a,
            Err(e) => return (vec![format!("container runtime is down: {e}")], Vec::new()),
        };
        let handlers = answer.runtime_handlers.iter().map(|h| h.name.clone()).collect();
        let conditions = answer.status.unwrap_or_default().conditions;
        let fault = |kind: &str| {
            let c = conditions.iter().find(|c| c.r#type == kind);
            match c {
                Some(c) if c.status => None,
                Some(c) => Some(format!("{kind}=false reason:{} message:{}", c.reason, c.message)),
                None => Some(format!("{kind} condition is missing from the runtime's status")),
            }
        };
        let mut faults = Vec::new();
        faults.extend(fault("RuntimeReady").map(|f| format!("container runtime not ready: {f}")));
        let network = fault("NetworkReady").map(|f| format!("container runtime network not ready: {f}"));
        self.network_fault.send_if_modified(|now| {
            let changed = *now != network;
            now.clone_from(&network);
            changed
        });
        faults.extend(network);
        (faults, handlers)
    }
}
