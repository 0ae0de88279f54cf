//! When a database is defragmented and an alarm is cleared, and how slow a disk is. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// A smaller database is not worth the pause of a defragmentation.
const SIZE_MIN_BYTES: i64 = 100 << 20;
/// The share of unused space in percent from which a database is defragmented.
const UNUSED_MIN_PERCENT: i64 = 45;
/// The share of the quota in percent below which there is room again, so that the alarm is cleared.
const ROOM_PERCENT: i64 = 80;
/// The length of the time in which one member may defragment while the quota is used up and nothing can be locked.
const SLOT_S: i64 = 120;
/// The part of a slot in which a defragmentation may start.
const SLOT_START_S: i64 = 60;
/// Syncs in a window below which its percentile says nothing.
const SYNCS_MIN: f64 = 100.0;
/// etcd's rule: the 99th percentile of a sync should be below 10 ms.
pub(crate) const FSYNC_MAX: Duration = Duration::from_millis(10);
/// A leader with a slower disk hands its leadership over to a member that is at least twice as fast.
const LEADER_FSYNC_MAX: Duration = Duration::from_millis(100);

/// The database of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// The size of the file in bytes.
    pub size: i64,
    /// Bytes in use.
    pub in_use: i64,
    /// The maximum size in bytes; 0 if it is not known.
    pub quota: i64,
}

impl Space {
    /// Reports whether a defragmentation releases enough to be worth its pause.
    pub fn is_fragmented(self) -> bool {
        self.size >= SIZE_MIN_BYTES && (self.size - self.in_use) * 100 >= self.size * UNUSED_MIN_PERCENT
    }

    /// Reports whether a defragmentation would give room below the quota.
    pub fn would_have_room(self) -> bool {
        self.quota > 0 && self.in_use * 100 < self.quota * ROOM_PERCENT
    }

    /// Reports whether there is room below the quota.
    pub fn has_room(self) -> bool {
        self.quota > 0 && self.size * 100 < self.quota * ROOM_PERCENT
    }
}

/// The step that a member takes for its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceStep {
    /// There is nothing to do.
    None,
    /// It defragments, while it holds the lock.
    Defragment,
    /// It defragments without a lock, which cannot be written, in its own slot of time.
    DefragmentInSlot,
    /// It clears its alarm.
    Clear,
}

/// Decides for a member: `has_alarm` is its own alarm about space, `any_alarm` that of any member, and `waits` whether it is
/// the leader while another member is fragmented.
pub(crate) fn space_step(space: Space, has_alarm: bool, any_alarm: bool, waits: bool) -> SpaceStep {
    match () {
        () if has_alarm && space.has_room() => SpaceStep::Clear,
        () if has_alarm && space.would_have_room() => SpaceStep::DefragmentInSlot,
        () if space.is_fragmented() && !any_alarm && !waits => SpaceStep::Defragment,
        () => SpaceStep::None,
    }
}

/// Reports whether it is this member's time to defragment: members take turns by their IDs, the leader last.
pub(crate) fn is_own_slot(now_s: i64, own: u64, leader: u64, voters: &[u64]) -> bool {
    let mut order: Vec<u64> = voters.iter().copied().filter(|id| *id != leader).collect();
    order.sort_unstable();
    order.push(leader);
    let turn = usize::try_from(now_s.div_euclid(SLOT_S)).unwrap_or(0) % order.len();
    now_s.rem_euclid(SLOT_S) < SLOT_START_S && order[turn] == own
}

/// A cumulative histogram of Prometheus: the number of samples up to each bound, by the bound in nanoseconds.
pub(crate) type Buckets = BTreeMap<u64, f64>;

/// Reads a histogram from a page of metrics in Prometheus' text format.
pub(crate) fn histogram(page: &str, name: &str) -> Buckets {
    let prefix = format!("{name}_bucket{{le=\"");
    let rows = page.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once("\"} "));
    let bound = |text: &str| match text {
        "+Inf" => Some(u64::MAX),
        text => text
            .parse::<f64>()
            .ok()
            .map(|seconds| Duration::try_from_secs_f64(seconds).map_or(0, |d| d.as_nanos() as u64)),
    };
    rows.filter_map(|(le, count)| Some((bound(le)?, count.trim().parse().ok()?))).collect()
}

