//! What the core asks its surroundings to do next.
use std::sync::Arc;

use kelson_meta::ObjectKey;
use tokio::time::Instant;

use super::question::{Question, RoomQuestion};
use crate::cluster::devices::DevicePlan;
use crate::cluster::storage::Plan;
use crate::plugins::table::PluginSet;
use crate::view::Pod;

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Bind this pod to the node it is now assumed on; tell the outcome by [`Core::bound`] or [`Core::failed`].
    Bind(Arc<Pod>),
    /// The same, but its volumes must be bound first.
    BindVolumes(PendingBinding),
    /// The same, but its claims must be given their devices first, and then its volumes be bound.
    BindDevices(DeviceBinding),
    /// Tell the pod's owner why it waits.
    Report(Report),
    /// Make room: tell these pods to go and the pod's owner why it waits, then [`Core::room_asked`].
    Preempt(Preemption),
    /// Ask extenders, then [`Core::answered`].
    Ask(Question),
    /// Ask extenders, then [`Core::rooms_answered`].
    AskForRoom(RoomQuestion),
    /// Nothing, until a change or this moment.
    Idle(Option<Instant>),
}

/// A pod that is assumed on its node, and what its claims need before it may run there.
#[derive(Debug)]
pub struct PendingBinding {
    /// The pod, assigned.
    pub pod: Arc<Pod>,
    /// What is to be bound and made.
    pub plan: Arc<Plan>,
}

/// A pod that is assumed on its node, and the devices that its claims get.
#[derive(Debug)]
pub struct DeviceBinding {
    /// The pod, assigned.
    pub pod: Arc<Pod>,
    pub plan: Arc<DevicePlan>,
    /// What is to be done after that.
    pub volumes: Option<PendingBinding>,
}

/// Why a pod waits.
#[derive(Debug)]
pub struct Report {
    /// The pod as it was decided on.
    pub pod: Arc<Pod>,
    /// Of its condition: `Unschedulable`, or `SchedulerError` where no node is at fault.
    pub reason: &'static str,
    pub message: String,
    /// A claim of its that is to be given other devices the next time.
    pub free: Option<ObjectKey>,
    /// The claim for its extended resources that an earlier try has left, which is to go.
    pub drop: Option<ObjectKey>,
    /// What its `nominatedNodeName` shall be; empty clears it, `None` leaves it.
    pub nominate: Option<Box<str>>,
}

/// Room to be made.
#[derive(Debug)]
pub struct Preemption {
    /// For the pod that needs it.
    pub report: Report,
    /// Pods that are deleted to make room for this one.
    pub victims: Vec<Arc<Pod>>,
    /// Less important pods that were promised this room.
    pub disappointed: Vec<Arc<Pod>>,
    pub(super) plugins: PluginSet,
}
