//! Pods that were promised a node, when the node changes.
use tokio::time::Instant;

use crate::evaluation::nominations::Nominations;
use crate::plugins::change::Change;
use crate::queue::Queue;

/// Tries the pods again that were promised a node. They wait for pods to leave it, and what happens there decides whether
/// that is still of use or they must look elsewhere.
pub(super) fn ask_promised_again(promised: &Nominations, queue: &mut Queue, node: &str, change: Change, now: Instant) {
    for pod in promised.on(node) {
        queue.wake(&pod.uid, change.label(), now);
    }
}
