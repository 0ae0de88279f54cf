//! Fields that have no effect in Kelson. They are validated like upstream, and reported with a reason if they are set to a value that
//! differs from what Kelson does.
use std::time::Duration;

use serde_json::Value;

use super::Layer;
use super::fields::{Fields, Shape};

const NO_PROFILES: &str = "the kubelet has no profiling or flag handlers";
const NO_IPTABLES: &str = "the kubelet creates no iptables rules";
const CGROUPS_STAY: &str = "the kubelet does not move processes to other cgroups";
const SUITES: &str = "the TLS library offers only suites and curves without known weaknesses";
/// Gate of `memoryThrottlingFactor` and `memoryReservationPolicy`; off by default in 1.36.
pub(super) const MEMORY_QOS: &str = "MemoryQoS";
/// Gate of `qosReserved`; off by default in 1.36.
pub(super) const QOS_RESERVED: &str = "QOSReserved";
/// Gates whose value in the file has an effect.
const GATES: [&str; 2] = [MEMORY_QOS, QOS_RESERVED];

/// Name, shape, the value that always applies (as JSON), and why another value has no effect.
pub(super) const IDLE: &[(&str, Shape, &str, &str)] = &[
    ("configMapAndSecretChangeDetectionStrategy", Shape::Text, "\"Watch\"", "changes are always detected by watches"),
    ("contentType", Shape::Text, "\"application/vnd.kubernetes.protobuf\"", "requests to the API server use JSON"),
    ("cpuCFSQuotaPeriod", Shape::Span, "\"100ms\"", "the kernel's default period is used"),
    ("enableContentionProfiling", Shape::Truth, "false", NO_PROFILES),
    ("enableControllerAttachDetach", Shape::Truth, "true", "only the controller attaches volumes"),
    ("enableDebugFlagsHandler", Shape::Truth, "true", NO_PROFILES),
    ("enableProfilingHandler", Shape::Truth, "true", NO_PROFILES),
    ("hairpinMode", Shape::Text, "\"promiscuous-bridge\"", "the CNI plugin configures the pods' network"),
    ("iptablesDropBit", Shape::Whole(0, 31), "15", NO_IPTABLES),
    ("iptablesMasqueradeBit", Shape::Whole(0, 31), "14", NO_IPTABLES),
    ("kernelMemcgNotification", Shape::Truth, "false", "memory is polled"),
    ("kubeletCgroups", Shape::Text, "\"\"", CGROUPS_STAY),
    ("makeIPTablesUtilChains", Shape::Truth, "true", NO_IPTABLES),
    ("podCIDR", Shape::Text, "\"\"", "the CNI plugin assigns pod addresses"),
    ("showHiddenMetricsForVersion", Shape::Text, "\"\"", "no metric is hidden"),
    ("syncFrequency", Shape::Span, "\"1m\"", "pods are synced on change"),
    ("systemCgroups", Shape::Text, "\"\"", CGROUPS_STAY),
    ("tlsCurvePreferences", Shape::Numbers, "[]", SUITES),
    ("volumePluginDir", Shape::Text, "\"\"", "FlexVolumes are not supported"),
];

/// Fields that have an effect only in part, and why the rest has none.
const IN_PART: &[(&str, &str)] = &[
    ("featureGates", "features are on regardless of their gates"),
    ("httpCheckFrequency", "no staticPodURL is set"),
    ("logging.options", "the log has one stream that is not buffered"),
    ("logging.vmodule", "verbosity applies to the whole process"),
    ("memoryThrottlingFactor", "it requires the feature gate MemoryQoS, which is off"),
    ("qosReserved", "it requires the feature gate QOSReserved, which is off"),
    ("staticPodURLHeader", "no staticPodURL is set"),
    ("tlsCipherSuites", SUITES),
];

/// Why a field that is set has no effect; empty if the field is unknown.
pub fn reason(path: &str) -> &'static str {
    let of = |name: &str| path.strip_prefix(name).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    let whole = IDLE.iter().map(|(name, .., why)| (*name, *why));
    whole.chain(IN_PART.iter().copied()).find(|(name, _)| of(name)).map_or("", |(_, why)| why)
}

impl Layer<'_> {
    /// Validates these fields and ends reading: any unknown field is an error.
    pub(super) fn idle(&mut self, mut f: Fields<'_>) -> Vec<String> {
        let mut set = Vec::new();
        for (name, shape, usual, _) in IDLE {
            let Some(value) = f.shaped(name, *shape, self.faults) else { continue };
            let is_usual = serde_json::from_str::<Value>(usual).is_ok_and(|usual| same(&usual, value));
            if !is_usual && !super::fields::is_zero(value) {
                set.push(f.at(name).to_string());
            }
        }
        self.gates(&mut f, &mut set);
        self.words(&f);
        self.amounts(&f);
        set.extend(f.finish(&[], self.faults));
        set
    }

    fn words(&mut self, f: &Fields<'_>) {
        let words: [(&str, &[&str]); 2] = [
            ("hairpinMode", &["hairpin-veth", "none", "promiscuous-bridge"]),
            ("configMapAndSecretChangeDetectionStrategy", &["Cache", "Get", "Watch"]),
        ];
        let text = |name: &str| f.peek(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        for (name, known) in words {
            if let Some(word) = text(name).filter(|word| !known.contains(word)) {
                self.faults.not_supported(&f.at(name), word, known);
            }
        }
        if text("systemCgroups").is_some() && text("cgroupRoot").is_none() {
            self.faults.required(&f.at("cgroupRoot"), "must be specified with systemCgroups");
        }
    }

    fn gates(&mut self, f: &mut Fields<'_>, set: &mut Vec<String>) {
        let Some(gates) = f.shaped("featureGates", Shape::Object, self.faults).and_then(Value::as_object) else {
            return;
        };
        for (name, on) in gates.iter().filter(|(_, on)| !on.is_boolean()) {
            self.faults.invalid(&f.at("featureGates").key(name), on.clone(), "must be true or false");
        }
        if gates.iter().any(|(name, on)| !super::fields::is_zero(on) && !GATES.contains(&name.as_str())) {
            set.push(f.at("featureGates").to_string());
        }
    }

    fn amounts(&mut self, f: &Fields<'_>) {
        let period =
            f.peek("cpuCFSQuotaPeriod").and_then(Value::as_str).and_then(|t| kelson_meta::parse_duration(t).ok());
        let Some(period) = period.filter(|p| !p.is_zero()) else { return };
        let at = f.at("cpuCFSQuotaPeriod");
        match gate(f, "CustomCPUCFSQuotaPeriod") {
            false if period != Duration::from_millis(100) => {
                self.faults.invalid(&at, format!("{period:?}"), "requires feature gate CustomCPUCFSQuotaPeriod");
            }
            true if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period) => {
                self.faults.invalid(&at, format!("{period:?}"), "must be between 1ms and 1sec, inclusive");
            }
            _ => {}
        }
    }
}

/// Returns whether the file enables a feature gate that is off by default.
pub(super) fn gate(f: &Fields<'_>, name: &str) -> bool {
    f.peek("featureGates").and_then(|gates| gates.get(name)) == Some(&Value::Bool(true))
}

/// Returns whether two values are equal; durations may be written in different ways.
fn same(a: &Value, b: &Value) -> bool {
    let span = |v: &Value| v.as_str().and_then(|t| kelson_meta::parse_duration(t).ok());
    a == b || span(a).zip(span(b)).is_some_and(|(a, b)| a == b)
}
