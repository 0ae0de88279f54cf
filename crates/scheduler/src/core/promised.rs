//! Pods nominated to a node, when the node changes.
use tokio::time::Instant;

use crate::evaluation::nominations::Nominations;
use crate::plugins::change::Change;
use crate::queue::Queue;

/// Requeues the pods nominated to a node. They wait for pods to leave it, and a change there decides whether the node
/// is still useful or they need another one.
pub(super) fn ask_promised_again(promised: &Nominations, queue: &mut Queue, node: &str, change: Change, now: Instant) {
    for pod in promised.on(node) {
        queue.wake(&pod.uid, change.label(), now);
    }
}
