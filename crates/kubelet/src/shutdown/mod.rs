//! Graceful node shutdown (KEP-2000, KEP-2712): before the machine shuts down, pods end by priority within the configured periods, new pods
//! are rejected, and the node becomes not ready. The machine and the pods are traits, so that tests run on the paused clock (upstream:
//! `pkg/kubelet/nodeshutdown`).
pub mod kept;
pub mod plan;
pub mod real;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Clock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::shutdown::ShutdownPeriod;
use kept::ShutdownTimes;

/// `status.message` of a pod that was ended by a node shutdown.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Delay before reconnecting to logind after an error.
const RECONNECT: Duration = Duration::from_secs(1);
/// Longest time that statuses of ended pods may take to reach the API, which may be of the same machine.
const REPORT_MAX: Duration = Duration::from_secs(5);
/// Interval at which ending pods are checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Actions of the shutdown on the node's pods.
#[async_trait]
pub trait ShutdownPods: Send + Sync {
    /// Returns the running pods.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// Ends a pod with this grace period.
    fn end(&self, pod: &Arc<Pod>, grace: Duration);
    /// Returns whether containers or volumes of any of these pods remain.
    async fn remain(&self, pods: &[Arc<Pod>]) -> bool;
    /// Returns whether the API has the end of these pods.
    fn is_reported(&self, pods: &[Arc<Pod>]) -> bool;
    /// Records an event about the node.
    fn say(&self, what: &str);
    /// Stores start and end of the shutdown for the next kubelet.
    async fn keep(&self, times: ShutdownTimes);
}

/// Connection to the component that shuts down the machine (logind).
#[async_trait]
pub trait Machine: Send {
    /// Takes or renews the inhibitor lock that delays a shutdown by up to `wanted`.
    async fn hold(&mut self, wanted: Duration) -> Result<(), String>;
    /// Releases the inhibitor lock.
    fn release(&mut self);
    /// Waits for a shutdown to begin (`true`) or to be cancelled (`false`).
    async fn next(&mut self) -> Result<bool, String>;
}

/// Manager of graceful node shutdown.
pub struct Shutdown<P, M> {
    /// `shutdownGracePeriodByPodPriority`, or the periods derived from the other two fields.
    pub periods: Vec<ShutdownPeriod>,
    /// The pods of the node.
    pub pods: P,
    /// Creates a connection to logind.
    pub connect: Box<dyn Fn() -> M + Send + Sync>,
    /// Clock for start and end of the shutdown.
    pub clock: Arc<dyn Clock>,
    /// Publishes whether the node is shutting down.
    pub begun: watch::Sender<bool>,
}

impl<P: ShutdownPods, M: Machine> Shutdown<P, M> {
    /// Handles shutdowns until its task is aborted.
    pub async fn run(self) {
        let mut said = String::new();
        loop {
            let mut machine = (self.connect)();
            let Err(why) = self.follow(&mut machine).await;
            // Logged once per reason, because it stays the same on a machine without logind.
            if said != why {
                tracing::warn!(
                    why,
                    "graceful node shutdown is not available; pods will not end before the machine shuts down"
                );
                said = why;
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn follow(&self, machine: &mut M) -> Result<std::convert::Infallible, String> {
        let wanted = self.periods.iter().map(|p| p.grace).sum();
        machine.hold(wanted).await?;
        loop {
            let begins = machine.next().await?;
            let what = if begins { "shutdown event" } else { "shutdown cancellation" };
            self.pods.say(&format!("Shutdown manager detected {what}"));
            self.begun.send_replace(begins);
            if begins {
                self.end_pods().await;
                machine.release();
            } else {
                machine.hold(wanted).await?;
            }
        }
    }

    async fn end_pods(&self) {
        let mut times = ShutdownTimes { began: Some(self.clock.now()), ended: None };
        self.pods.keep(times).await;
        let mut ended = Vec::new();
        for group in plan::groups(&self.periods, self.pods.active()) {
            tracing::info!(pods = group.pods.len(), period = ?group.period, "the node is shutting down; ending pods");
            group.pods.iter().for_each(|p| self.pods.end(p, plan::grace(p, group.period)));
            let until = Instant::now() + group.period;
            while self.pods.remain(&group.pods).await {
                if Instant::now() >= until {
                    tracing::warn!(period = ?group.period, "pods did not end within their shutdown period");
                    break;
                }
                tokio::time::sleep_until((Instant::now() + LOOK_EVERY).min(until)).await;
            }
            ended.extend(group.pods);
        }
        self.report(&ended).await;
        times.ended = Some(self.clock.now());
        self.pods.keep(times).await;
    }

    /// Waits until the API has the end of the pods. Without it they would be running pods again after the machine's start.
    async fn report(&self, pods: &[Arc<Pod>]) {
        let until = Instant::now() + REPORT_MAX;
        while !self.pods.is_reported(pods) {
            if Instant::now() >= until {
                tracing::warn!(limit = ?REPORT_MAX, "the statuses of ended pods did not reach the API in time; the pods restart with the machine");
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests;
