//! The number of pods that a workload needs for its measured usage. No I/O here (upstream `replica_calculator.go`).
//! Values are thousandths of the metric's unit.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kelson_meta::Quantity;

use crate::shared::config::AutoscalerRules;
use crate::views::{ContainerView, PodAutoscalerSpec, PodView, milli};

/// The value of a metric for one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The time of the measurement.
    pub at: Option<Timestamp>,
    /// The window of the measurement.
    pub window: Duration,
    pub value: i64,
}

pub type Samples = BTreeMap<String, Sample>;

/// Relative deviations from a target that cause no change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    down: f64,
    up: f64,
}

impl Tolerances {
    /// Returns the tolerances of an autoscaler, or `usual` where it sets none.
    pub fn of(spec: &PodAutoscalerSpec, usual: f64) -> Self {
        let one = |text: Option<&String>| milli_exact(text).unwrap_or(usual);
        let behavior = spec.behavior.as_ref();
        Self {
            down: one(behavior.and_then(|b| b.scale_down.tolerance.as_ref())),
            up: one(behavior.and_then(|b| b.scale_up.tolerance.as_ref())),
        }
    }

    fn allow(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

#[allow(clippy::cast_precision_loss)]
fn milli_exact(text: Option<&String>) -> Option<f64> {
    let nanos = text?.parse::<Quantity>().ok()?.nanos();
    Some(nanos as f64 / 1e9)
}

/// The target of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// An average value per pod.
    Average(i64),
    /// A percentage of each pod's request.
    Utilization(i32),
}

/// The result for one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricOutcome {
    /// The number of pods that the load requires.
    pub replicas: i32,
    /// The usage, per pod or in total, depending on the metric.
    pub usage: i64,
    /// The percentage of requests, for utilization targets.
    pub utilization: Option<i32>,
}

/// The pods of a workload.
pub struct Pods<'a> {
    pub all: &'a [Arc<PodView>],
    /// The desired number of pods before this sync.
    pub current: i32,
    /// The current number of pods in the scale.
    pub there: i32,
    /// The deviations that cause no change.
    pub tolerances: Tolerances,
    /// The rules for pods that have just started.
    pub rules: AutoscalerRules,
    pub now: Timestamp,
}

/// Pods grouped by the availability of a metric.
#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

const UNREADY: &str = "did not receive metrics for targeted pods (pods might be unready)";
const NO_PODS: &str = "no pods returned by selector while calculating replica count";

