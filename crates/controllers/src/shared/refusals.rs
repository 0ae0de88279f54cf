//! Pods that their node refused: owners wait longer and longer before they make another one, since a node that refuses a
//! pod refuses the next one just as fast. Upstream does this for daemon sets alone.
use std::collections::HashMap;
use std::time::Duration;

use kelson_client::{Backoff, Change, Object};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ownership::controller_key;
use crate::views::PodView;

/// Pauses of an owner whose pods are refused one after the other.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// After this without a refusal the past is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(180);

/// Whether a node refused a pod: it failed before any of its containers was there.
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
    /// Refused in this pause.
    held: usize,
}

/// The refusals that the owners of one controller met.
#[derive(Default)]
pub struct Refusals {
    by_owner: Mutex<HashMap<ObjectKey, Series>>,
}

impl Refusals {
    /// Notes what a change of a pod says of its controller, if that is an `O`.
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
        // Pods that are refused together count as one.
        if now >= series.until {
            series.until = now + PAUSES.delay(series.pauses);
            series.pauses = series.pauses.saturating_add(1);
            series.held = 0;
        }
        series.held += 1;
    }

    /// How many pods of an owner are not replaced yet, and for how long.
    pub fn held(&self, owner: &ObjectKey) -> Option<(usize, Duration)> {
        let all = self.by_owner.lock();
        let series = all.get(owner)?;
        let left = series.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some((series.held, left))
    }

    /// The owner is gone.
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
