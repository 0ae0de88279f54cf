//! The audit flags, as in upstream's API server.
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kelson_audit::{Batching, Format, LogOptions, Mode, Options, Truncation, WebhookOptions};
use kelson_meta::parse_duration;

/// The audit policy and the destinations of audit events.
#[derive(Args, Debug, Clone)]
pub struct AuditArgs {
    /// Audit policy file (audit.k8s.io/v1 Policy): the requests to log and in which detail [default: no auditing]
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    #[command(flatten)]
    pub log: AuditLogArgs,
    #[command(flatten)]
    pub webhook: AuditWebhookArgs,
}

#[derive(Args, Debug, Clone)]
pub struct AuditLogArgs {
    /// File to write audit events to; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Days to keep rotated audit logs; 0 is without limit.
    #[arg(long, value_name = "DAYS", default_value_t = 366)]
    pub audit_log_maxage: u32,
    /// Number of rotated audit logs to keep; 0 keeps all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub audit_log_maxbackup: usize,
    /// Size in megabytes at which the audit log is rotated; 0 disables rotation.
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Compress rotated audit logs.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_compress: bool,
    /// Format of the audit log: json, or legacy, which is one line per event.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    pub audit_log_format: Format,
    /// API version of logged audit events.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = version)]
    pub audit_log_version: String,
    /// Whether requests wait for their audit events: batch (they do not), blocking, or blocking-strict, which rejects
    /// requests whose events cannot be written.
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    pub audit_log_mode: Mode,
    /// Maximum number of queued events (mode batch).
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub audit_log_batch_buffer_size: usize,
    /// Maximum number of events per batch (mode batch).
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub audit_log_batch_max_size: usize,
    /// Maximum time before a batch that is not full is written (mode batch).
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub audit_log_batch_max_wait: Duration,
    /// Limit the rate of batches (mode batch).
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_batch_throttle_enable: bool,
    /// Average number of batches per second.
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f32,
    /// Maximum number of batches in a burst.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub audit_log_batch_throttle_burst: usize,
    /// Truncate large events and split large batches.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_truncate_enabled: bool,
    /// Maximum size of a batch in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 10 * 1024 * 1024)]
    pub audit_log_truncate_max_batch_size: usize,
    /// Maximum size of an event in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100 * 1024)]
    pub audit_log_truncate_max_event_size: usize,
}

#[derive(Args, Debug, Clone)]
pub struct AuditWebhookArgs {
    /// Kubeconfig of the webhook that receives audit events.
    #[arg(long, value_name = "FILE")]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// Delay before the first retry of a failed call.
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub audit_webhook_initial_backoff: Duration,
    /// API version of sent audit events.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = version)]
    pub audit_webhook_version: String,
    /// Whether requests wait for their audit events: batch (they do not), blocking, or blocking-strict, which rejects
    /// requests whose events cannot be sent.
    #[arg(long, value_name = "MODE", default_value = "batch")]
    pub audit_webhook_mode: Mode,
    /// Maximum number of queued events (mode batch).
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub audit_webhook_batch_buffer_size: usize,
    /// Maximum number of events per batch (mode batch).
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub audit_webhook_batch_max_size: usize,
    /// Maximum time before a batch that is not full is written (mode batch).
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub audit_webhook_batch_max_wait: Duration,
    /// Limit the rate of batches (mode batch).
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Average number of batches per second.
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f32,
    /// Maximum number of batches in a burst.
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: usize,
    /// Truncate large events and split large batches.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_webhook_truncate_enabled: bool,
    /// Maximum size of a batch in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 10 * 1024 * 1024)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// Maximum size of an event in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100 * 1024)]
    pub audit_webhook_truncate_max_event_size: usize,
}

/// Checks the version of events, of which there is one.
fn version(text: &str) -> Result<String, String> {
    match text {
        "audit.k8s.io/v1" => Ok(text.to_owned()),
        _ => Err("invalid group version, allowed versions are [\"audit.k8s.io/v1\"]".to_owned()),
    }
}

impl AuditArgs {
    /// Returns the options that the flags set.
    pub fn options(&self) -> Options {
        let (log, webhook) = (&self.log, &self.webhook);
        Options {
            policy_file: self.audit_policy_file.clone(),
            log: LogOptions {
                path: log.audit_log_path.clone(),
                age_days_max: log.audit_log_maxage,
                backups_max: log.audit_log_maxbackup,
                size_mb_max: log.audit_log_maxsize,
                compress: log.audit_log_compress,
                format: log.audit_log_format,
                mode: log.audit_log_mode,
                batching: Batching {
                    buffer_size: log.audit_log_batch_buffer_size,
                    batch_max: log.audit_log_batch_max_size,
                    wait_max: log.audit_log_batch_max_wait,
                    throttle: log
                        .audit_log_batch_throttle_enable
                        .then_some((log.audit_log_batch_throttle_qps, log.audit_log_batch_throttle_burst)),
                },
                truncation: Truncation {
                    enabled: log.audit_log_truncate_enabled,
                    batch_bytes_max: log.audit_log_truncate_max_batch_size,
                    event_bytes_max: log.audit_log_truncate_max_event_size,
                },
            },
            webhook: WebhookOptions {
                config_file: webhook.audit_webhook_config_file.clone(),
                initial_backoff: webhook.audit_webhook_initial_backoff,
                mode: webhook.audit_webhook_mode,
                batching: Batching {
                    buffer_size: webhook.audit_webhook_batch_buffer_size,
                    batch_max: webhook.audit_webhook_batch_max_size,
                    wait_max: webhook.audit_webhook_batch_max_wait,
                    throttle: webhook.audit_webhook_batch_throttle_enable.then_some((
                        webhook.audit_webhook_batch_throttle_qps,
                        webhook.audit_webhook_batch_throttle_burst,
                    )),
                },
                truncation: Truncation {
                    enabled: webhook.audit_webhook_truncate_enabled,
                    batch_bytes_max: webhook.audit_webhook_truncate_max_batch_size,
                    event_bytes_max: webhook.audit_webhook_truncate_max_event_size,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        audit: AuditArgs,
    }

    #[test]
    fn the_defaults_are_those_of_the_options() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["x"], args].concat()).map(|cli| cli.audit.options());
        let (flags, options) = (parse(&[]).expect("parses"), Options::default());
        assert_eq!(format!("{flags:?}"), format!("{options:?}"));
        let given = parse(&["--audit-log-compress", "--audit-webhook-batch-throttle-enable=false"]).expect("parses");
        assert!(given.log.compress && given.webhook.batching.throttle.is_none());
        assert!(parse(&["--audit-log-mode=never"]).is_err());
        assert!(parse(&["--audit-log-version=audit.k8s.io/v1beta1"]).is_err());
    }
}
