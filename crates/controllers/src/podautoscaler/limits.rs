//! Limits of an autoscaler's changes: stabilization windows, policies and bounds. No I/O here (upstream
//! `horizontal.go`, normalizeDesiredReplicas and normalizeDesiredReplicasWithBehaviors).
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::views::{Behavior, PodAutoscalerSpec, ScalingRules};

/// The longest window that the API allows, in seconds. Older entries are dropped unless a longer window is configured.
const LONGEST_SECONDS: i64 = 3600;
/// Without `behavior`, one step at most doubles the number of pods or reaches this number.
const FREE_UP_TO: i32 = 4;

/// The recommendations and changes of one autoscaler. They are kept in memory only, as upstream.
#[derive(Clone, Debug)]
pub struct Past {
    /// The default stabilization window for scaling down, in seconds.
    down_window: i64,
    recommendations: Vec<(Timestamp, i32)>,
    /// Past changes: the time and the difference in pods.
    changes: Vec<(Timestamp, i32)>,
}

/// A decision within the limits, and its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The desired number of pods after all limits.
    pub replicas: i32,
    /// Reason and message of `AbleToScale`.
    pub able: (&'static str, &'static str),
    /// Whether a limit applies.
    pub limited: bool,
    /// Reason and message of `ScalingLimited`.
    pub limit: (&'static str, &'static str),
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_HELD: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_HELD: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");

fn seconds_before(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN)
}

impl Past {
    /// Returns an empty history.
    pub fn new(down_window: Duration) -> Self {
        let down_window = i64::try_from(down_window.as_secs()).unwrap_or(i64::MAX);
        Self { down_window, recommendations: Vec::new(), changes: Vec::new() }
    }

    /// Records the current number of pods when the autoscaler is first synced, so that it does not scale down at once
    /// after a restart.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Records a change.
    pub fn changed(&mut self, from: i32, to: i32, now: Timestamp) {
        let cutoff = seconds_before(now, LONGEST_SECONDS);
        self.changes.retain(|(at, _)| *at >= cutoff);
        self.changes.push((now, to.saturating_sub(from)));
    }

    fn recommend(&mut self, desired: i32, now: Timestamp) {
        let cutoff = seconds_before(now, LONGEST_SECONDS.max(self.down_window));
        self.recommendations.retain(|(at, _)| *at >= cutoff);
        self.recommendations.push((now, desired));
    }

    /// The recommendations of the last `seconds`.
    fn recent(&self, seconds: i64, now: Timestamp) -> impl Iterator<Item = i32> {
        let cutoff = seconds_before(now, seconds);
        self.recommendations.iter().filter(move |(at, _)| *at > cutoff).map(|(_, n)| *n)
    }

    /// Returns the number of pods at the start of a policy's period.
    fn at_start(&self, seconds: i64, current: i32, now: Timestamp) -> i32 {
        let cutoff = seconds_before(now, seconds);
        self.changes.iter().filter(|(at, _)| *at > cutoff).fold(current, |n, (_, change)| n.saturating_sub(*change))
    }

    /// Applies the limits to a recommendation and records it.
    pub fn limit(&mut self, spec: &PodAutoscalerSpec, current: i32, desired: i32, now: Timestamp) -> Limited {
        let min = spec.min_replicas.unwrap_or(1);
        let held = match &spec.behavior {
            None => self.recent(self.down_window, now).fold(desired, i32::max),
            Some(b) => self.stabilize(b, current, desired, now),
        };
        self.recommend(desired, now);
        let able = if held == desired {
            READY
        } else if spec.behavior.is_some() && desired >= current {
            UP_HELD
        } else {
            DOWN_HELD
        };
        let (replicas, limit) = match &spec.behavior {
            None => by_default(current, held, min, spec.max_replicas),
            Some(b) => self.by_behavior(b, current, held, (min, spec.max_replicas), now),
        };
        Limited { replicas, able, limited: replicas != held, limit }
    }

