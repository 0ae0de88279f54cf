//! How many pods each replica set of a deployment should have: pure arithmetic. Upstream
//! `pkg/controller/deployment/{sync,rolling,recreate}.go` and `util/deployment_util.go`.
use crate::views::{DeploymentView, IntOrString};

/// The sizes of one replica set. Lists of sets are sorted from oldest to newest where order matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetSize {
    /// `spec.replicas`.
    pub replicas: i32,
    /// `status.availableReplicas`.
    pub available: i32,
    /// Annotation `max-replicas`: the deployment's bound when the set was last sized.
    pub max_replicas: Option<i32>,
    /// Annotation `desired-replicas`: the deployment's size when the set was last sized.
    pub desired_replicas: Option<i32>,
    /// Creation time; larger is newer.
    pub created: String,
}

/// The desired state of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// `spec.replicas`.
    pub replicas: i32,
    /// The resolved `maxSurge`; 0 with the strategy Recreate.
    pub max_surge: i32,
    /// The resolved `maxUnavailable`; 0 with the strategy Recreate.
    pub max_unavailable: i32,
    /// Whether the strategy is RollingUpdate.
    pub rolling: bool,
    /// `status.replicas`: fallback when a set's annotation is lost.
    pub status_replicas: i32,
}

impl Ask {
    /// Resolves a deployment's spec. Surge rounds up, unavailability rounds down, and both are never zero.
    pub fn of(d: &DeploymentView) -> Self {
        let replicas = d.spec.replicas.unwrap_or(1);
        let rolling = d.spec.strategy.r#type != "Recreate";
        let (mut max_surge, mut max_unavailable) = (0, 0);
        if rolling {
            let ru = d.spec.strategy.rolling_update.as_ref();
            let part = |v: Option<&IntOrString>, up| v.map_or(0, |v| v.scaled(replicas, up));
            max_surge = part(ru.and_then(|r| r.max_surge.as_ref()), true);
            max_unavailable = part(ru.and_then(|r| r.max_unavailable.as_ref()), false);
            if max_surge == 0 && max_unavailable == 0 {
                max_unavailable = 1;
            }
            max_unavailable = if replicas == 0 { 0 } else { max_unavailable.min(replicas) };
        }
        Self { replicas, max_surge, max_unavailable, rolling, status_replicas: d.status.replicas }
    }
    /// Returns the maximum total number of pods.
    pub fn max_total(&self) -> i32 {
        self.replicas.saturating_add(self.max_surge)
    }
}

fn total(sets: &[SetSize]) -> i32 {
    sets.iter().map(|s| s.replicas).sum()
}

/// Returns the size that the newest set may have now, given the total of all sets including itself.
pub fn new_set_size(ask: &Ask, all_total: i32, new_replicas: i32) -> i32 {
    if !ask.rolling {
        return ask.replicas;
    }
    let room = ask.max_total() - all_total;
    if room <= 0 {
        return new_replicas;
    }
    new_replicas + room.min(ask.replicas - new_replicas)
}

/// Returns the newest set's size in a rolling update, or `None` if it does not change.
pub fn reconcile_new(ask: &Ask, old: &[SetSize], new: &SetSize) -> Option<i32> {
    if new.replicas == ask.replicas {
        return None;
    }
    if new.replicas > ask.replicas {
        return Some(ask.replicas);
    }
    let size = new_set_size(ask, total(old) + new.replicas, new.replicas);
    (size != new.replicas).then_some(size)
}

/// Returns the sizes of the old sets, the oldest first, in a rolling update. Unavailable pods of any set are removed
/// first, then available ones of the oldest sets, but never below the minimum of available pods.
pub fn reconcile_old(ask: &Ask, old: &[SetSize], new: &SetSize) -> Vec<i32> {
    let mut sizes: Vec<i32> = old.iter().map(|s| s.replicas).collect();
    if total(old) == 0 {
        return sizes;
    }
    let min_available = ask.replicas - ask.max_unavailable;
    let new_unavailable = new.replicas - new.available;
    let mut budget = total(old) + new.replicas - min_available - new_unavailable;
    if budget <= 0 {
        return sizes;
    }
    for (size, s) in sizes.iter_mut().zip(old) {
        if budget <= 0 {
            break;
        }
        let cut = budget.min(*size - s.available).max(0);
        *size -= cut;
        budget -= cut;
    }
    let available: i32 = old.iter().map(|s| s.available).sum::<i32>() + new.available;
    let mut spare = available - min_available;
    for size in &mut sizes {
        if spare <= 0 {
            break;
        }
        let cut = spare.min(*size);
        *size -= cut;
        spare -= cut;
    }
    sizes
}

