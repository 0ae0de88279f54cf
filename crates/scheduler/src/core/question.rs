//! Questions to extenders and their answers.
use std::sync::Arc;

use crate::evaluation::select::FitError;
use crate::view::Pod;

/// The nodes that passed the plugins' filters, for extenders to filter and score.
#[derive(Debug)]
pub struct Question {
    pub pod: Arc<Pod>,
    /// Node and the sum of the plugins' scores.
    pub nodes: Vec<(Box<str>, i64)>,
    pub(super) profile: usize,
    pub(super) unfit: FitError,
    pub(super) begun: std::time::Instant,
}

/// The nodes that extenders accept.
#[derive(Debug)]
pub struct Answer {
    /// Node and the total score.
    pub nodes: Vec<(Box<str>, i64)>,
    /// Rejected nodes: the reason, and whether preemption could help.
    pub refused: Vec<(Box<str>, String, bool)>,
}

/// Preemption victims on one node.
#[derive(Clone, Debug)]
pub struct Room {
    pub node: Box<str>,
    /// The pods that would be deleted.
    pub victims: Vec<Arc<Pod>>,
    /// The number of PodDisruptionBudgets that would be violated.
    pub violations: usize,
}

/// The preemption candidates of a pod, for extenders to choose from.
#[derive(Debug)]
pub struct RoomQuestion {
    pub pod: Arc<Pod>,
    pub rooms: Vec<Room>,
    pub(super) unfit: FitError,
}
