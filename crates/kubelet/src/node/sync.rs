//! Keeps the node's status current: computes it every ten seconds, or at once when the runtime's readiness changed; writes changes, and an
//! unchanged status every five minutes.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeSystemInfo};
use kelson_client::{Client, PatchKind, WriteOptions};
use kelson_cri::Runtime;
use kelson_meta::{Clock, Quantity};
use kelson_tasks::{FILES, Tasks};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::facts::NodeFacts;
use super::runtime::RuntimeState;
use super::status::{NodeStatus, NodeStatusInput, differ, status};
use super::{facts, lease, register};
use crate::config::Config;
use crate::config::thresholds::Pressure;
use crate::csi::in_use::InUse;
use crate::devices::Devices;

/// Interval while the node is not ready.
const NOT_READY_PERIOD: Duration = Duration::from_millis(500);

/// Maximum time for the runtime's status response; then it counts as down (upstream: `maxWaitForContainerRuntime`). Other calls may take
/// minutes, but the node's status must not wait that long.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Dependencies and inputs for the node's status.
pub struct NodeSync {
    /// Configuration of the kubelet.
    pub config: Arc<Config>,
    /// Client of the API that authenticates as this node.
    pub client: Client,
    /// The runtime, which is asked for its status.
    pub runtime: Arc<dyn Runtime>,
    /// Clock for the conditions' timestamps.
    pub clock: Arc<dyn Clock>,
    /// Name and version of the runtime, such as `containerd://1.7.0`.
    pub runtime_version: String,
    /// Port of the kubelet's server.
    pub port: u16,
    /// Publishes the state of the runtime.
    pub runtime_state: watch::Sender<Arc<RuntimeState>>,
    /// Publishes facts about the node for pods.
    pub node_facts: watch::Sender<Arc<NodeFacts>>,
    /// Pressure conditions of the node.
    pub pressure: watch::Receiver<Pressure>,
    /// Whether the node is shutting down.
    pub shutdown: watch::Receiver<bool>,
    /// Publishes whether the last written status was ready.
    pub ready: watch::Sender<bool>,
    /// CSI volumes in use.
    pub in_use: InUse,
    /// Devices of device plugins.
    pub devices: Devices,
    /// Task group for the lease.
    pub tasks: Tasks,
}

