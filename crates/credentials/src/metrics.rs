//! What is counted of credential provider plugins, their configuration, and pulls, under upstream's names.
use std::time::Duration;

use kelson_metrics::{Families, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

/// Upper bounds of the duration buckets, seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The numbers of one plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PluginStats {
    /// Times the plugin's process was run, whatever came of it.
    pub runs: u64,
    /// Failed runs: process, protocol or answer.
    pub errors: u64,
    /// Seconds of all runs together.
    pub seconds: f64,
}

/// The metrics; one instance per node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    errors: IntCounterVec,
    durations: HistogramVec,
    config_hash: IntGaugeVec,
    reloads: IntCounterVec,
    processes: IntGaugeVec,
    must_pull: IntCounterVec,
    ensured: IntCounterVec,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&Registry::new())
    }
}

impl Metrics {
    /// Nothing counted yet; shown by `registry`, once.
    pub fn new(registry: &Registry) -> Self {
        let reloads = registry.counters(
            "kubelet_credential_provider_config_reloads_total",
            "Reloads of the credential provider configuration, by result.",
            &["result"],
        );
        for result in ["failure", "success"] {
            reloads.with_label_values(&[result]);
        }
        Self {
            registry: registry.clone(),
            errors: registry.counters(
                "kubelet_credential_provider_plugin_errors_total",
                "Failed runs of credential provider plugins, by plugin.",
                &["plugin_name"],
            ),
            durations: registry.histograms(
                "kubelet_credential_provider_plugin_duration",
                "Run time of credential provider plugins in seconds.",
                &["plugin_name"],
                &BUCKETS,
            ),
            config_hash: registry.gauges(
                "kubelet_credential_provider_config_info",
                "Constant 1, labelled with the hash of the current credential provider configuration.",
                &["hash"],
            ),
            reloads,
            processes: registry.gauges(
                "kelson_credential_provider_plugin_processes",
                "Runs of credential provider plugins by state: running, or waiting for a free process.",
                &["state"],
            ),
            must_pull: registry.counters(
                "kubelet_imagemanager_image_mustpull_checks_total",
                "Checks whether a pod needs credentials for a present image, by result.",
                &["result"],
            ),
            ensured: registry.counters(
                "kubelet_image_manager_ensure_image_requests_total",
                "Requests for container images, by pull policy, presence of the image and whether a pull was required.",
                &["pull_policy", "present_locally", "pull_required"],
            ),
        }
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a run of a plugin.
    pub(crate) fn ran(&self, plugin: &str, took: Duration, fine: bool) {
        self.durations.with_label_values(&[plugin]).observe(took.as_secs_f64());
        if !fine {
            self.errors.with_label_values(&[plugin]).inc();
        }
    }

    /// Counts a run in this state, `waiting` or `running`, until what is returned is dropped.
    pub(crate) fn process(&self, state: &'static str) -> Process {
        let gauge = self.processes.with_label_values(&[state]);
        gauge.inc();
        Process(gauge)
    }

    /// Says how many plugin processes may run at once.
    pub(crate) fn set_processes_max(&self, max: usize) {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        self.processes.with_label_values(&["allowed"]).set(max);
    }

    /// Runs in this state.
    pub fn processes(&self, state: &'static str) -> i64 {
        self.processes.with_label_values(&[state]).get()
    }

    pub(crate) fn set_config_hash(&self, hash: &str) {
        self.config_hash.reset();
        self.config_hash.with_label_values(&[hash]).set(1);
    }

    pub(crate) fn reloaded(&self, fine: bool) {
        self.reloads.with_label_values(&[if fine { "success" } else { "failure" }]).inc();
    }

    pub(crate) fn must_pull(&self, result: &'static str) {
        self.must_pull.with_label_values(&[result]).inc();
    }

    pub(crate) fn ensured(&self, policy: &str, present: &'static str, required: &'static str) {
        self.ensured.with_label_values(&[&policy.to_ascii_lowercase(), present, required]).inc();
    }

    /// The numbers of a plugin.
    pub fn plugin(&self, name: &str) -> PluginStats {
        let durations = self.durations.with_label_values(&[name]);
        PluginStats {
            runs: durations.get_sample_count(),
            errors: self.errors.with_label_values(&[name]).get(),
            seconds: durations.get_sample_sum(),
        }
    }

    /// Failed and successful reloads.
    pub fn reloads(&self) -> (u64, u64) {
        let of = |result| self.reloads.with_label_values(&[result]).get();
        (of("failure"), of("success"))
    }
}

/// A run that is counted in a state.
pub(crate) struct Process(kelson_metrics::IntGauge);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Adds the number of pull records on disk.
pub(crate) fn records(families: &mut Families, (intents, pulled): (usize, usize)) {
    for (name, help, n) in [
        ("kubelet_imagemanager_ondisk_pullintents", "Number of pull intents on disk.", intents),
        ("kubelet_imagemanager_ondisk_pulledrecords", "Number of pulled-image records on disk.", pulled),
    ] {
        families.gauge(name, help).sample(&[], n as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let m = Metrics::default();
        m.ran("ecr", Duration::from_millis(200), true);
        m.ran("ecr", Duration::from_secs(60), false);
        m.set_config_hash("sha256:old");
        m.set_config_hash("sha256:ab");
        m.ensured("IfNotPresent", "true", "false");
        m.registry().on_scrape(|families| records(families, (0, 3)));
        let text = m.registry().text();
        for want in [
            "kubelet_credential_provider_plugin_errors_total{plugin_name=\"ecr\"} 1",
            "# TYPE kubelet_credential_provider_plugin_duration histogram",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"ecr\",le=\"0.1\"} 0",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"ecr\",le=\"0.25\"} 1",
            "kubelet_credential_provider_plugin_duration_bucket{plugin_name=\"ecr\",le=\"+Inf\"} 2",
            "kubelet_credential_provider_plugin_duration_sum{plugin_name=\"ecr\"} 60.2",
            "kubelet_credential_provider_plugin_duration_count{plugin_name=\"ecr\"} 2",
            "kubelet_credential_provider_config_info{hash=\"sha256:ab\"} 1",
            "kubelet_credential_provider_config_reloads_total{result=\"failure\"} 0",
            "kubelet_image_manager_ensure_image_requests_total{present_locally=\"true\",pull_policy=\"ifnotpresent\",pull_required=\"false\"} 1",
            "kubelet_imagemanager_ondisk_pulledrecords 3",
        ] {
            assert!(text.lines().any(|l| l == want), "{want} in\n{text}");
        }
        assert!(!text.contains("sha256:old"));
    }
}
