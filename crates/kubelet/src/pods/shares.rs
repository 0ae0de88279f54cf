//! Updates the cgroups above those of pods to the pods that run and to the node's reservations.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::EventType;
use kelson_meta::Quantity;
use kelson_tasks::FILES;
use tokio::time::Instant;

use super::known::PodRegistry;
use crate::cgroups::Cgroups;
use crate::cgroups::bounds::{Bounds, ClassMemory};
use crate::config::Config;
use crate::effects::EventReporter;
use crate::node::facts;

/// Interval of updates.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Interval at which unchanged values are written again, because other software may have changed them.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// Updates the QoS cgroups and enforces node allocatable.
#[derive(Clone)]
pub struct QosCgroups {
    /// Writes shares and limits.
    pub cgroups: Cgroups,
    /// Reservations and the cgroups that are limited to them.
    pub config: Arc<Config>,
    /// The pods of this node.
    pub known: PodRegistry,
    /// Records events of the node.
    pub events: EventReporter,
}

/// Time of the last write, and the values: CPU request of burstable pods and memory by QoS class.
type WrittenShare = (Instant, (Option<i64>, ClassMemory));

impl QosCgroups {
    /// Runs until its task is aborted.
    pub async fn run(self) {
        let Some(enforced) = self.config.cgroups.as_ref().map(|c| c.enforced.clone()) else { return };
        let mut held: BTreeMap<String, bool> = BTreeMap::new();
        let mut written: Option<WrittenShare> = None;
        loop {
            let pods = self.known.list();
            let asked = (Bounds::of_burstable(&pods, &[]).shares, ClassMemory::of(&pods));
            let is_new = written.is_none_or(|(at, of)| at.elapsed() >= WRITE_EVERY || of != asked);
            if is_new {
                let config = Arc::clone(&self.config);
                let amounts = FILES.run(move || facts::capacity(&config)).await.unwrap_or_default();
                let memory = facts::for_pods(&amounts, &self.config.reserved()).get("memory").map_or(0, |q| q.value());
                self.cgroups.share_out(&pods, memory).await;
                let nothing = BTreeMap::new();
                let reserved = if enforced.pods { self.config.reserved() } else { nothing };
                let outcome = self.cgroups.hold_pods(&facts::for_pods(&amounts, &reserved)).await;
                self.say(&mut held, "Updated Node Allocatable limit across pods".to_owned(), "across pods", outcome);
                let others = [
                    ("system reserved", &enforced.system, &self.config.system_reserved),
                    ("kube reserved", &enforced.kube, &self.config.kube_reserved),
                ];
                for (what, cgroup, reserved) in others {
                    let Some((cgroup, only_cpu)) = cgroup else { continue };
                    let outcome = self.reserve(cgroup, reserved, *only_cpu).await;
                    self.say(&mut held, format!("Updated limits on {what} cgroup {cgroup}"), what, outcome);
                }
                written = Some((Instant::now(), asked));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn reserve(&self, cgroup: &str, amounts: &BTreeMap<String, Quantity>, only_cpu: bool) -> Result<(), String> {
        self.cgroups.hold_reserved(cgroup, amounts, only_cpu).await
    }

    /// Records an event when enforcement starts to succeed and when it starts to fail.
    fn say(&self, held: &mut BTreeMap<String, bool>, done: String, what: &str, outcome: Result<(), String>) {
        let before = held.insert(what.to_owned(), outcome.is_ok());
        match outcome {
            Ok(()) if before != Some(true) => self.events.node(EventType::Normal, "NodeAllocatableEnforced", done),
            Err(why) if before != Some(false) => {
                let text = format!("Failed to update Node Allocatable Limits {what}: {why}");
                self.events.node(EventType::Warning, "FailedNodeAllocatableEnforcement", text);
            }
            _ => {}
        }
    }
}
