//! What extenders are asked, and what they answer.
use std::sync::Arc;

use crate::evaluation::select::Unfit;
use crate::view::Pod;

/// Nodes that a pod may go to as far as the plugins go, for extenders to judge.
#[derive(Debug)]
pub struct Question {
    pub pod: Arc<Pod>,
    /// With the sum of the plugins' scores.
    pub nodes: Vec<(Box<str>, i64)>,
    pub(super) profile: usize,
    pub(super) unfit: Unfit,
    pub(super) begun: std::time::Instant,
}

/// What extenders leave of the nodes.
#[derive(Debug)]
pub struct Answer {
    /// With all scores.
    pub nodes: Vec<(Box<str>, i64)>,
    /// Those that were refused: why, and whether removing pods could help.
    pub refused: Vec<(Box<str>, String, bool)>,
}

/// Pods of a node that would make room.
#[derive(Clone, Debug)]
pub struct Room {
    pub node: Box<str>,
    /// Pods that would have to go.
    pub victims: Vec<Arc<Pod>>,
    /// Budgets that would be broken.
    pub violations: usize,
}

/// Rooms that could be made for a pod, for extenders to judge.
#[derive(Debug)]
pub struct RoomQuestion {
    pub pod: Arc<Pod>,
    pub rooms: Vec<Room>,
    pub(super) unfit: Unfit,
}
