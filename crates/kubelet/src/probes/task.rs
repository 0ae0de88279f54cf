//! One probe of one running container: initial delay, period, thresholds. Reports the first result and each change. The task ends after a
//! failed liveness or startup probe, and after a successful startup probe (upstream: `pkg/kubelet/prober/worker.go`).
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use super::{Handler, Outcome, ProbeKind, ProbeRunner, Target};

/// Timing and thresholds of a probe, with the API's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Delay of the first attempt after the container's start.
    pub initial_delay: Duration,
    /// Interval of attempts (`periodSeconds`).
    pub period: Duration,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Consecutive successes that change the result to success.
    pub successes: u32,
    /// Consecutive failures that change the result to failure.
    pub failures: u32,
}

impl Timing {
    /// Reads the timing of a probe.
    pub fn of(p: &Probe) -> Self {
        let at_least =
            |v: Option<i32>, default: u32, min: u32| v.and_then(|n| u32::try_from(n).ok()).unwrap_or(default).max(min);
        Self {
            initial_delay: Duration::from_secs(u64::from(at_least(p.initial_delay_seconds, 0, 0))),
            period: Duration::from_secs(u64::from(at_least(p.period_seconds, 10, 1))),
            timeout: Duration::from_secs(u64::from(at_least(p.timeout_seconds, 1, 1))),
            successes: at_least(p.success_threshold, 1, 1),
            failures: at_least(p.failure_threshold, 3, 1),
        }
    }
}

/// A report of a probe's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The result is known for the first time or changed.
    Result(bool),
    /// Outcome and duration of one attempt.
    Attempt(Outcome, Duration),
}

/// Reason and message of the event about an attempt; `None` after a success (upstream: `prober.go`).
pub fn complaint(kind: ProbeKind, outcome: &Outcome) -> Option<(&'static str, String)> {
    let kind = kind.word();
    match outcome {
        Outcome::Success | Outcome::FellBack(_) => None,
        Outcome::Warning(text) => Some(("ProbeWarning", format!("{kind} probe warning: {text}"))),
        Outcome::Failure(why) => Some(("Unhealthy", format!("{kind} probe failed: {why}"))),
        Outcome::Unknown(why) => {
            Some(("Unhealthy", format!("{kind} probe errored and resulted in unknown state: {why}")))
        }
    }
}

/// Runs a probe until it is done. `age`: how long the container has been running.
pub async fn run(
    kind: ProbeKind,
    probe: Probe,
    target: Target,
    age: Duration,
    runner: Arc<dyn ProbeRunner>,
    mut report: impl FnMut(Report) + Send,
) {
    let timing = Timing::of(&probe);
    let Some(handler) = Handler::of_probe(&probe) else { return };
    tokio::time::sleep(timing.initial_delay.saturating_sub(age)).await;
    let mut ticks = tokio::time::interval(timing.period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut good, mut bad) = (0u32, 0u32);
    let mut current = None;
    loop {
        ticks.tick().await;
        let began = tokio::time::Instant::now();
        let outcome = runner.run(&handler, &target, timing.timeout).await;
        report(Report::Attempt(outcome.clone(), began.elapsed()));
        let next = match outcome {
            Outcome::Success | Outcome::Warning(_) | Outcome::FellBack(_) => {
                (good, bad) = (good + 1, 0);
                (good >= timing.successes).then_some(true)
            }
            Outcome::Failure(_) => {
                (good, bad) = (0, bad + 1);
                (bad >= timing.failures).then_some(false)
            }
            Outcome::Unknown(_) => None,
        };
        let Some(next) = next.filter(|n| current != Some(*n)) else { continue };
        current = Some(next);
        report(Report::Result(next));
        let over = match kind {
            ProbeKind::Liveness => !next,
            ProbeKind::Startup => true,
            ProbeKind::Readiness => false,
        };
        if over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use serde_json::json;

    struct Script(Mutex<Vec<bool>>);

    #[async_trait]
    impl ProbeRunner for Script {
        async fn run(&self, _: &Handler, _: &Target, _: Duration) -> Outcome {
            let next = {
                let mut script = self.0.lock();
                if script.is_empty() { None } else { Some(script.remove(0)) }
            };
            match next {
                Some(true) => Outcome::Success,
                Some(false) => Outcome::Failure("no".into()),
                None => std::future::pending().await,
            }
        }
    }

    async fn results(kind: ProbeKind, script: &[bool], limit: u64) -> Vec<(u64, bool)> {
        let probe: Probe = serde_json::from_value(
            json!({"exec":{"command":["x"]},"initialDelaySeconds":5,"periodSeconds":10,"failureThreshold":2,"successThreshold":2}),
        )
        .expect("probe");
        let out = Arc::new(Mutex::new(Vec::new()));
        let began = tokio::time::Instant::now();
        let sink = Arc::clone(&out);
        let report = move |r: Report| {
            if let Report::Result(ok) = r {
                sink.lock().push((began.elapsed().as_secs(), ok));
            }
        };
        let runner = Arc::new(Script(Mutex::new(script.to_vec())));
        let task = run(kind, probe, Target::default(), Duration::ZERO, runner, report);
        let _ = tokio::time::timeout(Duration::from_secs(limit), task).await;
        out.lock().clone()
    }

    #[test]
    fn events_of_attempts() {
        let of = |outcome| complaint(ProbeKind::Readiness, &outcome);
        assert_eq!(of(Outcome::Success), None);
        assert_eq!(of(Outcome::Warning("w".into())), Some(("ProbeWarning", "Readiness probe warning: w".into())));
        assert_eq!(of(Outcome::Failure("f".into())), Some(("Unhealthy", "Readiness probe failed: f".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn thresholds_and_periods() {
        let script = [true, false, true, true, true, false, false];
        assert_eq!(results(ProbeKind::Readiness, &script, 600).await, [(35, true), (65, false)]);
        assert_eq!(results(ProbeKind::Liveness, &[true, true, false, false], 600).await, [(15, true), (35, false)]);
        assert_eq!(results(ProbeKind::Startup, &[false, true, true], 600).await, [(25, true)]);
    }
}
