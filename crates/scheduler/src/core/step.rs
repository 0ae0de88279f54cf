//! Steps that the core asks its caller to carry out.
use std::sync::Arc;

use kelson_meta::ObjectKey;
use tokio::time::Instant;

use super::question::{Question, RoomQuestion};
use crate::cluster::devices::DevicePlan;
use crate::cluster::storage::Plan;
use crate::plugins::table::PluginSet;
use crate::view::Pod;

/// The next step of the caller.
#[derive(Debug)]
pub enum Step {
    /// Bind this pod to the node it is assumed on, and report the outcome by [`Core::bound`] or [`Core::failed`].
    Bind(Arc<Pod>),
    /// Bind the pod's volumes first, then the pod.
    BindVolumes(PendingBinding),
    /// Write the pod's device allocations first, then bind its volumes and the pod.
    BindDevices(DeviceBinding),
    /// Write the pod's condition and event.
    Report(Report),
    /// Delete the victims and write the pod's condition, then call [`Core::room_asked`].
    Preempt(Preemption),
    /// Ask extenders, then call [`Core::answered`].
    Ask(Question),
    /// Ask extenders about preemption, then call [`Core::rooms_answered`].
    AskForRoom(RoomQuestion),
    /// Wait for a change, or until this time.
    Idle(Option<Instant>),
}

/// A pod assumed on its node, whose volumes must be bound or provisioned.
#[derive(Debug)]
pub struct PendingBinding {
    /// The pod, assigned to its node.
    pub pod: Arc<Pod>,
    /// The volumes to bind and provision.
    pub plan: Arc<Plan>,
}

/// A pod assumed on its node, with the devices for its claims.
#[derive(Debug)]
pub struct DeviceBinding {
    /// The pod, assigned to its node.
    pub pod: Arc<Pod>,
    pub plan: Arc<DevicePlan>,
    /// The volumes to bind after that.
    pub volumes: Option<PendingBinding>,
}

/// Why a pod is not scheduled.
#[derive(Debug)]
pub struct Report {
    /// The pod as it was when decided on.
    pub pod: Arc<Pod>,
    /// Reason of the `PodScheduled` condition: `Unschedulable`, or `SchedulerError` for an error that no node caused.
    pub reason: &'static str,
    pub message: String,
    /// A claim of the pod to deallocate, so that the next attempt can choose other devices.
    pub free: Option<ObjectKey>,
    /// The claim for its extended resources that an earlier attempt left, to be deleted.
    pub drop: Option<ObjectKey>,
    /// The new `nominatedNodeName`: empty clears it, `None` leaves it.
    pub nominate: Option<Box<str>>,
}

/// A preemption to carry out.
#[derive(Debug)]
pub struct Preemption {
    /// The report for the preempting pod.
    pub report: Report,
    /// The pods to delete.
    pub victims: Vec<Arc<Pod>>,
    /// Less important pods that were nominated to this node.
    pub disappointed: Vec<Arc<Pod>>,
    pub(super) plugins: PluginSet,
}
