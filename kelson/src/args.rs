//! Groups of flags that several commands have.
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use kelson_apiserver::RuntimeConfig;
use kelson_meta::gates::FeatureGates;
use kelson_meta::parse_duration;

/// Parses `KEY=VALUE`: labels, options, amounts by resource.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The name of this machine as a node, and its address.
#[derive(Args, Debug, Clone)]
pub struct HostArgs {
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "HOST")]
    pub node_name: Option<String>,
    /// Address of this node [default: the default route's address]
    #[arg(long, value_name = "IP")]
    pub node_ip: Option<IpAddr>,
}

#[derive(Args, Debug, Clone)]
pub struct LogArgs {
    /// Log level (error, warn, info, debug, trace) or filters such as `info,kelson_store=debug`.
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "KELSON_LOG")]
    pub log_level: String,
}

/// Upstream's flags for the log verbosity.
#[derive(Args, Debug, Clone)]
pub struct VerbosityArgs {
    /// Log verbosity as upstream's; 4 and above enables debug messages.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub v: u32,
    #[command(flatten)]
    pub log: LogArgs,
}

impl VerbosityArgs {
    /// Returns the filter of the log.
    pub fn log_level(&self) -> &str {
        if self.v >= 4 && self.log.log_level == "info" { "debug" } else { &self.log.log_level }
    }
}

/// Limits of concurrent requests to the API server.
#[derive(Args, Debug, Clone)]
pub struct OverloadArgs {
    /// Enable API priority and fairness: requests are classified by flow schemas and queued by priority level. If
    /// false, there is one limit for reads and one for writes.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_priority_and_fairness: bool,
    /// Maximum number of reads in flight. With API priority and fairness, the total of seats is the sum of this and the
    /// next flag.
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Maximum number of writes in flight.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Timeout of requests other than watches and streams.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub request_timeout: Duration,
}

/// The maximum lifetime in seconds of a token that expires.
const TTL_MAX_SECONDS: u64 = 100 * 365 * 24 * 3600;

/// Parses `--feature-gates`, where a gate may be prefixed with its component (`kube:WatchList=true`), and logs changed
/// gates that have no effect in this component.
pub fn feature_gates(values: &[String], is_asked: impl Fn(&str) -> bool) -> anyhow::Result<FeatureGates> {
    let each = values.iter().flat_map(|gates| gates.split(',')).map(str::trim);
    let gates = each.map(|gate| gate.strip_prefix("kube:").unwrap_or(gate));
    let gates = FeatureGates::parse(gates).context("--feature-gates")?;
    for (name, on) in gates.changed().filter(|(name, _)| !is_asked(name)) {
        tracing::warn!(gate = name, on, "feature gate has no effect yet");
    }
    Ok(gates)
}

/// Parses the values of `--runtime-config`.
pub fn runtime_config(values: &[String]) -> anyhow::Result<RuntimeConfig> {
    RuntimeConfig::parse(values).map_err(anyhow::Error::msg).context("--runtime-config")
}

/// Parses `24h`, `1h30m`, `90s` or `90`.
pub fn parse_ttl(text: &str) -> Result<Duration, String> {
    let wrong = || format!("must be a duration such as 24h, 90m or 3600, got {text:?}");
    let (mut total, mut number) = (0u64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return Err(wrong()),
        };
        let part = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        number.clear();
    }
    if !number.is_empty() {
        total = total.checked_add(number.parse().map_err(|_| wrong())?).ok_or_else(wrong)?;
    } else if text.is_empty() {
        return Err(wrong());
    }
    if total > TTL_MAX_SECONDS {
        return Err(format!("{text:?} is too long; use 0 for a token that never expires"));
    }
    Ok(Duration::from_secs(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let seconds = |t: &str| parse_ttl(t).map(|d| d.as_secs()).ok();
        let rows = [
            ("24h", Some(86_400)),
            ("1h30m", Some(5400)),
            ("90", Some(90)),
            ("0", Some(0)),
            ("", None),
            ("h", None),
            ("1d", None),
            ("-1", None),
            ("99999999999h", None),
        ];
        for (text, want) in rows {
            assert_eq!(seconds(text), want, "{text}");
        }
    }
}
