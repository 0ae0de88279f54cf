//! Back-off for pods that their node rejected at admission. A node that rejects one pod rejects its replacement as
//! quickly, so owners wait longer after each rejection. Upstream does this only for daemon sets.
use std::collections::HashMap;
use std::time::Duration;

use kelson_client::{Backoff, Change, Object};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ownership::controller_key;
use crate::views::PodView;

/// The back-off of an owner whose pods are rejected repeatedly.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// The time without a rejection after which the back-off is reset.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(180);

/// Whether a node rejected a pod: it failed before it had any container status.
pub fn is_refused(pod: &PodView) -> bool {
    let status = &pod.status;
    &*status.phase == "Failed"
        && status.container_statuses.is_empty()
        && !pod.spec.node_name.is_empty()
        && !pod.metadata.is_deleting()
}

struct Series {
    pauses: u32,
    until: Instant,
    /// The number of pods rejected during the current pause.
    held: usize,
}

/// The rejected pods of one controller's owners.
#[derive(Default)]
pub struct Refusals {
    by_owner: Mutex<HashMap<ObjectKey, Series>>,
}

impl Refusals {
    /// Records the rejection of a changed pod for its controller, if that is an `O`.
    pub fn pod_observed<O: Object>(&self, change: &Change<PodView>) {
        let Change::Updated { old, new } = change else { return };
        if is_refused(new)
            && !is_refused(old)
            && let Some(owner) = controller_key::<O>(&new.metadata)
        {
            self.note(&owner);
        }
    }

    fn note(&self, owner: &ObjectKey) {
        let now = Instant::now();
        let mut all = self.by_owner.lock();
        all.retain(|_, series| now < series.until + FORGOTTEN_AFTER);
        let series = all.entry(owner.clone()).or_insert(Series { pauses: 0, until: now, held: 0 });
        // Pods that are rejected together count once.
        if now >= series.until {
            series.until = now + PAUSES.delay(series.pauses);
            series.pauses = series.pauses.saturating_add(1);
            series.held = 0;
        }
        series.held += 1;
    }

    /// Returns how many pods of an owner are not to be replaced yet, and the time until they are.
    pub fn held(&self, owner: &ObjectKey) -> Option<(usize, Duration)> {
        let all = self.by_owner.lock();
        let series = all.get(owner)?;
        let left = series.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some((series.held, left))
    }

    /// Removes the state of a deleted owner.
    pub fn forget(&self, owner: &ObjectKey) {
        self.by_owner.lock().remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_are_forgotten() {
        let (refusals, owner) = (Refusals::default(), ObjectKey::new("n", "a"));
        assert_eq!(refusals.held(&owner), None);
        for pause in [1, 2, 4, 8, 16, 32, 60, 60].map(Duration::from_secs) {
            refusals.note(&owner);
            refusals.note(&owner);
            assert_eq!(refusals.held(&owner), Some((2, pause)));
            tokio::time::advance(pause).await;
            assert_eq!(refusals.held(&owner), None);
        }
        tokio::time::advance(FORGOTTEN_AFTER).await;
        refusals.note(&owner);
        assert_eq!(refusals.held(&owner), Some((1, PAUSES.base)));
        refusals.forget(&owner);
        assert_eq!(refusals.held(&owner), None);
    }
}
