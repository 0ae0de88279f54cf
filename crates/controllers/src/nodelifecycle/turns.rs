//! Adds `NoExecute` taints to nodes that are not ready, at the rate of their zone, and to none while no node of the
//! cluster is ready.
use std::sync::atomic::Ordering;
use std::time::Duration;

use kelson_client::{PatchKind, WriteOptions};
use kelson_meta::{ObjectKey, format_seconds};
use serde_json::json;
use tokio::time::Instant;

use super::taints::{self, NoExecute};
use super::zones::{self, Turn};
use super::{NodeLifecycleController, NodeWork, ZONES_DELAY};
use crate::shared::context::SyncError;
use crate::views::NodeView;

/// The time without any ready node after which the log says so. A server that restarts restarts its node as well.
const LOSS_LOGGED_AFTER: Duration = Duration::from_secs(60);

impl NodeLifecycleController {
    /// Updates the taints that follow conditions. The `NoExecute` taint waits for the zone's rate limit.
    pub(super) async fn follow_conditions(&self, node: &NodeView) -> Result<(), SyncError> {
        let execute = if self.zones.lock().all_lost() { NoExecute::TakeBack } else { NoExecute::AsItIs };
        self.taint(node, execute).await?;
        let name = &node.metadata.name;
        if !taints::awaits_turn(node) {
            self.zones.lock().leave(name);
        } else {
            self.zones.lock().wait(&zones::zone_of(node), name);
            self.queue.add_after(NodeWork::Zones, ZONES_DELAY);
        }
        Ok(())
    }

    /// Computes the states of all zones and schedules the next taint in each zone with waiting nodes.
    pub(super) fn look_at_zones(&self) {
        let nodes = self.nodes.list();
        let counts = zones::count(nodes.iter().map(|n| &**n));
        if counts.values().any(|c| c.unhealthy < c.nodes) {
            self.any_was_ready.store(true, Ordering::Relaxed);
        }
        let mut zones = self.zones.lock();
        let turn = zones.update(&counts);
        for (zone, count) in zones.counts() {
            let (all, unhealthy) = (count.nodes as f64, count.unhealthy as f64);
            self.metrics.size.with_label_values(&[zone]).set(all);
            self.metrics.unhealthy.with_label_values(&[zone]).set(unhealthy);
            let health = if count.nodes == 0 { 100.0 } else { 100.0 * (all - unhealthy) / all };
            self.metrics.health.with_label_values(&[zone]).set(health);
        }
        for (zone, delay) in zones.due(Instant::now()) {
            self.queue.add_after(NodeWork::Zone(zone), delay);
        }
        drop(zones);
        match turn {
            Turn::Same => return,
            // When a cluster starts, no node can be ready yet.
            Turn::AllLost if !self.any_was_ready.load(Ordering::Relaxed) => {}
            Turn::AllLost => self.queue.add_after(NodeWork::AllLost, LOSS_LOGGED_AFTER),
            Turn::SomeBack => {
                if self.loss_is_logged.swap(false, Ordering::Relaxed) {
                    tracing::info!("a node is ready again; resuming evictions");
                }
                // No heartbeat was possible meanwhile, so all nodes get the full grace period again.
                let now = Instant::now();
                self.heard.lock().values_mut().for_each(|heard| *heard = now);
            }
        }
        for node in nodes {
            self.queue.add(NodeWork::Node(node.metadata.name.clone()));
        }
    }

    /// Logs that no node is ready, if that is so after a while.
    pub(super) fn log_loss(&self) {
        if self.zones.lock().all_lost() && !self.loss_is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!("no node has been ready for {LOSS_LOGGED_AFTER:?}; evictions are suspended");
        }
    }

    /// Taints the node of a zone that has waited longest.
    pub(super) async fn turn(&self, zone: &str) -> Result<(), SyncError> {
        // Other nodes may have changed since the timer was set.
        self.look_at_zones();
        let Some(name) = self.zones.lock().take(zone, Instant::now()) else { return Ok(()) };
        if let Some(node) = self.nodes.get(&ObjectKey::new("", &name)).filter(|n| taints::awaits_turn(n)) {
            if let Err(e) = self.taint(&node, NoExecute::Put).await {
                self.zones.lock().wait(zone, &name);
                return Err(e);
            }
            self.metrics.evictions.with_label_values(&[zone]).inc();
        }
        self.queue.add_after(NodeWork::Zones, ZONES_DELAY);
        Ok(())
    }

    async fn taint(&self, node: &NodeView, execute: NoExecute) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let Some(taints) = taints::desired(node, execute, &now) else { return Ok(()) };
        let m = &node.metadata;
        let patch = json!({"metadata": {"resourceVersion": m.resource_version}, "spec": {"taints": taints}});
        let o = WriteOptions::default();
        match self.client.patch::<NodeView>("", &m.name, "", PatchKind::Merge, &patch, &o).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}