    /// Returns the number of pods after the stabilization windows.
    fn stabilize(&self, b: &Behavior, current: i32, desired: i32, now: Timestamp) -> i32 {
        let up = self.recent(b.scale_up.stabilization_window_seconds.unwrap_or(0), now).fold(desired, i32::min);
        let down_window = b.scale_down.stabilization_window_seconds.unwrap_or(self.down_window);
        let down = self.recent(down_window, now).fold(desired, i32::max);
        current.max(up).min(down)
    }

    fn by_behavior(
        &self,
        b: &Behavior,
        current: i32,
        desired: i32,
        (min, max): (i32, i32),
        now: Timestamp,
    ) -> (i32, (&'static str, &'static str)) {
        if desired > current {
            let rate = self.most(&b.scale_up, current, now).max(current);
            let (most, why) = if max > rate { (rate, UP_LIMIT) } else { (max, TOO_MANY) };
            if desired > most {
                return (most, why);
            }
        } else if desired < current {
            let rate = self.fewest(&b.scale_down, current, now).min(current);
            let (fewest, why) = if min < rate { (rate, DOWN_LIMIT) } else { (min, TOO_FEW) };
            if desired < fewest {
                return (fewest, why);
            }
        }
        (desired, WITHIN)
    }

    /// Returns the maximum number of pods that the policies allow now.
    fn most(&self, rules: &ScalingRules, current: i32, now: Timestamp) -> i32 {
        let allowed = rules.policies.iter().map(|p| {
            let start = self.at_start(p.period_seconds, current, now);
            match p.r#type.as_str() {
                "Pods" => start.saturating_add(p.value),
                // Rounded up, since a change of less than one pod would never happen.
                _ => percent(start, 100i64 + i64::from(p.value), true),
            }
        });
        match rules.select_policy.as_str() {
            "Disabled" => Some(current),
            "Min" => allowed.min(),
            _ => allowed.max(),
        }
        .unwrap_or(current)
    }

    /// Returns the minimum number of pods that the policies allow now.
    fn fewest(&self, rules: &ScalingRules, current: i32, now: Timestamp) -> i32 {
        let allowed = rules.policies.iter().map(|p| {
            let start = self.at_start(p.period_seconds, current, now);
            match p.r#type.as_str() {
                "Pods" => start.saturating_sub(p.value),
                _ => percent(start, 100i64 - i64::from(p.value), false),
            }
        });
        match rules.select_policy.as_str() {
            "Disabled" => Some(current),
            "Min" => allowed.max(),
            _ => allowed.min(),
        }
        .unwrap_or(current)
    }
}

fn percent(n: i32, percent: i64, up: bool) -> i32 {
    let product = i64::from(n).saturating_mul(percent);
    let part = if up { product.saturating_add(99).div_euclid(100) } else { product.div_euclid(100) };
    i32::try_from(part).unwrap_or(i32::MAX)
}