impl Pods<'_> {
    fn group(&self, samples: &Samples, cpu: bool) -> Groups {
        let mut g = Groups::default();
        for p in self.all {
            let name = p.metadata.name.clone();
            let sample = samples.get(&name);
            if p.metadata.is_deleting() || p.status.phase == "Failed" {
                g.ignored.insert(name);
            } else if p.status.phase == "Pending" {
                g.unready.insert(name);
            } else if let Some(sample) = sample {
                if cpu && self.warms_up(p, *sample) {
                    g.unready.insert(name);
                } else {
                    g.ready += 1;
                }
            } else {
                g.missing.insert(name);
            }
        }
        g
    }

    /// Whether a pod's CPU usage does not count yet, because it is starting or has never been ready.
    fn warms_up(&self, pod: &PodView, sample: Sample) -> bool {
        let (Some(ready), Some(started)) = (pod.condition("Ready"), pod.status.start_time) else { return true };
        let unready = ready.status == "False";
        let changed = ready.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH);
        let after = |t: Timestamp, d: Duration| {
            let d = SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX);
            t.checked_add(d).unwrap_or(Timestamp::MAX)
        };
        if after(started, self.rules.cpu_initialization) > self.now {
            unready || sample.at.unwrap_or(Timestamp::UNIX_EPOCH) < after(changed, sample.window)
        } else {
            unready && after(started, self.rules.initial_readiness) > changed
        }
    }

    /// Returns the number of pods for a per-pod metric. For a resource metric, requests are those of `container` or of
    /// all containers.
    ///
    /// # Errors
    /// The number cannot be computed; the error is the reason.
    pub fn by_each(
        &self,
        mut samples: Samples,
        aim: Aim,
        resource: &str,
        container: &str,
    ) -> Result<MetricOutcome, String> {
        if self.all.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let g = self.group(&samples, resource == "cpu");
        samples.retain(|pod, _| !g.ignored.contains(pod) && !g.unready.contains(pod));
        if samples.is_empty() {
            return Err(UNREADY.to_owned());
        }
        let requests = match aim {
            Aim::Average(_) => BTreeMap::new(),
            Aim::Utilization(_) => requests(self.all, resource, container)?,
        };
        let (ratio, need) = self.ratio(&samples, aim, &requests)?;
        let fill_unready = !g.unready.is_empty() && ratio > 1.0;
        if !fill_unready && g.missing.is_empty() {
            let replicas = if self.tolerances.allow(ratio) { self.current } else { ceil(ratio * count(g.ready)) };
            return Ok(MetricOutcome { replicas, ..need });
        }
        // A pod without the metric gets the value that makes the change smaller.
        let guess = |pod: &String| match aim {
            _ if ratio > 1.0 => 0,
            Aim::Average(n) => n,
            Aim::Utilization(percent) => {
                requests.get(pod).copied().unwrap_or(0).saturating_mul(i64::from(percent.max(100))) / 100
            }
        };
        let made_up = |value| Sample { at: None, window: Duration::ZERO, value };
        if ratio != 1.0 {
            samples.extend(g.missing.iter().map(|p| (p.clone(), made_up(guess(p)))));
        }
        if fill_unready {
            samples.extend(g.unready.iter().map(|p| (p.clone(), made_up(0))));
        }
        let (again, _) = self.ratio(&samples, aim, &requests)?;
        let turned = (ratio < 1.0 && again > 1.0) || (ratio > 1.0 && again < 1.0);
        let hold = Ok(MetricOutcome { replicas: self.current, ..need });
        if self.tolerances.allow(again) || turned {
            return hold;
        }
        let replicas = ceil(again * count(samples.len()));
        if (again < 1.0 && replicas > self.current) || (again > 1.0 && replicas < self.current) {
            return hold;
        }
        Ok(MetricOutcome { replicas, ..need })
    }

    /// Returns the ratio of usage to target, and the usage.
    fn ratio(
        &self,
        samples: &Samples,
        aim: Aim,
        requests: &BTreeMap<String, i64>,
    ) -> Result<(f64, MetricOutcome), String> {
        let need = |usage, utilization| MetricOutcome { replicas: self.current, usage, utilization };
        match aim {
            Aim::Average(target) => {
                let total = samples.values().fold(0i64, |sum, s| sum.saturating_add(s.value));
                let usage = total / i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1);
                Ok((parts(usage, target), need(usage, None)))
            }
            Aim::Utilization(target) => {
                let known = samples.iter().filter_map(|(pod, s)| Some((s.value, *requests.get(pod)?)));
                let (mut used, mut asked, mut n) = (0i64, 0i64, 0i64);
                for (value, request) in known {
                    (used, asked, n) = (used.saturating_add(value), asked.saturating_add(request), n + 1);
                }
                if asked == 0 {
                    return Err("no metrics returned matched known pods".to_owned());
                }
                let percent = i32::try_from(i128::from(used) * 100 / i128::from(asked)).unwrap_or(i32::MAX);
                let ratio = parts(i64::from(percent), i64::from(target));
                Ok((ratio, need(used / n.max(1), Some(percent))))
            }
        }
    }

    /// Returns the number of pods for a total value with this target.
    ///
    /// # Errors
    /// There is no ready pod.
    pub fn by_total(&self, usage: i64, target: i64) -> Result<MetricOutcome, String> {
        let ratio = parts(usage, target);
        let need = |replicas| Ok(MetricOutcome { replicas, usage, utilization: None });
        if self.current == 0 {
            return need(ceil(ratio));
        }
        if self.tolerances.allow(ratio) {
            return need(self.current);
        }
        if self.all.is_empty() {
            return Err(format!("unable to calculate ready pods: {NO_PODS}"));
        }
        let ready = self.all.iter().filter(|p| p.status.phase == "Running" && p.is_ready()).count();
        need(ceil(ratio * count(ready)))
    }

    /// Returns the number of pods for a total value with an average target per pod.
    pub fn by_share(&self, usage: i64, target: i64) -> MetricOutcome {
        let each = parts(usage, i64::from(self.there));
        let hold = self.tolerances.allow(parts(usage, target.saturating_mul(i64::from(self.there))));
        let replicas = if hold { self.there } else { ceil(parts(usage, target)) };
        // Bounded by the cast, which saturates.
        #[allow(clippy::cast_possible_truncation)]
        let usage = each.ceil() as i64;
        MetricOutcome { replicas, usage, utilization: None }
    }
}

