//! The `KubeletConfiguration` file (`kubelet.config.k8s.io/v1beta1`, `--config`). It is decoded strictly, all errors are reported at once
//! by field path, and its values are applied over a [`Config`]. Fields that Kelson knows but ignores are reported.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, before anything is served")]

mod cgroups;
mod eviction;
mod fields;
mod idle;
mod logging;
mod memory;
mod placement;
mod process;
mod published;
mod server;
mod swap;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use kelson_credentials::records::{Policy, PolicyError};
use kelson_meta::{FieldErrors, FieldPath, Quantity};
use serde_json::Value;

use crate::config::{Config, RegisterTaint};
use fields::Fields;
pub use idle::reason;
pub use logging::{LogFormat, LoggingSettings};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";
const I32_MAX: i64 = i32::MAX as i64;
/// Bounds of `crashLoopBackOff.maxContainerRestartPeriod`.
const RESTART_PERIOD_MIN: Duration = Duration::from_secs(1);
const RESTART_PERIOD_MAX: Duration = Duration::from_secs(300);
/// Minimum of `containerLogMonitorInterval`.
const LOG_LOOK_MIN: Duration = Duration::from_secs(3);
/// Default port of the kubelet's server if the file sets only an address.
pub const PORT_DEFAULT: u16 = 10250;
/// Default port of the `healthz` endpoint.
pub const HEALTHZ_PORT: u16 = 10248;

/// All errors of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to validate kubelet configuration: {}", .0.join(", "))]
pub struct ConfigurationError(pub Vec<String>);

/// Values of a file that are not part of [`Config`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSettings {
    /// Paths of fields that are set and have no effect.
    pub ignored: Vec<String>,
    /// `containerRuntimeEndpoint`; a flag overrides it.
    pub runtime_endpoint: Option<String>,
    /// `authentication.x509.clientCAFile`.
    pub client_ca_file: Option<std::path::PathBuf>,
    /// `logging`: verbosity and format.
    pub logging: LoggingSettings,
    /// `cgroupsPerQOS` is not false.
    pub cgroups_per_qos: bool,
}

