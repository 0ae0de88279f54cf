//! Room on the node that some pods leave and another one waits for.
use std::collections::HashSet;
use std::time::Duration;

use tokio::sync::oneshot;

/// Pods on their way out, for whose resources another waits.
pub struct LeavingPods {
    leaving: HashSet<String>,
    /// Dropped when they have left.
    _made: oneshot::Sender<()>,
}

/// What a pod waits for before it starts: that others have left, but no longer than they have reason to take.
pub struct Wait {
    made: oneshot::Receiver<()>,
    limit: Option<Duration>,
}

impl LeavingPods {
    /// Room that the pods with these UIDs leave, and the wait for it, which ends at `limit` where there is one.
    pub fn left_by(leaving: HashSet<String>, limit: Option<Duration>) -> (Self, Wait) {
        let (sender, made) = oneshot::channel();
        (Self { leaving, _made: sender }, Wait { made, limit })
    }

    /// Whether one of them, by its UID, still `runs`.
    pub fn is_taken(&mut self, runs: impl Fn(&String) -> bool) -> bool {
        self.leaving.retain(runs);
        !self.leaving.is_empty()
    }
}

impl Wait {
    /// Returns when the room is given up, or the limit has passed.
    pub async fn over(self) {
        // Resolves by the end of the sender, which sends nothing.
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
    async fn who_waits_goes_on_when_all_have_left_or_take_too_long() {
        let limit = Duration::from_secs(45);
        let leaving = || HashSet::from(["a".to_owned(), "b".to_owned()]);
        let (mut room, wait) = LeavingPods::left_by(leaving(), Some(limit));
        assert!(room.is_taken(|_| true) && room.is_taken(|uid| uid == "b"));
        let begun = Instant::now();
        let waits = kelson_tasks::scoped("waits", wait.over());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!waits.is_finished());
        assert!(!room.is_taken(|_| false));
        drop(room);
        waits.await.expect("over");
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
        let (_room, wait) = LeavingPods::left_by(leaving(), Some(limit));
        let begun = Instant::now();
        wait.over().await;
        assert_eq!(begun.elapsed(), limit);
        let (_room, wait) = LeavingPods::left_by(leaving(), None);
        assert!(tokio::time::timeout(limit * 1000, wait.over()).await.is_err(), "without a limit it waits");
    }
}