/// Returns `a / b`, or 1 for `0 / 0`.
#[allow(clippy::cast_precision_loss)]
fn parts(a: i64, b: i64) -> f64 {
    if a == 0 && b == 0 { 1.0 } else { a as f64 / b as f64 }
}

#[allow(clippy::cast_precision_loss)]
fn count(n: usize) -> f64 {
    n as f64
}

/// Rounds up. The cast saturates.
#[allow(clippy::cast_possible_truncation)]
fn ceil(n: f64) -> i32 {
    n.ceil() as i32
}

/// Returns each pod's request of a resource: of all containers and sidecars, of one container, or of the pod as a whole
/// (KEP-2837).
fn requests(pods: &[Arc<PodView>], resource: &str, container: &str) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for p in pods {
        let whole = p.spec.resources.as_ref().filter(|r| container.is_empty() && !r.requests.is_empty());
        let name = p.metadata.name.clone();
        let request = match whole.and_then(|r| milli(r.requests.get(resource))) {
            Some(n) => n,
            None => by_containers(p, resource, container).map_err(|e| match whole {
                Some(_) => format!("missing pod-level request for {resource} in Pod {name}"),
                None => e,
            })?,
        };
        all.insert(name, request);
    }
    Ok(all)
}

fn by_containers(pod: &PodView, resource: &str, container: &str) -> Result<i64, String> {
    let name = &pod.metadata.name;
    let of = |c: &ContainerView| {
        milli(c.resources.requests.get(resource))
            .ok_or_else(|| format!("missing request for {resource} in container {} of Pod {name}", c.name))
    };
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
    let mut all = pod.spec.containers.iter().chain(sidecars);
    if container.is_empty() {
        return all.try_fold(0i64, |sum, c| Ok(sum.saturating_add(of(c)?)));
    }
    let one = all.find(|c| c.name == container);
    one.map_or_else(|| Err(format!("container {container} not found in Pod {name}")), of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    /// Pods in one line: `R` ready, `P` pending, `U` never ready, `G` going, `N` ready but just started.
    fn pods(line: &str) -> Vec<Arc<PodView>> {
        let one = |(i, c): (usize, char)| {
            let ready = if c == 'U' { "False" } else { "True" };
            let started = if c == 'N' { "2026-01-01T00:59:50Z" } else { "2026-01-01T00:00:00Z" };
            let mut p = json!({"metadata": {"name": format!("p{i}")},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}}}]},
                "status": {"phase": if c == 'P' { "Pending" } else { "Running" }, "startTime": started,
                    "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": started}]}});
            if c == 'G' {
                p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(serde_json::from_value(p).unwrap())
        };
        line.chars().enumerate().map(one).collect()
    }

    /// Values of the first pods, `-` for none.
    fn samples(values: &str) -> Samples {
        let sample = |v: &str| Sample { at: Some(now()), window: Duration::from_secs(60), value: v.parse().unwrap() };
        let all = values.split_whitespace().enumerate().filter(|(_, v)| *v != "-");
        all.map(|(i, v)| (format!("p{i}"), sample(v))).collect()
    }

    fn seen(all: &[Arc<PodView>], current: i32) -> Pods<'_> {
        let tolerances = Tolerances { down: 0.1, up: 0.1 };
        Pods { all, current, there: current, tolerances, rules: AutoscalerRules::default(), now: now() }
    }

    #[test]
    fn by_utilization() {
        for (line, values, percent, want) in [
            ("RRR", "300 500 700", 30, Ok((5, 50))),
            ("RRR", "300 500 700", 50, Ok((3, 50))),
            ("RRR", "300 500 700", 48, Ok((3, 50))),
            ("RRR", "100 100 100", 50, Ok((1, 10))),
            // Who is missing uses all it asked for when there are fewer to be, nothing when there are more.
            ("RRR", "100 100 -", 50, Ok((3, 10))),
            ("RRR", "100 100 -", 80, Ok((2, 10))),
            ("RRR", "600 600 -", 50, Ok((3, 60))),
            ("RRR", "900 900 -", 50, Ok((4, 90))),
            // Who is not ready says nothing.
            ("RRU", "600 600 9000", 50, Ok((3, 60))),
            ("RRP", "900 900 -", 50, Ok((4, 90))),
            ("RRN", "600 600 9000", 50, Ok((3, 60))),
            ("RRG", "600 600 9000", 30, Ok((4, 60))),
            ("UU", "600 600", 30, Err(UNREADY)),
            ("", "600", 30, Err(NO_PODS)),
        ] {
            let all = pods(line);
            let got = seen(&all, i32::try_from(line.len()).unwrap()).by_each(
                samples(values),
                Aim::Utilization(percent),
                "cpu",
                "",
            );
            let got = got.map(|n| (n.replicas, n.utilization.unwrap()));
            assert_eq!(got, want.map_err(str::to_owned), "{line} {values} {percent}");
        }
    }

    #[test]
    fn by_average() {
        for (line, values, target, want) in [
            ("RRR", "20000 10000 10000", 15000, (3, 13333)),
            ("RRR", "10000 10000 10000", 20000, (2, 10000)),
            ("RRR", "30000 30000 -", 20000, (3, 30000)),
            ("UUU", "40000 40000 40000", 20000, (6, 40000)),
        ] {
            let all = pods(line);
            let need = seen(&all, 3).by_each(samples(values), Aim::Average(target), "", "").unwrap();
            assert_eq!((need.replicas, need.usage), want, "{line} {values} {target}");
        }
    }

    #[test]
    fn by_totals_and_shares() {
        let all = pods("RRU");
        let at = |current, usage, target| seen(&all, current).by_total(usage, target).unwrap().replicas;
        assert_eq!((at(3, 8600, 4400), at(3, 4600, 4400), at(0, 8600, 4400), at(3, 1000, 4400)), (4, 3, 2, 1));
        let share = |current, usage, target| {
            let need = seen(&all, current).by_share(usage, target);
            (need.replicas, need.usage)
        };
        assert_eq!(
            (share(3, 8600, 2000), share(3, 6000, 2000), share(3, i64::MAX, 1).0),
            ((5, 2867), (3, 2000), i32::MAX)
        );
        assert_eq!(share(0, 0, 2000).0, 0);
        assert!(seen(&[], 3).by_total(9000, 1000).is_err());
    }

    #[test]
    fn requests_must_be_there() {
        let all = pods("R");
        assert_eq!(requests(&all, "cpu", "").unwrap()["p0"], 1000);
        assert_eq!(requests(&all, "cpu", "c").unwrap()["p0"], 1000);
        assert_eq!(requests(&all, "gpu", "").unwrap_err(), "missing request for gpu in container c of Pod p0");
        assert_eq!(requests(&all, "cpu", "x").unwrap_err(), "container x not found in Pod p0");
        let mut whole = (*all[0]).clone();
        whole.spec.resources = serde_json::from_value(json!({"requests": {"cpu": "3"}})).unwrap();
        assert_eq!(requests(&[Arc::new(whole)], "cpu", "").unwrap()["p0"], 3000);
    }

    #[test]
    fn tolerances_can_be_set() {
        let spec = json!({"behavior": {"scaleUp": {"tolerance": "50m"}, "scaleDown": {}}});
        let t = Tolerances::of(&serde_json::from_value(spec).unwrap(), 0.1);
        assert_eq!(t, Tolerances { up: 0.05, down: 0.1 });
        assert!(t.allow(1.05) && !t.allow(1.06) && t.allow(0.9) && !t.allow(0.89));
    }
}
