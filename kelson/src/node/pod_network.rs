//! Sets up and repairs this node's pod network: when the cluster assigns its range, when nodes change, and when another
//! program has changed it on the host.
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use kelson_client::{Client, EventRecorder, EventType};
use kelson_kubelet::effects::EventReporter;
use kelson_meta::Clock;
use kelson_metrics::{IntCounterVec, Registry};
use kelson_net::{Damage, HostGuard, Network, NetworkConfig, PeerWatch};
use kelson_ranges::Ranges;
use kelson_tasks::Tasks;
use tokio::sync::watch;

use crate::host::NodeIdentity;

/// The first and the longest pause before another attempt; it doubles each time.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The minimum pause between repairs, in case another program changes the host again and again.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);

/// The inputs of the pod network.
pub struct PodNetwork {
    /// The data directory.
    pub dir: PathBuf,
    /// The cluster's address ranges.
    pub ranges: Ranges,
    /// The identity of this node.
    pub me: NodeIdentity,
    /// The client of the API, with this node's identity.
    pub client: Client,
    /// The group of its tasks.
    pub tasks: Tasks,
    /// The clock for events.
    pub clock: Arc<dyn Clock>,
    /// The registry for the metric of repairs.
    pub registry: Registry,
}

/// The network that was set up, and the task that watches it.
struct RunningNetwork {
    guard: Option<HostGuard>,
    _peers: PeerWatch,
}

impl PodNetwork {
    /// Maintains the network for the assigned ranges until that channel closes.
    pub async fn keep(self, mut given: watch::Receiver<Vec<String>>) {
        let restored = Restored::new(&self);
        let (mut subnets, mut pause) = (None::<Vec<IpNet>>, RETRY_FIRST);
        let mut made = None;
        loop {
            let mut retry = None;
            if let Some(subnets) = &subnets {
                // The previous task ends first: two would change the same entries.
                drop(made.take());
                match self.set_up(subnets.clone()).await {
                    Ok(done) => {
                        pause = RETRY_FIRST;
                        made = Some(done);
                    }
                    // Without a network no pod starts, and the obstacle may disappear.
                    Err(e) => {
                        tracing::error!(error = format!("{e:#}"), retry_in = ?pause, "setting up the pod network failed; retrying");
                        retry = Some(pause);
                        pause = (pause * 2).min(RETRY_MAX);
                    }
                }
            }
            let again = async {
                match retry {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let damaged = async {
                match made.as_mut().and_then(|m| m.guard.as_mut()) {
                    Some(guard) => guard.damaged().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = given.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    subnets = Some(given.borrow_and_update().iter().filter_map(|c| c.parse().ok()).collect());
                }
                damage = damaged => {
                    restored.report(&damage);
                    tokio::time::sleep(RESTORE_PAUSE).await;
                }
                () = again => {}
            }
        }
    }

    async fn set_up(&self, subnets: Vec<IpNet>) -> anyhow::Result<RunningNetwork> {
        let program = std::env::current_exe().context("find this program")?;
        let network =
            Network::new(NetworkConfig::within(&self.ranges, &self.dir, subnets, overlay_address(self.me.address))?);
        network.ensure(&program).await?;
        tracing::info!(bridge = network.config().bridge(), subnet = %network.config().subnet(), "pod network is ready");
        let guard = network.guard(&program).await;
        let guard = guard.inspect_err(|error| {
            tracing::warn!(%error, "cannot watch the pod network on this host; changes by other programs are not restored");
        });
        let peers = PeerWatch::start(network, &self.me.name, self.client.clone(), &self.tasks);
        Ok(RunningNetwork { guard: guard.ok(), _peers: peers })
    }
}

/// Reports repairs in the log, by an event of the node, and in a metric.
struct Restored {
    events: EventReporter,
    count: IntCounterVec,
}

impl Restored {
    fn new(network: &PodNetwork) -> Self {
        let PodNetwork { client, tasks, clock, me, registry, .. } = network;
        let recorder = EventRecorder::start_in(tasks, client.clone(), Arc::clone(clock), "kubelet", &me.name);
        let count = registry.counters(
            "kelson_pod_network_restores_total",
            "Repairs of the pod network on this host after changes by other programs, by part.",
            &["part"],
        );
        for part in Damage::ALL {
            count.with_label_values(&[part.word()]);
        }
        Self { events: EventReporter::new(recorder, &me.name), count }
    }

    fn report(&self, damage: &[(Damage, String)]) {
        let mut parts: Vec<&str> = damage.iter().map(|(part, _)| part.word()).collect();
        parts.dedup();
        for part in parts {
            self.count.with_label_values(&[part]).inc();
        }
        let what = damage.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>().join(", ");
        tracing::warn!(what, "another program changed the pod network on this host; restoring it");
        let text = format!("Another program changed the pod network on this host; restoring it: {what}");
        self.events.node(EventType::Warning, "PodNetworkRestored", text);
    }
}

/// Returns the address of this node's tunnels. A node that only has a loopback address has no other nodes.
fn overlay_address(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) if !v4.is_loopback() => Some(v4),
        _ => None,
    }
}
