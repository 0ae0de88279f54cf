//! Fields about eviction thresholds and graceful node shutdown.
use std::collections::BTreeMap;
use std::time::Duration;

use super::fields::Fields;
use super::{I32_MAX, Layer};
use crate::config::shutdown::{self, ShutdownPeriod};
use crate::config::thresholds::{Amount, DEFAULT_HARD, HardThresholds, Signal, Threshold};

/// Shortest non-zero shutdown grace period.
const PERIOD_MIN: Duration = Duration::from_secs(1);

impl Layer<'_> {
    pub(super) fn eviction(&mut self, f: &mut Fields<'_>) {
        let hard = self.thresholds(f, "evictionHard");
        let merges = f.boolean("mergeDefaultEvictionSettings", self.faults).unwrap_or(false);
        if let Some(mut hard) = hard {
            // Defaults of unnamed signals apply only with `mergeDefaultEvictionSettings`.
            let missing = |d: &&Threshold| merges && hard.iter().all(|t| t.signal != d.signal);
            let kept: Vec<Threshold> = DEFAULT_HARD.iter().filter(missing).copied().collect();
            hard.extend(kept);
            self.config.eviction.thresholds = hard;
        }
        let grace: BTreeMap<&str, Duration> = f
            .map("evictionSoftGracePeriod", self.faults)
            .into_iter()
            .filter_map(|(path, signal, text)| match kelson_meta::parse_duration(text) {
                Ok(grace) if !grace.is_zero() => Some((signal, grace)),
                Ok(_) => {
                    self.faults.invalid(&path, text, "must be greater than 0");
                    None
                }
                Err(why) => {
                    self.faults.invalid(&path, text, why.to_string());
                    None
                }
            })
            .collect();
        for mut soft in self.thresholds(f, "evictionSoft").unwrap_or_default() {
            let signal = soft.signal.name();
            let Some(grace) = grace.get(signal) else {
                let why = format!("grace period must be specified for the soft eviction threshold {signal}");
                self.faults.invalid(&f.at("evictionSoft"), signal, why);
                continue;
            };
            soft.grace = *grace;
            self.config.eviction.thresholds.push(soft);
        }
        for (path, signal, text) in f.map("evictionMinimumReclaim", self.faults) {
            match text.parse::<Amount>() {
                Ok(least) => {
                    let of = self.config.eviction.thresholds.iter_mut().filter(|t| t.signal.name() == signal);
                    of.for_each(|t| t.min_reclaim = Some(least));
                }
                Err(why) => self.faults.invalid(&path, text, why),
            }
        }
        if let Some(t) = f.duration("evictionPressureTransitionPeriod", self.faults).filter(|t| !t.is_zero()) {
            self.config.eviction.transition = t;
        }
        if let Some(n) = f.integer("evictionMaxPodGracePeriod", (0, I32_MAX), self.faults) {
            self.config.eviction.max_pod_grace = Duration::from_secs(n.unsigned_abs());
        }
    }

    /// Reads a map of signals to thresholds; `None` if it is unset. Signals of a separate container file system (`containerfs`) are
    /// accepted and ignored, like upstream, because they derive from the other signals.
    fn thresholds(&mut self, f: &mut Fields<'_>, name: &'static str) -> Option<Vec<Threshold>> {
        let all = f.map(name, self.faults);
        if all.is_empty() {
            return None;
        }
        let mut out = Vec::new();
        for (path, signal, value) in all {
            if Signal::FOLLOWING.contains(&signal) {
                self.ignored.push(path.to_string());
                continue;
            }
            match format!("{signal}<{value}").parse::<HardThresholds>() {
                Ok(one) => out.extend(one.0),
                Err(why) => self.faults.invalid(&path, value, why),
            }
        }
        Some(out)
    }

    pub(super) fn shutdown(&mut self, f: &mut Fields<'_>) {
        let all = f.duration("shutdownGracePeriod", self.faults).unwrap_or_default();
        let critical = f.duration("shutdownGracePeriodCriticalPods", self.faults).unwrap_or_default();
        for (name, period) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
            if !period.is_zero() && period < PERIOD_MIN {
                self.faults.invalid(&f.at(name), format!("{period:?}"), "must be either zero or otherwise >= 1 sec");
            }
        }
        if critical > all {
            let (at, text) = (f.at("shutdownGracePeriodCriticalPods"), format!("{critical:?}"));
            self.faults.invalid(&at, text, "must be <= shutdownGracePeriod");
        }
        let mut by_priority = Vec::new();
        let list = f.list("shutdownGracePeriodByPodPriority", self.faults);
        for (path, value) in list {
            let mut one = Fields::of(value, path, self.faults);
            let priority = one.integer("priority", (i64::from(i32::MIN), I32_MAX), self.faults).unwrap_or(0);
            let seconds = one.integer("shutdownGracePeriodSeconds", (0, I32_MAX), self.faults).unwrap_or(0);
            one.finish(&[], self.faults);
            by_priority.push(ShutdownPeriod {
                priority: i32::try_from(priority).unwrap_or(0),
                grace: Duration::from_secs(seconds.unsigned_abs()),
            });
        }
        if by_priority.is_empty() {
            self.config.shutdown = shutdown::of_two(all, critical);
            return;
        }
        if !all.is_zero() || !critical.is_zero() {
            let why = "cannot be set together with shutdownGracePeriod";
            self.faults.forbidden(&f.at("shutdownGracePeriodByPodPriority"), why);
        }
        self.config.shutdown = by_priority;
    }
}
