//! The back-off of deletions of failed daemon pods, since a kubelet that rejects a pod rejects its replacement as
//! quickly. Upstream `flowcontrol.Backoff` with one second to fifteen minutes.
use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// The number of entries from which expired ones are removed.
const SWEEP_AT_MIN: usize = 256;

/// The UID of the set, its observed generation and the node. A new template starts without back-off.
pub type Key = (String, i64, String);

#[derive(Clone, Copy)]
struct Entry {
    delay: Duration,
    since: Timestamp,
}

impl Entry {
    fn age(&self, now: Timestamp) -> Duration {
        now.duration_since(self.since).try_into().unwrap_or_default()
    }
    /// Whether the entry has expired: twice the maximum delay has passed without a failure.
    fn is_over(&self, now: Timestamp) -> bool {
        self.age(now) > 2 * LONGEST
    }
}

/// The back-off of all nodes and daemon sets.
#[derive(Default)]
pub struct FailedPods {
    entries: Mutex<(HashMap<Key, Entry>, usize)>,
}

impl FailedPods {
    /// Returns `Ok` if a failed pod may be deleted now, which counts as another failure, or the remaining delay.
    pub fn may_delete(&self, key: &Key, now: Timestamp) -> Result<(), Duration> {
        let (entries, sweep_at) = &mut *self.entries.lock();
        let before = entries.get(key).copied().filter(|e| !e.is_over(now));
        if let Some(e) = before
            && let Some(left) = e.delay.checked_sub(e.age(now)).filter(|d| !d.is_zero())
        {
            return Err(left);
        }
        if entries.len() >= (*sweep_at).max(SWEEP_AT_MIN) {
            entries.retain(|_, e| !e.is_over(now));
            *sweep_at = entries.len() * 2;
        }
        let delay = before.map_or(FIRST, |e| (e.delay * 2).min(LONGEST));
        entries.insert(key.clone(), Entry { delay, since: now });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_are_forgotten() {
        let failed = FailedPods::default();
        let key = |node: &str| ("uid".to_owned(), 1, node.to_owned());
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let rows = [
            ("a", 0, Ok(())),
            ("a", 0, Err(1)),
            ("b", 0, Ok(())),
            ("a", 1, Ok(())),
            ("a", 2, Err(1)),
            ("a", 3, Ok(())),
            ("a", 4, Err(3)),
            ("a", 4000, Ok(())),
            ("a", 4000, Err(1)),
        ];
        for (node, now, want) in rows {
            assert_eq!(failed.may_delete(&key(node), at(now)), want.map_err(Duration::from_secs), "{node} {now}");
        }
        let mut now = 10_000;
        for _ in 0..20 {
            while let Err(left) = failed.may_delete(&key("a"), at(now)) {
                assert!(left <= LONGEST);
                now += i64::try_from(left.as_secs()).unwrap();
            }
        }
        assert_eq!(failed.may_delete(&key("a"), at(now)), Err(LONGEST));
    }
}
