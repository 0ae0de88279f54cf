//! The flags of audit, as upstream's API server has them.
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kelson_audit::{Batching, Format, LogOptions, Mode, Options, Truncation, WebhookOptions};

use crate::args::duration;

/// Where audit events go, and which there are.
#[derive(Args, Debug, Clone)]
pub struct AuditArgs {
    /// Which requests are written down, and how fully (audit.k8s.io/v1 Policy); without it none are.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    #[command(flatten)]
    pub log: AuditLogArgs,
    #[command(flatten)]
    pub webhook: AuditWebhookArgs,
}

#[derive(Args, Debug, Clone)]
pub struct AuditLogArgs {
    /// Write audit events to this file; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Days that rotated audit logs stay; 0: for any time.
    #[arg(long, value_name = "DAYS", default_value_t = 366)]
    pub audit_log_maxage: u32,
    /// Rotated audit logs that stay; 0: any number.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub audit_log_maxbackup: usize,
    /// Megabytes from which on the audit log is rotated; 0: never.
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Compress rotated audit logs.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_compress: bool,
    /// json or legacy, which is a line of text.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    pub audit_log_format: Format,
    /// Version of the events in the log.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = version)]
    pub audit_log_version: String,
    /// Whether requests wait for their events: batch, blocking, or blocking-strict, which refuses those that cannot be written.
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    pub audit_log_mode: Mode,
    /// Events that wait at once (mode batch).
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub audit_log_batch_buffer_size: usize,
    /// Events written together (mode batch).
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub audit_log_batch_max_size: usize,
    /// How long a batch that is not full waits (mode batch).
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub audit_log_batch_max_wait: Duration,
    /// Whether batches are held to a rate (mode batch).
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches a second on average.
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f32,
    /// Batches at once after a pause.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub audit_log_batch_throttle_burst: usize,
    /// Whether large events lose their objects, and large batches are split.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_truncate_enabled: bool,
    /// Bytes of a batch.
    #[arg(long, value_name = "BYTES", default_value_t = 10 * 1024 * 1024)]
    pub audit_log_truncate_max_batch_size: usize,
    /// Bytes of an event.
    #[arg(long, value_name = "BYTES", default_value_t = 100 * 1024)]
    pub audit_log_truncate_max_event_size: usize,
}

#[derive(Args, Debug, Clone)]
pub struct AuditWebhookArgs {
    /// Send audit events to the server of this kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// Pause before a call that failed is repeated for the first time.
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub audit_webhook_initial_backoff: Duration,
    /// Version of the events that are sent.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = version)]
    pub audit_webhook_version: String,
    /// Whether requests wait for their events: batch, blocking, or blocking-strict, which refuses those that cannot be sent.
    #[arg(long, value_name = "MODE", default_value = "batch")]
    pub audit_webhook_mode: Mode,
    /// Events that wait at once (mode batch).
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub audit_webhook_batch_buffer_size: usize,
    /// Events sent together (mode batch).
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub audit_webhook_batch_max_size: usize,
    /// How long a batch that is not full waits (mode batch).
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub audit_webhook_batch_max_wait: Duration,
    /// Whether batches are held to a rate (mode batch).
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches a second on average.
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f32,
    /// Batches at once after a pause.
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: usize,
    /// Whether large events lose their objects, and large batches are split.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_webhook_truncate_enabled: bool,
    /// Bytes of a batch.
    #[arg(long, value_name = "BYTES", default_value_t = 10 * 1024 * 1024)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// Bytes of an event.
    #[arg(long, value_name = "BYTES", default_value_t = 100 * 1024)]
    pub audit_webhook_truncate_max_event_size: usize,
}

/// There is one version of events.
fn version(text: &str) -> Result<String, String> {
    match text {
        "audit.k8s.io/v1" => Ok(text.to_owned()),
        _ => Err("invalid group version, allowed versions are [\"audit.k8s.io/v1\"]".to_owned()),
    }
}

impl AuditArgs {
    /// What the flags say.
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
