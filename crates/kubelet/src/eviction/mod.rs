//! Evicts pods when the node runs short of memory, disk or process IDs, and pods that went over their own limits of local
//! storage; says which pressure the node is under. Measuring and evicting are effects, so that the rest runs on a paused
//! clock (upstream: `pkg/kubelet/eviction/eviction_manager.go`).
pub mod measure;
pub mod rank;
pub mod tracker;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::thresholds::{EvictionConfig, Pressure, Threshold};
use crate::pod;
use rank::Usages;
use tracker::{Observations, Tracker};

/// Time from one look at the machine to the next.
pub const PERIOD: Duration = Duration::from_secs(10);
/// What containers get to end where a hard threshold or a pod's own limit is the cause.
const HARD_GRACE: Duration = Duration::from_secs(1);

/// What the manager sees and does.
#[async_trait]
pub trait Effects: Send + Sync {
    /// Measures the node.
    async fn observe(&self) -> Observations;
    /// The pods that run.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// What pods use.
    async fn usages(&self, pods: &[Arc<Pod>]) -> Usages;
    /// Frees disk without ending pods: dead containers, unused images.
    async fn reclaim_disk(&self);
    /// Tells that a threshold is met: an event about the node.
    fn attempting(&self, resource: &str);
    /// Ends a pod for want of what `signal` names, or since it passed a limit of its own that `signal` names.
    fn evict(&self, pod: &Arc<Pod>, signal: &'static str, message: String, grace: Duration);
}

/// Looks at the machine in turn and says which pod goes.
pub struct EvictionManager<E> {
    config: EvictionConfig,
    effects: E,
    tracker: Tracker,
    pressure: watch::Sender<Pressure>,
}

impl<E: Effects> EvictionManager<E> {
    /// A manager that publishes the node's pressure in `pressure`.
    pub fn new(config: EvictionConfig, effects: E, pressure: watch::Sender<Pressure>) -> Self {
        Self { config, effects, tracker: Tracker::default(), pressure }
    }

    /// Looks every [`PERIOD`] until the task is ended.
    pub async fn run(mut self) {
        loop {
            self.once().await;
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// One look; at most one pod goes for the node's sake.
    async fn once(&mut self) {
        let seen = self.effects.observe().await;
        let now = Instant::now();
        let met = self.tracker.look(&self.config.thresholds, self.config.transition, &seen, now);
        let pressure = self.tracker.pressure();
        self.pressure.send_if_modified(|p| std::mem::replace(p, pressure) != pressure);
        if self.own_limits().await {
            return;
        }
        let Some(worst) = met.first() else { return };
        let resource = worst.signal.resource();
        tracing::warn!(signal = worst.signal.name(), "eviction threshold met, attempting to reclaim {resource}");
        self.effects.attempting(resource);
        if matches!(resource, "ephemeral-storage" | "inodes") && self.reclaimed().await {
            return;
        }
        self.evict_one(worst, &seen).await;
    }

    /// Ends pods over a limit of their own; true when there was one.
    async fn own_limits(&self) -> bool {
        if !self.config.own_limits {
            return false;
        }
        let limited: Vec<Arc<Pod>> =
            self.effects.active().into_iter().filter(|p| rank::has_storage_limits(p) && !pod::is_critical(p)).collect();
        if limited.is_empty() {
            return false;
        }
        let usages = self.effects.usages(&limited).await;
        let mut any = false;
        for pod in &limited {
            let over = usages.get(pod::uid(pod)).and_then(|u| rank::over_storage_limit(pod, u));
            if let Some((signal, message)) = over {
                self.effects.evict(pod, signal, message, HARD_GRACE);
                any = true;
            }
        }
        any
    }

    /// Frees disk; whether that was enough.
    async fn reclaimed(&mut self) -> bool {
        self.effects.reclaim_disk().await;
        let seen = self.effects.observe().await;
        let now = Instant::now();
        // With what must be reclaimed at least, and without its grace: a copy, so that this look counts for nothing.
        self.tracker.clone().look(&self.config.thresholds, self.config.transition, &seen, now).is_empty()
    }

    async fn evict_one(&self, met: &Threshold, seen: &Observations) {
        let mut pods = self.effects.active();
        let usages = self.effects.usages(&pods).await;
        rank::rank(&mut pods, &usages, met.signal);
        let Some(pod) = pods.iter().find(|p| !pod::is_critical(p)) else {
            tracing::error!(signal = met.signal.name(), "no pod can be evicted");
            return;
        };
        let grace = if met.is_hard() {
            HARD_GRACE
        } else {
            Duration::from_secs(u64::try_from(pod::grace_seconds(pod)).unwrap_or(0)).min(self.config.max_pod_grace)
        };
        let message = rank::message(pod, usages.get(pod::uid(pod)), met, seen);
        self.effects.evict(pod, met.signal.name(), message, grace);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
