//! The shared state of deployment syncs: caches, client and queue.
use std::collections::HashSet;
use std::sync::Arc;

use kelson_client::{Client, EventRecorder, WorkQueue};
use kelson_meta::ObjectKey;

use crate::shared::context::Context;
use crate::shared::informers::SharedInformer;
use crate::views::{DeploymentView, IndexKey, PodView, ReplicaSetView, uid_number};

/// The caches, the client and the queue of the deployment controller.
pub(super) struct DeploymentController {
    pub(super) ctx: Arc<Context>,
    pub(super) client: Client,
    pub(super) recorder: EventRecorder,
    pub(super) deployments: SharedInformer<DeploymentView>,
    pub(super) sets: SharedInformer<ReplicaSetView>,
    pub(super) pods: SharedInformer<PodView>,
    pub(super) queue: WorkQueue<ObjectKey>,
}

impl DeploymentController {
    /// Whether any pod of these sets may still run.
    pub(super) fn any_pod_runs(&self, sets: &[&ReplicaSetView]) -> bool {
        if sets.iter().any(|s| s.status.replicas > 0) {
            return true;
        }
        let uids: HashSet<u128> = sets.iter().map(|s| uid_number(&s.metadata.uid)).collect();
        uids.into_iter().any(|u| self.pods.bucket(&IndexKey::Controller(u)).iter().any(|p| !p.is_terminal()))
    }
}