impl NodeSync {
    /// Registers the node and reports its status until the task is aborted.
    pub async fn run(&self) {
        let (mut pressure, mut volumes) = (self.pressure.clone(), self.in_use.changes());
        let (mut devices, mut shutdown) = (self.devices.changes(), self.shutdown.clone());
        let mut current = self.look().await;
        let node = register::register(&self.client, &self.config, &current.tree).await;
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let (client, clock) = (self.client.clone(), Arc::clone(&self.clock));
        let name = self.config.node_name.clone();
        let lease = lease::run(client, clock, name, uid, self.config.lease_duration);
        let _lease = self.tasks.scoped("node-lease", lease);
        let mut written = Value::Null;
        let mut last = None;
        loop {
            let due = last.is_none_or(|t: tokio::time::Instant| t.elapsed() >= self.config.node_status_report);
            if due || differ(&written, &current.tree) {
                match self.write(&current.tree).await {
                    Ok(()) => {
                        self.ready.send_if_modified(|r| std::mem::replace(r, current.ready) != current.ready);
                        written = current.tree.clone();
                        last = Some(tokio::time::Instant::now());
                    }
                    Err(e) => tracing::info!(error = %e, "writing the node's status failed; retrying"),
                }
            }
            // Also if nothing was written: a volume that was released and used again may be unchanged in the API.
            let reported = written["volumesInUse"].as_array().into_iter().flatten();
            self.in_use.reported(reported.filter_map(|v| v.as_str()).map(str::to_owned));
            // A node that is not ready is checked more often, because its first pod waits for it.
            let pause = if current.ready { self.config.node_status_update } else { NOT_READY_PERIOD };
            let changed = async {
                let changed = tokio::select! {
                    p = pressure.changed() => p,
                    v = volumes.changed() => v,
                    d = devices.changed() => d,
                    s = shutdown.changed() => s,
                };
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let _ = tokio::time::timeout(pause, changed).await;
            current = self.found(&current.tree["conditions"]).await;
        }
    }

    async fn write(&self, current: &Value) -> Result<(), kelson_client::ClientError> {
        let patch = json!({"status": current});
        let options = WriteOptions::default();
        let name = &self.config.node_name;
        match self.client.patch::<Node>("", name, "status", PatchKind::Strategic, &patch, &options).await {
            Err(e) if e.is_not_found() => {
                // The Node was deleted, so register again.
                register::register(&self.client, &self.config, current).await;
                Ok(())
            }
            other => other,
        }
    }

    async fn look(&self) -> NodeStatus {
        let old = self.client.get_opt::<Node>("", &self.config.node_name).await.ok().flatten();
        let conditions = old.and_then(|n| n.status).and_then(|s| serde_json::to_value(s.conditions).ok());
        self.found(&conditions.unwrap_or(Value::Null)).await
    }

    async fn found(&self, old: &Value) -> NodeStatus {
        let (config, version) = (Arc::clone(&self.config), self.runtime_version.clone());
        let mut machine = FILES.run(move || MachineState::read(&config, &version)).await.unwrap_or_default();
        // Also resources whose plugins are gone, because the API keeps a resource until it is set to 0.
        for (name, amount) in self.devices.amounts() {
            machine.capacity.insert(name.clone(), Quantity::from_i64(amount.capacity));
            machine.allocatable.insert(name, Quantity::from_i64(amount.allocatable));
        }
        let ips: Vec<String> = self.config.node_ips.iter().map(ToString::to_string).collect();
        let node = NodeFacts {
            name: self.config.node_name.clone(),
            host_ips: ips.clone(),
            allocatable: machine.allocatable.clone(),
            machine_memory: machine.memory,
        };
        self.node_facts.send_replace(Arc::new(node));
        let images = tokio::time::timeout(ANSWER_MAX, self.runtime.list_images(None));
        let (runtime, images) = tokio::join!(self.ask_runtime(), images);
        let images = images.unwrap_or(Ok(Vec::new())).unwrap_or_default();
        let images = images
            .into_iter()
            .map(|i| (i.repo_digests.into_iter().chain(i.repo_tags).collect::<Vec<_>>(), i.size))
            .filter(|(names, _)| !names.is_empty())
            .collect();
        let found = NodeStatusInput {
            name: self.config.node_name.clone(),
            ips,
            port: self.port,
            capacity: machine.capacity,
            allocatable: machine.allocatable,
            info: machine.info,
            pressure: *self.pressure.borrow(),
            shuts_down: *self.shutdown.borrow(),
            images,
            images_max: self.config.status_images_max,
            volumes_in_use: self.in_use.all(),
            runtime,
        };
        status(&found, old, self.clock.now())
    }

    async fn ask_runtime(&self) -> RuntimeState {
        let answer = tokio::time::timeout(ANSWER_MAX, self.runtime.status(false)).await;
        let state = match answer {
            Ok(Ok(answer)) => RuntimeState::of(answer),
            Ok(Err(e)) => self.runtime_state.borrow().down(&e.to_string()),
            Err(_) => self.runtime_state.borrow().down(&format!("it did not respond within {ANSWER_MAX:?}")),
        };
        self.runtime_state.send_if_modified(|now| {
            let changed = **now != state;
            if changed {
                *now = Arc::new(state.clone());
            }
            changed
        });
        state
    }
}

/// The data of the machine in one status.
#[derive(Default)]
struct MachineState {
    capacity: BTreeMap<String, Quantity>,
    allocatable: BTreeMap<String, Quantity>,
    info: NodeSystemInfo,
    memory: i64,
}

impl MachineState {
    fn read(config: &Config, runtime_version: &str) -> Self {
        let capacity = facts::capacity(config);
        Self {
            allocatable: facts::allocatable(&capacity, &config.reserved(), &config.eviction.thresholds),
            capacity,
            info: facts::system_info(runtime_version),
            memory: facts::machine_memory().total,
        }
    }
}
