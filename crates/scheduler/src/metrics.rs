//! The scheduler's counters, and their text form under upstream's names.
use std::fmt::Write as _;
use std::time::Duration;

use crate::queue::Depth;

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    /// A node was found.
    Scheduled,
    /// None was.
    Unschedulable,
    /// A fault.
    Error,
}

const RESULTS: [&str; 3] = ["scheduled", "unschedulable", "error"];
/// Upper bounds of the duration histogram, seconds: 1 ms doubling.
const BUCKETS: usize = 15;

/// Counters.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    count: [u64; 3],
    sum: [Duration; 3],
    buckets: [[u64; BUCKETS]; 3],
}

impl Metrics {
    /// Counts an attempt.
    pub fn attempt(&mut self, how: Attempt, took: Duration) {
        let k = how as usize;
        self.count[k] += 1;
        self.sum[k] += took;
        let bucket = (0..BUCKETS).find(|b| took <= Duration::from_millis(1 << b));
        if let Some(b) = bucket {
            self.buckets[k][b] += 1;
        }
    }

    /// The text exposition format.
    pub fn text(&self, profile: &str, depth: Depth) -> String {
        let mut t = String::new();
        // Writing to a String cannot fail.
        let _ =
            writeln!(t, "# HELP scheduler_schedule_attempts_total Number of attempts to schedule pods, by the result.");
        let _ = writeln!(t, "# TYPE scheduler_schedule_attempts_total counter");
        for (k, result) in RESULTS.iter().enumerate() {
            let n = self.count[k];
            let _ = writeln!(t, "scheduler_schedule_attempts_total{{profile=\"{profile}\",result=\"{result}\"}} {n}");
        }
        let name = "scheduler_scheduling_attempt_duration_seconds";
        let _ = writeln!(t, "# HELP {name} Scheduling attempt latency in seconds (scheduling algorithm).");
        let _ = writeln!(t, "# TYPE {name} histogram");
        for (k, result) in RESULTS.iter().enumerate() {
            let labels = format!("profile=\"{profile}\",result=\"{result}\"");
            let mut sum = 0;
            for (b, n) in self.buckets[k].iter().enumerate() {
                sum += n;
                let le = f64::from(1u32 << b) / 1000.0;
                let _ = writeln!(t, "{name}_bucket{{{labels},le=\"{le}\"}} {sum}");
            }
            let _ = writeln!(t, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count[k]);
            let _ = writeln!(t, "{name}_sum{{{labels}}} {}", self.sum[k].as_secs_f64());
            let _ = writeln!(t, "{name}_count{{{labels}}} {}", self.count[k]);
        }
        let _ = writeln!(t, "# HELP scheduler_pending_pods Number of pending pods, by the queue type.");
        let _ = writeln!(t, "# TYPE scheduler_pending_pods gauge");
        let queues = [
            ("active", depth.active),
            ("backoff", depth.backoff),
            ("gated", depth.gated),
            ("unschedulable", depth.unschedulable),
        ];
        for (queue, n) in queues {
            let _ = writeln!(t, "scheduler_pending_pods{{queue=\"{queue}\"}} {n}");
        }
        t
    }
}
