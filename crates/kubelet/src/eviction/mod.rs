//! Evicts pods when the node runs short of memory, disk or process IDs, and pods that exceed their own ephemeral storage limits; sets the
//! node's pressure conditions. Measurements and evictions are a trait, so that tests run on the paused clock (upstream:
//! `pkg/kubelet/eviction/eviction_manager.go`).
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

/// Interval of measurements.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Grace period of evictions by a hard threshold or by the pod's own limit.
const HARD_GRACE: Duration = Duration::from_secs(1);

/// Measurements and actions of the manager.
#[async_trait]
pub trait Effects: Send + Sync {
    /// Measures the node's signals.
    async fn observe(&self) -> Observations;
    /// Returns the running pods.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// Measures the usage of pods.
    async fn usages(&self, pods: &[Arc<Pod>]) -> Usages;
    /// Frees disk space without ending pods, by removing old container instances and unused images.
    async fn reclaim_disk(&self);
    /// Records an event about the node that a threshold is met.
    fn attempting(&self, resource: &str);
    /// Ends a pod because of the signal or limit that `signal` names.
    fn evict(&self, pod: &Arc<Pod>, signal: &'static str, message: String, grace: Duration);
}

/// The eviction manager. Every [`PERIOD`] it measures the signals, updates the node's pressure conditions, ends pods over their own storage
/// limits, and, if a threshold is met and reclaiming disk space does not help, evicts the pod that ranks first. At most one pod per period
/// is evicted for the node, so that each eviction can take effect.
pub struct EvictionManager<E> {
    config: EvictionConfig,
    effects: E,
    tracker: Tracker,
    pressure: watch::Sender<Pressure>,
}

impl<E: Effects> EvictionManager<E> {
    /// Creates a manager that publishes the pressure conditions in `pressure`.
    pub fn new(config: EvictionConfig, effects: E, pressure: watch::Sender<Pressure>) -> Self {
        Self { config, effects, tracker: Tracker::default(), pressure }
    }

    /// Runs every [`PERIOD`] until its task is aborted.
    pub async fn run(mut self) {
        loop {
            self.once().await;
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Runs once; evicts at most one pod because of the node.
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

    /// Ends pods over their own limits. Returns whether there was one.
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

    /// Reclaims disk space. Returns whether no threshold is met any more.
    async fn reclaimed(&mut self) -> bool {
        self.effects.reclaim_disk().await;
        let seen = self.effects.observe().await;
        let now = Instant::now();
        // Includes the minimum reclaim and ignores grace periods. The tracker is cloned, so that this check has no effect on it.
        self.tracker.clone().look(&self.config.thresholds, self.config.transition, &seen, now).is_empty()
    }

    async fn evict_one(&self, met: &Threshold, seen: &Observations) {
        let mut pods = self.effects.active();
        let usages = self.effects.usages(&pods).await;
        rank::rank(&mut pods, &usages, met.signal);
        let Some(pod) = pods.iter().find(|p| !pod::is_critical(p)) else {
            tracing::error!(signal = met.signal.name(), "eviction threshold met, but no pod can be evicted");
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