/// Reads one value without labels from a page of metrics.
pub(crate) fn value(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Returns the bound below which 99 % of the samples between two readings are; `None` for too few samples. Samples above the
/// last bound count as twice that.
pub(crate) fn p99(before: &Buckets, now: &Buckets) -> Option<Duration> {
    let since = |bound: &u64, count: f64| count - before.get(bound).copied().unwrap_or(0.0);
    let total = now.get(&u64::MAX).map(|count| since(&u64::MAX, *count))?;
    if total < SYNCS_MIN {
        return None;
    }
    let last = now.keys().rev().find(|bound| **bound != u64::MAX).copied().unwrap_or(0);
    let reached = now.iter().find(|(bound, count)| since(bound, **count) >= total * 0.99);
    let bound = reached.map_or(u64::MAX, |(bound, _)| *bound);
    Some(Duration::from_nanos(if bound == u64::MAX { last.saturating_mul(2) } else { bound }))
}

/// Returns the member that should lead instead of one whose disk is this slow, if there is one: the fastest of those that are
/// at least twice as fast.
pub(crate) fn faster(own: Duration, others: &[(u64, Duration)]) -> Option<u64> {
    let fastest = others.iter().min_by_key(|(_, p99)| *p99)?;
    (own > LEADER_FSYNC_MAX && fastest.1 * 2 <= own).then_some(fastest.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: i64 = 1 << 20;

    fn space(size: i64, in_use: i64) -> Space {
        Space { size: size * MB, in_use: in_use * MB, quota: 2048 * MB }
    }

    #[test]
    fn what_is_done_about_space() {
        for (space, has_alarm, any_alarm, waits, want) in [
            (space(50, 1), false, false, false, SpaceStep::None),
            (space(200, 150), false, false, false, SpaceStep::None),
            (space(200, 100), false, false, false, SpaceStep::Defragment),
            (space(200, 100), false, false, true, SpaceStep::None),
            (space(200, 100), false, true, false, SpaceStep::None),
            (space(2048, 500), true, true, true, SpaceStep::DefragmentInSlot),
            (space(2048, 2000), true, true, false, SpaceStep::None),
            (space(600, 500), true, true, false, SpaceStep::Clear),
        ] {
            assert_eq!(
                space_step(space, has_alarm, any_alarm, waits),
                want,
                "{space:?} {has_alarm} {any_alarm} {waits}"
            );
        }
    }

    #[test]
    fn members_take_turns_and_the_leader_is_last() {
        let voters = [30, 10, 20];
        let who = |now: i64| voters.into_iter().filter(|id| is_own_slot(now, *id, 10, &voters)).collect::<Vec<_>>();
        let base = SLOT_S * 3000;
        assert_eq!([who(base), who(base + SLOT_S), who(base + 2 * SLOT_S)], [vec![20], vec![30], vec![10]]);
        assert!(who(base + SLOT_START_S).is_empty(), "it may take long");
    }

    #[test]
    fn the_percentile_of_a_window() {
        let page = |low: u32, high: u32, all: u32| {
            let name = "etcd_disk_wal_fsync_duration_seconds";
            format!(
                "# HELP {name} x\n{name}_bucket{{le=\"0.001\"}} {low}\n{name}_bucket{{le=\"0.016\"}} {high}\n{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_count {all}\n"
            )
        };
        let read = |text: String| histogram(&text, "etcd_disk_wal_fsync_duration_seconds");
        let before = read(page(1000, 1000, 1000));
        let check =
            |now: String, want: Option<u64>| assert_eq!(p99(&before, &read(now)), want.map(Duration::from_millis));
        check(page(1200, 1200, 1200), Some(1));
        check(page(1190, 1200, 1200), Some(16));
        check(page(1000, 1100, 1200), Some(32));
        check(page(1050, 1050, 1050), None);
        assert_eq!(value("a_b 1\na 2.5\n", "a"), Some(2.5));
    }

    #[test]
    fn a_slow_leader_hands_over_to_a_much_faster_member() {
        let ms = Duration::from_millis;
        assert_eq!(faster(ms(200), &[(1, ms(150)), (2, ms(20))]), Some(2));
        assert_eq!(faster(ms(200), &[(1, ms(150))]), None);
        assert_eq!(faster(ms(90), &[(1, ms(1))]), None);
        assert_eq!(faster(ms(200), &[]), None);
    }
}
