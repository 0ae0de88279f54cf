//! Waiting for resources of the node that other pods still use.
use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::oneshot;

/// Ending pods whose resources another pod waits for.
pub struct EndingPods {
    leaving: HashSet<String>,
    /// Dropping it wakes the waiting pod.
    _made: oneshot::Sender<()>,
}

/// The condition that a pod waits for before it starts: the end of other pods, or a time limit.
pub struct Wait {
    made: oneshot::Receiver<()>,
    limit: Option<Duration>,
}

impl EndingPods {
    /// Creates the wait for the pods with these UIDs, with an optional time limit.
    pub fn left_by(leaving: HashSet<String>, limit: Option<Duration>) -> (Self, Wait) {
        let (sender, made) = oneshot::channel();
        (Self { leaving, _made: sender }, Wait { made, limit })
    }

    /// Returns whether one of the pods, by UID, still runs (`runs`).
    pub fn is_taken(&mut self, runs: impl Fn(&String) -> bool) -> bool {
        self.leaving.retain(runs);
        !self.leaving.is_empty()
    }
}

impl Wait {
    /// Returns when the pods have ended or the limit has passed.
    pub async fn over(self) {
        // Completes when the sender is dropped; no value is sent.
        match self.limit {
            Some(limit) => drop(tokio::time::timeout(limit, self.made).await),
            None => drop(self.made.await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_waiting_pod_continues_when_others_ended_or_after_the_limit() {
        let limit = Duration::from_secs(45);
        let leaving = || HashSet::from(["a".to_owned(), "b".to_owned()]);
        let (mut room, wait) = EndingPods::left_by(leaving(), Some(limit));
        assert!(room.is_taken(|_| true) && room.is_taken(|uid| uid == "b"));
        let begun = Instant::now();
        let waits = kelson_tasks::scoped("waits", wait.over());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!waits.is_finished());
        assert!(!room.is_taken(|_| false));
        drop(room);
        waits.await.expect("over");
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
        let (_room, wait) = EndingPods::left_by(leaving(), Some(limit));
        let begun = Instant::now();
        wait.over().await;
        assert_eq!(begun.elapsed(), limit);
        let (_room, wait) = EndingPods::left_by(leaving(), None);
        assert!(tokio::time::timeout(limit * 1000, wait.over()).await.is_err(), "without a limit it waits");
    }
}