/// Whether the newest set has all desired pods, and all are available.
pub fn is_saturated(ask: &Ask, new: &SetSize) -> bool {
    new.desired_replicas == Some(ask.replicas) && new.replicas == ask.replicas && new.available == ask.replicas
}

/// Whether the deployment's size changed since its sets were last sized.
pub fn is_scaling(ask: &Ask, sets: &[SetSize]) -> bool {
    sets.iter().any(|s| s.replicas > 0 && s.desired_replicas.is_some_and(|d| d != ask.replicas))
}

/// Distributes a change of the deployment's size over its active sets in proportion to their sizes. Returns the new
/// sizes in order.
pub fn proportional(ask: &Ask, sets: &[SetSize]) -> Vec<i32> {
    let allowed = if ask.replicas > 0 { ask.max_total() } else { 0 };
    let to_add = allowed - total(sets);
    let mut order: Vec<usize> = (0..sets.len()).collect();
    // Largest first; among equals the newest gains first and the oldest loses first.
    order.sort_by(|&a, &b| {
        let (a, b) = (&sets[a], &sets[b]);
        let age = if to_add > 0 { b.created.cmp(&a.created) } else { a.created.cmp(&b.created) };
        b.replicas.cmp(&a.replicas).then(age)
    });
    let mut sizes: Vec<i32> = sets.iter().map(|s| s.replicas).collect();
    let mut added = 0;
    if to_add != 0 {
        for &i in &order {
            let part = share(ask, &sets[i], to_add, added);
            sizes[i] += part;
            added += part;
        }
        if let Some(&first) = order.first() {
            sizes[first] = (sizes[first] + to_add - added).max(0);
        }
    }
    sizes
}

fn share(ask: &Ask, set: &SetSize, to_add: i32, added: i32) -> i32 {
    if set.replicas == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let fraction = fraction(ask, set);
    let left = to_add - added;
    if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
}

