//! Fields about the kubelet as a process: settings of the machine, rate limits of its requests, and what the node reports.
use kelson_meta::FieldErrors;
use kelson_traces::TracingConfiguration;

use super::fields::Fields;
use super::{I32_MAX, Layer};
use crate::config::ciphers::{self, CipherSupport};
use crate::config::process::Pacing;

/// Upstream's default rate limit, for a file that sets only the rate or the burst.
const USUAL: Pacing = Pacing { per_second: 50.0, burst: 100 };
/// Rate of a client that is configured with 0 requests per second, as in client-go.
const LEAST: f64 = 5.0;
/// Values of `tlsMinVersion`. The first two versions are never offered.
const TLS_VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];

fn pacing(
    f: &mut Fields<'_>,
    (per_second, burst): (&'static str, &'static str),
    faults: &mut FieldErrors,
) -> Option<Pacing> {
    let per_second = f.integer(per_second, (0, I32_MAX), faults);
    // In the published form, which kubeadm writes, zero means unset.
    let burst = f.integer(burst, (0, I32_MAX), faults).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok());
    if per_second.is_none() && burst.is_none() {
        return None;
    }
    let per_second = per_second.map_or(USUAL.per_second, |n| n as f64);
    Some(Pacing { per_second, burst: burst.unwrap_or(USUAL.burst) })
}

impl Layer<'_> {
    pub(super) fn process(&mut self, f: &mut Fields<'_>) {
        let (process, faults) = (&mut self.config.process, &mut *self.faults);
        let score = f.integer("oomScoreAdj", (-1000, 1000), faults).and_then(|n| i32::try_from(n).ok());
        process.oom_score = score.or(process.oom_score);
        let files = f.integer("maxOpenFiles", (0, i64::MAX), faults).filter(|n| *n > 0);
        process.open_files = files.and_then(|n| u64::try_from(n).ok()).or(process.open_files);
        if let Some(mut api) = pacing(f, ("kubeAPIQPS", "kubeAPIBurst"), faults) {
            api.per_second = if api.per_second > 0.0 { api.per_second } else { LEAST };
            process.api = Some(api);
        }
        if let Some(events) = pacing(f, ("eventRecordQPS", "eventBurst"), faults) {
            process.events = Some(events).filter(|e| e.per_second > 0.0);
        }
        process.runtime_request = f.duration("runtimeRequestTimeout", faults).unwrap_or(process.runtime_request);
        process.protects_kernel = f.boolean("protectKernelDefaults", faults).unwrap_or(process.protects_kernel);
        process.refuses_cgroup_v1 = f.boolean("failCgroupV1", faults).unwrap_or(process.refuses_cgroup_v1);
        if f.boolean("runOnce", faults) == Some(true) {
            faults.invalid(&f.at("runOnce"), true, "Runonce mode has been deprecated and should not be set");
        }
    }

    /// Reads the exporter's endpoint; an empty object selects the default endpoint.
    pub(super) fn tracing(&mut self, f: &mut Fields<'_>) {
        let Some(tree) = f.get("tracing") else { return };
        let mut fields = Fields::of(tree, f.at("tracing"), self.faults);
        let before = self.faults.0.len();
        fields.string("endpoint", self.faults);
        fields.integer("samplingRatePerMillion", (i64::from(i32::MIN), I32_MAX), self.faults);
        fields.finish(&[], self.faults);
        if self.faults.0.len() > before || !tree.is_object() {
            return;
        }
        match TracingConfiguration::of(tree) {
            Ok(found) => {
                self.faults.0.extend(found.check(Some(&f.at("tracing"))).0);
                self.config.tracing = Some(found);
            }
            Err(why) => self.faults.invalid(&f.at("tracing"), tree.clone(), why),
        }
    }

    /// Fields about what the node reports and how limits of pods are enforced.
    pub(super) fn reported(&mut self, f: &mut Fields<'_>) {
        let (config, faults) = (&mut *self.config, &mut *self.faults);
        if let Some(id) = f.string("providerID", faults) {
            config.provider_id = id.to_owned();
        }
        if let Some(max) = f.integer("nodeStatusMaxImages", (-1, I32_MAX), faults) {
            config.status_images_max = usize::try_from(max).ok();
        }
        let isolates = f.boolean("localStorageCapacityIsolation", faults);
        config.isolates_storage = isolates.unwrap_or(config.isolates_storage);
        config.cpu_quota = f.boolean("cpuCFSQuota", faults).unwrap_or(config.cpu_quota);
        config.manifests_every = f.duration("fileCheckFrequency", faults).unwrap_or(config.manifests_every);
        let workers = f.integer("containerLogMaxWorkers", (1, I32_MAX), faults);
        config.log_workers = workers.and_then(|n| usize::try_from(n).ok()).unwrap_or(config.log_workers);
        if let Some(version) = f.string("tlsMinVersion", faults) {
            if !TLS_VERSIONS.contains(&version) {
                faults.not_supported(&f.at("tlsMinVersion"), version, &TLS_VERSIONS);
            }
            config.server.tls13_only = version == "VersionTLS13";
        }
        self.suites(f);
    }

    /// Reads `tlsCipherSuites`. A known suite that is never offered is reported, so that a user can see why a client does not connect.
    fn suites(&mut self, f: &mut Fields<'_>) {
        let mut listed = Vec::new();
        for (at, name) in f.strings("tlsCipherSuites", self.faults) {
            match ciphers::named(name) {
                CipherSupport::Offered => {}
                CipherSupport::Never => self.ignored.push(at.to_string()),
                CipherSupport::Unknown => self.faults.invalid(&at, name, "Cipher suite not supported or doesn't exist"),
            }
            listed.push(name.to_owned());
        }
        if !listed.is_empty() {
            self.config.server.tls_suites = listed;
        }
    }
}
