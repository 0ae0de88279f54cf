//! The options of audit with their defaults (upstream `server/options/audit.go`). The binary parses the command line.
use std::path::PathBuf;
use std::time::Duration;

/// All options of audit.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The value of `--audit-policy-file`. Without a policy, nothing is logged.
    pub policy_file: Option<PathBuf>,
    /// The values of `--audit-log-*`.
    pub log: LogOptions,
    /// The values of `--audit-webhook-*`.
    pub webhook: WebhookOptions,
}

/// Whether requests wait for their events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Requests do not wait. Events that do not fit in the queue are lost and counted.
    Batch,
    /// Requests wait. An event that cannot be written is lost and counted.
    Blocking,
    /// Requests wait; one whose first event cannot be written is rejected.
    BlockingStrict,
}

impl std::str::FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "batch" => Self::Batch,
            "blocking" => Self::Blocking,
            "blocking-strict" => Self::BlockingStrict,
            other => {
                return Err(format!("invalid audit mode {other}, allowed modes are batch,blocking,blocking-strict"));
            }
        })
    }
}

/// The format of events in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON document per line.
    Json,
    /// One line of plain fields, without objects.
    Legacy,
}

impl std::str::FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "json" => Self::Json,
            "legacy" => Self::Legacy,
            other => return Err(format!("invalid audit log format {other}, allowed formats are \"legacy,json\"")),
        })
    }
}

/// The batching of events (mode batch only).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batching {
    /// The maximum number of events in the queue.
    pub buffer_size: usize,
    /// The maximum number of events in a batch.
    pub batch_max: usize,
    /// The time for which a batch that is not full waits for more events.
    pub wait_max: Duration,
    /// The maximum rate in batches per second, and the burst. `None` means unlimited.
    pub throttle: Option<(f32, usize)>,
}

/// The maximum sizes of events and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Whether truncation is enabled.
    pub enabled: bool,
    /// The maximum size of a batch in bytes. A larger batch is split.
    pub batch_bytes_max: usize,
    /// The maximum size of an event in bytes. A larger event loses its objects, and is dropped if it is still too
    /// large.
    pub event_bytes_max: usize,
}

impl Default for Truncation {
    fn default() -> Self {
        Self { enabled: false, batch_bytes_max: 10 * 1024 * 1024, event_bytes_max: 100 * 1024 }
    }
}

/// The flags `--audit-log-*`.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// The path; `-` is standard output, `None` disables the log.
    pub path: Option<PathBuf>,
    /// The maximum age of rotated files in days; 0 means no limit.
    pub age_days_max: u32,
    /// The maximum number of rotated files; 0 means no limit.
    pub backups_max: usize,
    /// The size in megabytes at which the file is rotated; 0 disables rotation.
    pub size_mb_max: u64,
    /// Whether rotated files are compressed with gzip.
    pub compress: bool,
    /// The format of events.
    pub format: Format,
    /// Whether requests wait for their events.
    pub mode: Mode,
    /// The queue in batch mode.
    pub batching: Batching,
    /// The treatment of events and batches that are too large (`--audit-log-truncate-*`).
    pub truncation: Truncation,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            path: None,
            age_days_max: 366,
            backups_max: 100,
            size_mb_max: 100,
            compress: false,
            format: Format::Json,
            mode: Mode::Blocking,
            batching: Batching { buffer_size: 10_000, batch_max: 1, wait_max: Duration::ZERO, throttle: None },
            truncation: Truncation::default(),
        }
    }
}

/// The flags `--audit-webhook-*`.
#[derive(Debug, Clone)]
pub struct WebhookOptions {
    /// A kubeconfig with address and credentials; `None` disables the webhook.
    pub config_file: Option<PathBuf>,
    /// The pause before the first of four retries of a failed call.
    pub initial_backoff: Duration,
    /// Whether requests wait for their events.
    pub mode: Mode,
    /// The queue in batch mode.
    pub batching: Batching,
    /// The treatment of events and batches that are too large (`--audit-webhook-truncate-*`).
    pub truncation: Truncation,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            config_file: None,
            initial_backoff: Duration::from_secs(10),
            mode: Mode::Batch,
            batching: Batching {
                buffer_size: 10_000,
                batch_max: 400,
                wait_max: Duration::from_secs(30),
                throttle: Some((10.0, 15)),
            },
            truncation: Truncation::default(),
        }
    }
}

impl Options {
    /// Validates the options of the enabled outputs.
    ///
    /// # Errors
    /// Returns all errors, one per line.
    pub fn check(&self) -> Result<(), String> {
        let mut faults = Vec::new();
        if self.log.path.is_some() {
            check("log", self.log.mode, &self.log.batching, &self.log.truncation, &mut faults);
        }
        if self.webhook.config_file.is_some() {
            let w = &self.webhook;
            check("webhook", w.mode, &w.batching, &w.truncation, &mut faults);
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }
}

fn check(name: &str, mode: Mode, batching: &Batching, truncation: &Truncation, faults: &mut Vec<String>) {
    let mut positive = |what: &str, value: f64| {
        if value <= 0.0 {
            faults.push(format!("invalid audit {what} {value}, must be a positive number"));
        }
    };
    if mode == Mode::Batch {
        positive(&format!("batch {name} buffer size"), batching.buffer_size as f64);
        positive(&format!("batch {name} max batch size"), batching.batch_max as f64);
        if let Some((qps, burst)) = batching.throttle {
            positive(&format!("batch {name} throttle QPS"), qps.into());
            positive(&format!("batch {name} throttle burst"), burst as f64);
        }
    }
    positive(&format!("truncate {name} max event size"), truncation.event_bytes_max as f64);
    if truncation.batch_bytes_max < truncation.event_bytes_max {
        let (batch, event) = (truncation.batch_bytes_max, truncation.event_bytes_max);
        faults.push(format!(
            "invalid audit truncate {name} max batch size {batch}, must be greater than max event size ({event})"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_used_options_are_validated() {
        let mut options = Options::default();
        options.log.batching.buffer_size = 0;
        options.webhook.batching.throttle = Some((0.0, 1));
        options.webhook.truncation.event_bytes_max = usize::MAX;
        assert_eq!(options.check(), Ok(()));
        options.log.path = Some("-".into());
        assert_eq!(options.check(), Ok(()), "a log that blocks has no queue");
        options.log.mode = Mode::Batch;
        options.webhook.config_file = Some("x".into());
        let faults = options.check().unwrap_err();
        assert_eq!(faults.lines().count(), 3, "{faults}");
        assert!(faults.contains("invalid audit batch log buffer size 0, must be a positive number"), "{faults}");
    }
}