fn fraction(ask: &Ask, set: &SetSize) -> i32 {
    if ask.replicas == 0 {
        return -set.replicas;
    }
    let before = set.max_replicas.filter(|m| *m != 0).unwrap_or(ask.status_replicas);
    if before == 0 {
        return 0;
    }
    let size = f64::from(set.replicas) * f64::from(ask.max_total()) / f64::from(before);
    // Replica counts are far below what a float holds exactly.
    #[allow(clippy::cast_possible_truncation)]
    let rounded = size.round() as i32;
    rounded - set.replicas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: i32, available: i32) -> SetSize {
        SetSize { replicas, available, ..SetSize::default() }
    }
    fn ask(replicas: i32, max_surge: i32, max_unavailable: i32) -> Ask {
        Ask { replicas, max_surge, max_unavailable, rolling: true, status_replicas: 0 }
    }
    fn asked(replicas: i32, kind: &str, surge: serde_json::Value, unavailable: serde_json::Value) -> (i32, i32) {
        let d = serde_json::json!({"spec": {"replicas": replicas, "strategy": {"type": kind,
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}});
        let a = Ask::of(&serde_json::from_value(d).unwrap());
        (a.max_surge, a.max_unavailable)
    }

    #[test]
    fn fence_posts() {
        let p = |s: &str| serde_json::json!(s);
        let n = |i: i32| serde_json::json!(i);
        for (replicas, kind, surge, unavailable, want) in [
            (10, "RollingUpdate", p("25%"), p("25%"), (3, 2)),
            (1, "RollingUpdate", p("25%"), p("25%"), (1, 0)),
            (3, "RollingUpdate", n(0), p("10%"), (0, 1)),
            (2, "RollingUpdate", n(1), n(5), (1, 2)),
            (0, "RollingUpdate", n(1), n(5), (1, 0)),
            (5, "Recreate", n(1), n(5), (0, 0)),
        ] {
            assert_eq!(asked(replicas, kind, surge, unavailable), want, "{replicas} {kind}");
        }
    }

    #[test]
    fn newest_set() {
        for (a, old, new, want) in [
            (ask(10, 2, 0), vec![set(10, 10)], set(0, 0), Some(2)),
            (ask(10, 2, 0), vec![set(10, 10)], set(2, 0), None),
            (ask(10, 2, 0), vec![set(8, 8)], set(2, 2), Some(4)),
            (ask(10, 2, 0), vec![], set(10, 1), None),
            (ask(10, 2, 0), vec![], set(12, 1), Some(10)),
            (ask(10, 0, 2), vec![set(10, 10)], set(0, 0), None),
            (ask(3, 5, 0), vec![set(3, 3)], set(0, 0), Some(3)),
        ] {
            assert_eq!(reconcile_new(&a, &old, &new), want, "{a:?} {old:?} {new:?}");
        }
    }

    #[test]
    fn old_sets() {
        for (a, old, new, want) in [
            // Nothing new is available yet and nothing may be missing.
            (ask(10, 2, 0), vec![set(10, 10)], set(2, 0), vec![10]),
            (ask(10, 2, 0), vec![set(10, 10)], set(2, 2), vec![8]),
            (ask(10, 0, 3), vec![set(10, 10)], set(0, 0), vec![7]),
            // Unavailable ones first, whatever their age.
            (ask(10, 0, 2), vec![set(5, 5), set(5, 3)], set(0, 0), vec![5, 3]),
            (ask(10, 0, 4), vec![set(5, 5), set(5, 3)], set(0, 0), vec![3, 3]),
            (ask(10, 0, 2), vec![set(0, 0)], set(10, 8), vec![0]),
            (ask(4, 0, 4), vec![set(2, 2), set(2, 2)], set(0, 0), vec![0, 0]),
            (ask(3, 1, 1), vec![set(3, 0)], set(1, 0), vec![2]),
        ] {
            assert_eq!(reconcile_old(&a, &old, &new), want, "{a:?} {old:?} {new:?}");
        }
    }

    #[test]
    fn scaling_in_the_middle() {
        let sized = |replicas, max, created: &str| SetSize {
            replicas,
            max_replicas: Some(max),
            desired_replicas: Some(10),
            created: created.into(),
            ..SetSize::default()
        };
        // 10 to 15 in a rollout of 8 + 5 (surge 3): shares of 18.
        let sets = [sized(5, 13, "2"), sized(8, 13, "1")];
        assert_eq!(proportional(&ask(15, 3, 2), &sets), [7, 11]);
        assert_eq!(proportional(&ask(5, 3, 2), &sets), [3, 5]);
        assert_eq!(proportional(&ask(0, 3, 2), &sets), [0, 0]);
        assert!(is_scaling(&ask(15, 3, 2), &sets));
        assert!(!is_scaling(&ask(10, 3, 2), &sets));
        // The remainder goes to the largest, the newest among equals when growing.
        let even = [sized(5, 10, "1"), sized(5, 10, "2")];
        assert_eq!(proportional(&ask(11, 0, 1), &even), [5, 6]);
        assert_eq!(proportional(&ask(10, 0, 1), &even), [5, 5]);
        let lost = [SetSize { replicas: 4, ..SetSize::default() }];
        assert_eq!(proportional(&Ask { status_replicas: 4, ..ask(8, 0, 1) }, &lost), [8]);
        assert!(is_saturated(&ask(10, 0, 1), &SetSize { available: 10, ..sized(10, 10, "1") }));
        assert!(!is_saturated(&ask(10, 0, 1), &SetSize { available: 9, ..sized(10, 10, "1") }));
    }

    /// A rollout stays within its bounds and completes for any order of events.
    #[test]
    fn rollouts_converge() {
        for (replicas, surge, unavailable) in [(1, 1, 0), (3, 1, 1), (10, 3, 2), (10, 0, 1), (7, 7, 7)] {
            let a = ask(replicas, surge, unavailable);
            let mut old = vec![set(replicas, replicas)];
            let mut new = set(0, 0);
            for round in 0.. {
                assert!(round < 100, "no end: {a:?} {old:?} {new:?}");
                if let Some(n) = reconcile_new(&a, &old, &new) {
                    new.replicas = n;
                } else {
                    let sizes = reconcile_old(&a, &old, &new);
                    for (s, n) in old.iter_mut().zip(sizes) {
                        s.replicas = n;
                        s.available = s.available.min(n);
                    }
                }
                assert!(total(&old) + new.replicas <= a.max_total());
                assert!(old[0].available + new.available >= replicas - unavailable, "{a:?} {old:?} {new:?}");
                if new.available < new.replicas {
                    new.available += 1;
                }
                if new == set(replicas, replicas) && total(&old) == 0 {
                    break;
                }
            }
        }
    }
}
