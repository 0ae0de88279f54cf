//! Graceful shutdown of the node (KEP-2000, KEP-2712): when the machine is about to go down, pods end by priority within
//! the configured periods, new ones are refused, and the node says that it is not ready. The machine and the pods are
//! effects, so that the rest runs on a paused clock (upstream: `pkg/kubelet/nodeshutdown`).
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
use kept::Times;

/// `status.message` of a pod that ended for a shutdown.
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Before the machine's manager is asked again after a fault.
const RECONNECT: Duration = Duration::from_secs(1);
/// How often pods that are to end are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the shutdown sees and does on its node.
#[async_trait]
pub trait ShutdownPods: Send + Sync {
    /// The pods that run.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// Ends one, with so long for its containers.
    fn end(&self, pod: &Arc<Pod>, grace: Duration);
    /// Whether containers or volumes of any of these are left.
    async fn remain(&self, pods: &[Arc<Pod>]) -> bool;
    /// Tells of the node what its event is to say.
    fn say(&self, what: &str);
    /// Keeps when it began and ended, for the kubelet that starts after it.
    async fn keep(&self, times: Times);
}

/// The machine's manager, which starts shutdowns.
#[async_trait]
pub trait Machine: Send {
    /// Takes the lock that delays a shutdown for up to `wanted`, anew where it is held already.
    async fn hold(&mut self, wanted: Duration) -> Result<(), String>;
    /// Lets the shutdown go on.
    fn release(&mut self);
    /// Waits until a shutdown is about to begin (true) or is called off (false).
    async fn next(&mut self) -> Result<bool, String>;
}

/// Ends pods before the machine does.
pub struct Shutdown<P, M> {
    /// `shutdownGracePeriodByPodPriority`, or what the other two fields say.
    pub periods: Vec<ShutdownPeriod>,
    /// The node's pods.
    pub pods: P,
    /// Makes a connection to the machine's manager.
    pub connect: Box<dyn Fn() -> M + Send + Sync>,
    /// The clock of the times that are kept.
    pub clock: Arc<dyn Clock>,
    /// Receives whether the node is on its way down.
    pub begun: watch::Sender<bool>,
}

impl<P: ShutdownPods, M: Machine> Shutdown<P, M> {
    /// Waits for shutdowns until the task is ended.
    pub async fn run(self) {
        let mut said = String::new();
        loop {
            let mut machine = (self.connect)();
            let Err(why) = self.follow(&mut machine).await;
            // Once for each reason: on a machine without such a manager it stays the same.
            if said != why {
                tracing::warn!(why, "pods would not be ended before this machine is shut down");
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
        let mut times = Times { began: Some(self.clock.now()), ended: None };
        self.pods.keep(times).await;
        for group in plan::groups(&self.periods, self.pods.active()) {
            tracing::info!(pods = group.pods.len(), period = ?group.period, "the node shuts down: pods end");
            group.pods.iter().for_each(|p| self.pods.end(p, plan::grace(p, group.period)));
            let until = Instant::now() + group.period;
            while self.pods.remain(&group.pods).await {
                if Instant::now() >= until {
                    tracing::warn!(period = ?group.period, "pods did not end in time");
                    break;
                }
                tokio::time::sleep_until((Instant::now() + LOOK_EVERY).min(until)).await;
            }
        }
        times.ended = Some(self.clock.now());
        self.pods.keep(times).await;
    }
}

#[cfg(test)]
mod tests;