/// Applies the file at `path` to `config`. Flags replace fields of the file; `flags` has the path and value of each.
///
/// # Errors
/// The file cannot be read or is invalid; `config` may then be changed in part.
pub fn load(
    path: Option<&Path>,
    flags: &[(&'static str, Value)],
    config: &mut Config,
) -> Result<FileSettings, ConfigurationError> {
    let document =
        path.map_or_else(|| Ok(format!("{{apiVersion: {API_VERSION}, kind: {KIND}}}").into_bytes()), read)?;
    apply_below(&document, flags, config)
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigurationError> {
    let fail = |why: String| ConfigurationError(vec![format!("{}: {why}", path.display())]);
    let length = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?.len();
    if length > kelson_codec::DOCUMENT_BYTES_MAX as u64 {
        return Err(fail(format!("larger than {} bytes", kelson_codec::DOCUMENT_BYTES_MAX)));
    }
    std::fs::read(path).map_err(|e| fail(e.to_string()))
}

/// Applies a document to `config`.
///
/// # Errors
/// As [`load`].
pub fn apply_to(document: &[u8], config: &mut Config) -> Result<FileSettings, ConfigurationError> {
    apply_below(document, &[], config)
}

fn apply_below(
    document: &[u8],
    flags: &[(&'static str, Value)],
    config: &mut Config,
) -> Result<FileSettings, ConfigurationError> {
    let (mut tree, duplicates) = kelson_codec::yaml::to_value(document)
        .map_err(|e| ConfigurationError(vec![format!("error decoding config: {e}")]))?;
    for (path, value) in flags {
        let value = over_file(&tree, path, value);
        put(&mut tree, path, &value);
    }
    let mut faults = FieldErrors::new();
    let laid = Layer { config, faults: &mut faults, ignored: Vec::new() }.document(&tree);
    let all: Vec<String> = duplicates.into_iter().chain(faults.0.iter().map(ToString::to_string)).collect();
    if all.is_empty() { Ok(laid) } else { Err(ConfigurationError(all)) }
}

/// Combines the value of a flag with the file's: the flag replaces the field, but a feature gate that the flag does not name keeps the
/// file's value (upstream: `kubeletConfigFlagPrecedence`).
fn over_file(tree: &Value, path: &str, value: &Value) -> Value {
    let mut value = value.clone();
    if path == "featureGates"
        && let (Some(gates), Some(of_file)) = (value.as_object_mut(), tree[path].as_object())
    {
        for (name, on) in of_file {
            gates.entry(name).or_insert_with(|| on.clone());
        }
    }
    value
}

/// Sets the value at a dotted path of fields.
fn put(tree: &mut Value, path: &str, value: &Value) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    // A parent that is not an object is reported when the file is read.
    let Some(fields) = tree.as_object_mut() else { return };
    match rest {
        None => drop(fields.insert(first.to_owned(), value.clone())),
        Some(rest) => {
            let below = fields.entry(first).or_insert(Value::Null);
            if below.is_null() {
                *below = Value::Object(serde_json::Map::new());
            }
            put(below, rest, value);
        }
    }
}

/// Applies the CPU and memory manager flags to `config`. `fields` is an object with the document's field names.
///
/// # Errors
/// As [`load`].
pub fn apply_placement(fields: &Value, config: &mut Config) -> Result<(), ConfigurationError> {
    let mut faults = FieldErrors::new();
    let mut f = Fields::of(fields, FieldPath::new(""), &mut faults);
    let mut layer = Layer { config, faults: &mut faults, ignored: Vec::new() };
    layer.reserved(&mut f);
    layer.placement(&mut f);
    layer.config.settle_reserved_cpus();
    let _ = f.finish(&[], &mut faults);
    if faults.0.is_empty() {
        Ok(())
    } else {
        Err(ConfigurationError(faults.0.iter().map(ToString::to_string).collect()))
    }
}

struct Layer<'c> {
    config: &'c mut Config,
    faults: &'c mut FieldErrors,
    /// Paths of fields that are known and have no effect.
    ignored: Vec<String>,
}

impl Layer<'_> {
    fn document(&mut self, tree: &Value) -> FileSettings {
        let mut f = Fields::of(tree, FieldPath::new(""), self.faults);
        match f.string("apiVersion", self.faults) {
            None => self.faults.required(&f.at("apiVersion"), ""),
            Some(API_VERSION) => {}
            Some(other) => self.faults.not_supported(&f.at("apiVersion"), other, &[API_VERSION]),
        }
        match f.string("kind", self.faults) {
            None => self.faults.required(&f.at("kind"), ""),
            Some(KIND) => {}
            Some(other) => self.faults.not_supported(&f.at("kind"), other, &[KIND]),
        }
        let mut laid = FileSettings { cgroups_per_qos: true, ..FileSettings::default() };
        self.pulls(&mut f);
        self.images(&mut f);
        self.node(&mut f);
        self.pods(&mut f);
        self.eviction(&mut f);
        self.shutdown(&mut f);
        self.cgroups(&mut f, &mut laid);
        self.swap(&mut f);
        self.memory(&mut f);
        self.published(&mut f);
        self.reserved(&mut f);
        self.placement(&mut f);
        self.config.settle_reserved_cpus();
        self.server(&mut f, &mut laid);
        self.process(&mut f);
        self.reported(&mut f);
        self.tracing(&mut f);
        laid.logging = self.logging(&mut f);
        if let Some(endpoint) = f.string("imageServiceEndpoint", self.faults) {
            self.config.image_endpoint = Some(endpoint.to_owned());
        }
        laid.runtime_endpoint = f.string("containerRuntimeEndpoint", self.faults).map(str::to_owned);
        laid.ignored.append(&mut self.ignored);
        laid.ignored.extend(self.idle(f));
        laid
    }

    fn pulls(&mut self, f: &mut Fields<'_>) {
        let (pulls, faults) = (&mut self.config.image_pulls, &mut *self.faults);
        let parallel = f.integer("maxParallelImagePulls", (1, I32_MAX), faults);
        let serialize = f.boolean("serializeImagePulls", faults);
        if serialize == Some(true) && parallel.is_some_and(|n| n > 1) {
            let why = "cannot be larger than 1 unless serializeImagePulls is set to false";
            faults.invalid(&f.at("maxParallelImagePulls"), parallel, why);
        }
        // Like upstream, a limit above 1 disables serialized pulls.
        pulls.serialize = serialize.unwrap_or(parallel.map_or(pulls.serialize, |n| n <= 1));
        pulls.parallel_max = parallel.and_then(|n| usize::try_from(n).ok()).or(pulls.parallel_max);
        if let Some(qps) = f.integer("registryPullQPS", (0, I32_MAX), faults) {
            pulls.qps = qps as f64;
        }
        if let Some(burst) = f.integer("registryBurst", (0, I32_MAX), faults) {
            pulls.burst = u32::try_from(burst).unwrap_or(pulls.burst);
        }
        let policy = f.string("imagePullCredentialsVerificationPolicy", faults);
        let list: Vec<String> = f
            .strings("preloadedImagesVerificationAllowlist", faults)
            .into_iter()
            .map(|(_, text)| text.to_owned())
            .collect();
        if policy.is_none() && list.is_empty() {
            return;
        }
        match Policy::parse(policy.unwrap_or_default(), &list) {
            Ok(policy) => pulls.policy = policy,
            Err(e) => {
                let of_list = !matches!(e, PolicyError::Unknown(_));
                let name = if of_list {
                    "preloadedImagesVerificationAllowlist"
                } else {
                    "imagePullCredentialsVerificationPolicy"
                };
                let value = if of_list { Value::from(list) } else { Value::from(policy) };
                faults.invalid(&f.at(name), value, e.to_string());
            }
        }
    }

    fn images(&mut self, f: &mut Fields<'_>) {
        let (config, faults) = (&mut *self.config, &mut *self.faults);
        let percent = |n: Option<i64>, old: u8| n.and_then(|n| u8::try_from(n).ok()).unwrap_or(old);
        let high = f.integer("imageGCHighThresholdPercent", (0, 100), faults);
        let low = f.integer("imageGCLowThresholdPercent", (0, 100), faults);
        config.image_gc_high_percent = percent(high, config.image_gc_high_percent);
        config.image_gc_low_percent = percent(low, config.image_gc_low_percent);
        if (high.is_some() || low.is_some()) && config.image_gc_low_percent >= config.image_gc_high_percent {
            let why = "must be less than imageGCHighThresholdPercent";
            faults.invalid(&f.at("imageGCLowThresholdPercent"), config.image_gc_low_percent, why);
        }
        // In the published form, which kubeadm writes, zero means unset.
        let age = |found: Option<Duration>| found.filter(|t| !t.is_zero());
        if let Some(least) = age(f.duration("imageMinimumGCAge", faults)) {
            config.image_gc_age_min = least;
        }
        config.image_gc_age_max = age(f.duration("imageMaximumGCAge", faults)).or(config.image_gc_age_max);
        if let Some(max) = config.image_gc_age_max.filter(|max| *max <= config.image_gc_age_min) {
            faults.invalid(&f.at("imageMaximumGCAge"), format!("{max:?}"), "must be greater than imageMinimumGCAge");
        }
        if let Some(period) = age(f.duration("containerLogMonitorInterval", faults)) {
            if period < LOG_LOOK_MIN {
                let why = "must be a positive time duration greater than or equal to 3s";
                faults.invalid(&f.at("containerLogMonitorInterval"), format!("{period:?}"), why);
            }
            config.log_look_every = period;
        }
        let every = f.duration("volumeStatsAggPeriod", faults);
        config.volume_stats_every = every.unwrap_or(config.volume_stats_every);
        if let Some(text) = f.string("containerLogMaxSize", faults) {
            match text.parse::<Quantity>().map(|q| u64::try_from(q.value())) {
                Ok(Ok(bytes)) if bytes > 0 => config.log_max_bytes = bytes,
                _ => faults.invalid(&f.at("containerLogMaxSize"), text, "must be a positive quantity"),
            }
        }
        if let Some(n) = f.integer("containerLogMaxFiles", (2, I32_MAX), faults) {
            config.log_max_files = u32::try_from(n).unwrap_or(config.log_max_files);
        }
        if let Some(dir) = f.string("podLogsDir", faults) {
            if !Path::new(dir).is_absolute() {
                faults.invalid(&f.at("podLogsDir"), dir, "must be an absolute path");
            }
            if dir.len() > 1 && dir.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
                faults.invalid(&f.at("podLogsDir"), dir, "must be normalized");
            }
            if !dir.is_ascii() {
                faults.invalid(&f.at("podLogsDir"), dir, "must contain ASCII characters only");
            }
            config.pod_logs_dir = dir.into();
        }
    }

    fn node(&mut self, f: &mut Fields<'_>) {
        let (config, faults) = (&mut *self.config, &mut *self.faults);
        config.register_node = f.boolean("registerNode", faults).unwrap_or(config.register_node);
        config.rotate_certificates = f.boolean("rotateCertificates", faults).unwrap_or(config.rotate_certificates);
        let or = |found: Option<Duration>, old: Duration| found.unwrap_or(old);
        let update = f.duration("nodeStatusUpdateFrequency", faults);
        // Like upstream, `nodeStatusReportFrequency` defaults to `nodeStatusUpdateFrequency` if only that is set.
        config.node_status_report =
            or(f.duration("nodeStatusReportFrequency", faults).or(update), config.node_status_report);
        config.node_status_update = or(update, config.node_status_update);
        if let Some(seconds) = f.integer("nodeLeaseDurationSeconds", (0, I32_MAX), faults).filter(|n| *n > 0) {
            config.lease_duration = Duration::from_secs(seconds.unsigned_abs());
        }
        for (path, value) in f.list("registerWithTaints", faults) {
            let mut t = Fields::of(value, path, faults);
            let text = |t: Option<&str>| t.unwrap_or_default().to_owned();
            let taint = RegisterTaint {
                key: text(t.string("key", faults)),
                value: text(t.string("value", faults)),
                effect: text(t.string("effect", faults)),
            };
            if taint.key.is_empty() {
                faults.required(&t.at("key"), "");
            }
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            if !effects.contains(&taint.effect.as_str()) {
                faults.not_supported(&t.at("effect"), &taint.effect, &effects);
            }
            if t.get("timeAdded").is_some() {
                faults.forbidden(&t.at("timeAdded"), "a registration taint must not have a time");
            }
            t.finish(&[], faults);
            config.register_with_taints.push(taint);
        }
    }

    fn pods(&mut self, f: &mut Fields<'_>) {
        let (config, faults) = (&mut *self.config, &mut *self.faults);
        if let Some(n) = f.integer("maxPods", (0, I32_MAX), faults).filter(|n| *n > 0) {
            config.max_pods = u32::try_from(n).unwrap_or(config.max_pods);
        }
        if let Some(n) = f.integer("podsPerCore", (0, I32_MAX), faults).filter(|n| *n > 0) {
            config.pods_per_core = u32::try_from(n).ok();
        }
        let mut back_off = f.below("crashLoopBackOff", faults);
        if let Some(max) = back_off.duration("maxContainerRestartPeriod", faults) {
            if !(RESTART_PERIOD_MIN..=RESTART_PERIOD_MAX).contains(&max) {
                let at = back_off.at("maxContainerRestartPeriod");
                faults.invalid(&at, format!("{max:?}"), "must be set between 1s and 300s");
            }
            config.restart_period_max = max;
        }
        back_off.finish(&[], faults);
        if let Some(n) = f.integer("podPidsLimit", (-1, i64::MAX), faults) {
            config.pod_max_pids = u64::try_from(n).ok().filter(|n| *n > 0);
        }
        if let Some(domain) = f.string("clusterDomain", faults) {
            config.cluster_domain = domain.to_owned();
        }
        let dns = f.strings("clusterDNS", faults);
        if !dns.is_empty() {
            config.cluster_dns.clear();
        }
        for (path, text) in dns {
            match text.parse::<IpAddr>() {
                Ok(ip) => config.cluster_dns.push(ip),
                Err(_) => faults.invalid(&path, text, "must be an IP address"),
            }
        }
        if let Some(path) = f.string("resolvConf", faults) {
            config.resolv_conf = path.into();
        }
        if let Some(path) = f.string("staticPodPath", faults) {
            config.pod_manifest_path = Some(path.into());
        }
        config.seccomp_default = f.boolean("seccompDefault", faults).unwrap_or(config.seccomp_default);
        let sysctls = f.strings("allowedUnsafeSysctls", faults);
        config.allowed_unsafe_sysctls.extend(sysctls.into_iter().map(|(_, text)| text.to_owned()));
    }
}

#[cfg(test)]
mod fields_tests;
#[cfg(test)]
mod tests;
