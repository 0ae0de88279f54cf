//! Counters of credentials and pulls, and their classic text form. Registering them somewhere is the node agent's.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bounds of the duration buckets, seconds.
pub const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The numbers of one plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PluginStats {
    /// Failed runs: process, protocol or answer.
    pub errors: u64,
    /// Runs by bucket (not cumulative); the last is beyond all bounds.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Seconds of all runs together.
    pub seconds: f64,
}

impl PluginStats {
    /// All runs.
    pub fn runs(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The counters; one per node.
#[derive(Debug, Default)]
pub struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    plugins: BTreeMap<String, PluginStats>,
    config_hash: String,
    reloads: [u64; 2],
    must_pull: BTreeMap<&'static str, u64>,
    ensured: BTreeMap<(String, &'static str, &'static str), u64>,
}

impl Metrics {
    /// A plugin ran for so long.
    pub(crate) fn ran(&self, plugin: &str, took: Duration, fine: bool) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|b| seconds <= *b).unwrap_or(BUCKETS.len());
        let mut inner = self.inner.lock();
        let stats = match inner.plugins.get_mut(plugin) {
            Some(s) => s,
            None => inner.plugins.entry(plugin.to_owned()).or_default(),
        };
        stats.buckets[bucket] += 1;
        stats.seconds += seconds;
        stats.errors += u64::from(!fine);
    }

    pub(crate) fn set_config_hash(&self, hash: &str) {
        hash.clone_into(&mut self.inner.lock().config_hash);
    }

    pub(crate) fn reloaded(&self, fine: bool) {
        self.inner.lock().reloads[usize::from(fine)] += 1;
    }

    pub(crate) fn must_pull(&self, result: &'static str) {
        *self.inner.lock().must_pull.entry(result).or_default() += 1;
    }

    pub(crate) fn ensured(&self, policy: &str, present: &'static str, required: &'static str) {
        *self.inner.lock().ensured.entry((policy.to_ascii_lowercase(), present, required)).or_default() += 1;
    }

    /// The numbers of a plugin.
    pub fn plugin(&self, name: &str) -> PluginStats {
        self.inner.lock().plugins.get(name).copied().unwrap_or_default()
    }

    /// Failed and successful reloads.
    pub fn reloads(&self) -> (u64, u64) {
        let [failed, fine] = self.inner.lock().reloads;
        (failed, fine)
    }

    /// Appends the classic Prometheus text.
    pub fn encode(&self, out: &mut String) {
        let inner = self.inner.lock();
        inner.encode_plugins(out);
        if !inner.config_hash.is_empty() {
            let name = "kubelet_credential_provider_config_info";
            head(
                out,
                name,
                "gauge",
                "Information about the last applied credential provider configuration with hash as label",
            );
            line(out, name, &[("hash", &inner.config_hash)], 1.0);
        }
        let name = "kubelet_credential_provider_config_reloads_total";
        head(out, name, "counter", "Number of changes of the credential provider configuration by result");
        line(out, name, &[("result", "failure")], inner.reloads[0] as f64);
        line(out, name, &[("result", "success")], inner.reloads[1] as f64);
        let name = "kubelet_imagemanager_image_mustpull_checks_total";
        head(
            out,
            name,
            "counter",
            "Counter for how many times kubelet checked whether credentials need to be re-verified to access an image",
        );
        for (result, n) in &inner.must_pull {
            line(out, name, &[("result", result)], *n as f64);
        }
        let name = "kubelet_image_manager_ensure_image_requests_total";
        head(out, name, "counter", "Number of ensure-image requests processed by the kubelet.");
        for ((policy, present, required), n) in &inner.ensured {
            let labels =
                [("present_locally", *present), ("pull_policy", policy.as_str()), ("pull_required", *required)];
            line(out, name, &labels, *n as f64);
        }
    }
}

/// Appends how many records of pulls are on disk.
pub(crate) fn encode_records(out: &mut String, intents: usize, pulled: usize) {
    for (name, help, n) in [
        ("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.", intents),
        ("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.", pulled),
    ] {
        head(out, name, "gauge", help);
        let _ = writeln!(out, "{name} {n}");
    }
}

impl Inner {
    fn encode_plugins(&self, out: &mut String) {
        let name = "kubelet_credential_provider_plugin_errors_total";
        head(out, name, "counter", "Number of errors from credential provider plugin");
        for (plugin, s) in self.plugins.iter().filter(|(_, s)| s.errors > 0) {
            line(out, name, &[("plugin_name", plugin)], s.errors as f64);
        }
        let name = "kubelet_credential_provider_plugin_duration";
        head(out, name, "histogram", "Duration of execution in seconds for credential provider plugin");
        for (plugin, s) in &self.plugins {
            let mut sum = 0;
            for (i, n) in s.buckets.iter().enumerate() {
                sum += n;
                let le = BUCKETS.get(i).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
                line(out, &format!("{name}_bucket"), &[("plugin_name", plugin), ("le", &le)], sum as f64);
            }
            line(out, &format!("{name}_sum"), &[("plugin_name", plugin)], s.seconds);
            line(out, &format!("{name}_count"), &[("plugin_name", plugin)], sum as f64);
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} [ALPHA] {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    let escape = |v: &str| v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
    let _ = writeln!(out, "{name}{{{}}} {value}", labels.join(","));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let m = Metrics::default();
        m.ran("ecr", Duration::from_millis(200), true);
        m.ran("ecr", Duration::from_secs(60), false);
        m.set_config_hash("sha256:ab");
        let mut out = String::new();
        m.encode(&mut out);
        for want in [
            "kubelet_credential_provider_plugin_errors_total{plugin_name=\"ecr\"} 1\n",
            "# TYPE kubelet_credential_provider_plugin_duration histogram\n",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"ecr\",le=\"0.1\"} 0\n",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"ecr\",le=\"0.25\"} 1\n",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"ecr\",le=\"+Inf\"} 2\n",
            "kubelet_credential_provider_plugin_duration_sum{plugin_name=\"ecr\"} 60.2\n",
            "kubelet_credential_provider_plugin_duration_count{plugin_name=\"ecr\"} 2\n",
            "kubelet_credential_provider_config_info{hash=\"sha256:ab\"} 1\n",
        ] {
            assert!(out.contains(want), "{want} in\n{out}");
        }
    }
}