/// Applies the limits without `behavior`: at most doubled in one step.
fn by_default(current: i32, desired: i32, min: i32, max: i32) -> (i32, (&'static str, &'static str)) {
    let rate = current.saturating_mul(2).max(FREE_UP_TO);
    let (most, why) = if max > rate { (rate, UP_LIMIT) } else { (max, TOO_MANY) };
    if desired < min {
        (min, TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn past() -> Past {
        Past::new(Duration::from_secs(300))
    }

    fn spec(behavior: &Value) -> PodAutoscalerSpec {
        let s = json!({"minReplicas": 2, "maxReplicas": 20, "behavior": behavior});
        serde_json::from_value(s).unwrap()
    }

    #[test]
    fn the_window_of_those_without_a_behavior_is_configured() {
        let mut past = Past::new(Duration::from_secs(10));
        let s = spec(&Value::Null);
        assert_eq!(past.limit(&s, 10, 10, at(0)).replicas, 10);
        assert_eq!(past.limit(&s, 10, 5, at(9)).replicas, 10, "held back");
        assert_eq!(past.limit(&s, 10, 5, at(11)).replicas, 5);
    }

    #[test]
    fn without_a_behavior() {
        for (current, desired, want) in [
            (3, 3, (3, WITHIN)),
            (3, 6, (6, WITHIN)),
            (3, 7, (6, UP_LIMIT)),
            (1, 4, (4, WITHIN)),
            (15, 25, (20, TOO_MANY)),
            (3, 1, (2, TOO_FEW)),
        ] {
            let l = past().limit(&spec(&Value::Null), current, desired, at(0));
            assert_eq!((l.replicas, l.limit, l.limited), (want.0, want.1, want.0 != desired), "{current} {desired}");
        }
    }

    #[test]
    fn going_down_waits_for_five_minutes() {
        let (s, mut past) = (spec(&Value::Null), past());
        past.begin(10, at(0));
        let early = past.limit(&s, 10, 5, at(100));
        assert_eq!((early.replicas, early.able), (10, DOWN_HELD));
        let late = past.limit(&s, 10, 5, at(301));
        assert_eq!((late.replicas, late.able), (5, READY));
    }

    #[test]
    fn a_fall_counts_from_the_last_high_recommendation_however_often_it_is_looked_at() {
        use rand::{Rng as _, SeedableRng as _};
        for seed in 0..200 {
            let mut random = rand::rngs::StdRng::seed_from_u64(seed);
            let (mut past, falls_at) = (past(), random.random_range(0..100));
            past.begin(10, at(0));
            let (mut t, mut last_high) = (0, 0);
            while t < falls_at + 700 {
                t += random.random_range(1..40);
                let desired = if t <= falls_at { 10 } else { random.random_range(2..7) };
                if desired == 10 {
                    last_high = t;
                }
                let replicas = past.limit(&spec(&Value::Null), 10, desired, at(t)).replicas;
                assert_eq!(
                    replicas < 10,
                    t >= last_high + 300,
                    "seed {seed}: {replicas} at {t}, high until {last_high}"
                );
            }
        }
    }

    #[test]
    fn policies_limit_the_change_in_their_period() {
        let up = |select: &str| {
            json!({"scaleUp": {"selectPolicy": select, "stabilizationWindowSeconds": 0, "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 100, "periodSeconds": 60}]},
                "scaleDown": {"selectPolicy": select, "stabilizationWindowSeconds": 0, "policies": [
                {"type": "Pods", "value": 1, "periodSeconds": 60}, {"type": "Percent", "value": 50, "periodSeconds": 60}]}})
        };
        for (select, current, desired, want) in [
            ("Max", 3, 20, (7, UP_LIMIT)),
            ("Min", 3, 20, (6, UP_LIMIT)),
            ("Disabled", 3, 20, (3, UP_LIMIT)),
            ("Max", 15, 40, (20, TOO_MANY)),
            ("Max", 9, 2, (4, DOWN_LIMIT)),
            ("Min", 9, 2, (8, DOWN_LIMIT)),
            ("Disabled", 9, 2, (9, DOWN_LIMIT)),
            ("Max", 3, 1, (2, TOO_FEW)),
        ] {
            let l = past().limit(&spec(&up(select)), current, desired, at(0));
            assert_eq!((l.replicas, l.limit), want, "{select} {current} {desired}");
        }
        let mut past = past();
        past.changed(3, 7, at(0));
        assert_eq!(past.limit(&spec(&up("Max")), 7, 20, at(30)).replicas, 7, "all of the minute's change was made");
        assert_eq!(past.limit(&spec(&up("Max")), 7, 20, at(61)).replicas, 14);
    }

    #[test]
    fn windows_hold_back_both_ways() {
        let b = json!({"scaleUp": {"selectPolicy": "Max", "stabilizationWindowSeconds": 60, "policies": [
            {"type": "Percent", "value": 900, "periodSeconds": 15}]}, "scaleDown": {"selectPolicy": "Max",
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}});
        let mut past = past();
        past.begin(5, at(0));
        let l = past.limit(&spec(&b), 5, 9, at(30));
        assert_eq!((l.replicas, l.able), (5, UP_HELD));
        assert_eq!(past.limit(&spec(&b), 5, 8, at(80)).replicas, 8);
        let l = past.limit(&spec(&b), 8, 3, at(100));
        assert_eq!((l.replicas, l.able), (8, DOWN_HELD), "the default window");
        assert_eq!(past.limit(&spec(&b), 8, 3, at(381)).replicas, 3);
    }
}
