//! Fields that say nothing here: known, judged as upstream judges them, and named with the reason where they are set to something
//! else than what holds anyway.
use std::time::Duration;

use serde_json::{Value, json};

use super::Layer;
use super::fields::{Fields, Shape};

const NO_PROFILES: &str = "there are no handlers for profiles and flags";
const NO_IPTABLES: &str = "the kubelet makes no rules of iptables";
const FILES_ALONE: &str = "static pods come from files alone";
const CGROUPS_STAY: &str = "processes stay in the cgroups in which they were started";
const NO_MEMORY_QOS: &str = "MemoryQoS is not there";
const SUITES: &str = "the TLS library offers what has no known weakness, and nothing else";
/// IDs of a pod with users of its own are a multiple of so many.
const IDS: i64 = 65_536;

/// Name, form, what holds anyway (as JSON), and why nothing else has an effect.
pub(super) const IDLE: &[(&str, Shape, &str, &str)] = &[
    ("configMapAndSecretChangeDetectionStrategy", Shape::Text, "\"Watch\"", "changes are heard of by watches"),
    ("contentType", Shape::Text, "\"application/vnd.kubernetes.protobuf\"", "the API server is spoken to in JSON"),
    ("cpuCFSQuotaPeriod", Shape::Span, "\"100ms\"", "the kernel's usual period holds"),
    ("enableContentionProfiling", Shape::Truth, "false", NO_PROFILES),
    ("enableControllerAttachDetach", Shape::Truth, "true", "volumes are attached by the controller alone"),
    ("enableDebugFlagsHandler", Shape::Truth, "true", NO_PROFILES),
    ("enableProfilingHandler", Shape::Truth, "true", NO_PROFILES),
    ("featureGates", Shape::Object, "{}", "what is here is on, whatever gate it has"),
    ("hairpinMode", Shape::Text, "\"promiscuous-bridge\"", "the pods' network is its plugin's"),
    ("httpCheckFrequency", Shape::Span, "\"20s\"", FILES_ALONE),
    ("imageServiceEndpoint", Shape::Text, "\"\"", "images are asked of the runtime that runs them"),
    ("iptablesDropBit", Shape::Whole(0, 31), "15", NO_IPTABLES),
    ("iptablesMasqueradeBit", Shape::Whole(0, 31), "14", NO_IPTABLES),
    ("kernelMemcgNotification", Shape::Truth, "false", "memory is looked at in turn"),
    ("kubeletCgroups", Shape::Text, "\"\"", CGROUPS_STAY),
    ("logging", Shape::Object, "{}", "the command line says what is logged"),
    ("makeIPTablesUtilChains", Shape::Truth, "true", NO_IPTABLES),
    ("memoryReservationPolicy", Shape::Text, "\"None\"", NO_MEMORY_QOS),
    ("memoryThrottlingFactor", Shape::Number, "0.9", NO_MEMORY_QOS),
    ("podCIDR", Shape::Text, "\"\"", "the addresses of pods come from their network"),
    ("qosReserved", Shape::Object, "{}", "nothing is reserved by class"),
    ("showHiddenMetricsForVersion", Shape::Text, "\"\"", "no metric is hidden"),
    ("singleProcessOOMKill", Shape::Truth, "true", "the kernel ends one process at a time"),
    ("staticPodURL", Shape::Text, "\"\"", FILES_ALONE),
    ("staticPodURLHeader", Shape::Object, "{}", FILES_ALONE),
    ("syncFrequency", Shape::Span, "\"1m\"", "pods are looked at when something changes"),
    ("systemCgroups", Shape::Text, "\"\"", CGROUPS_STAY),
    ("tlsCurvePreferences", Shape::Numbers, "[]", SUITES),
    ("userNamespaces", Shape::Object, "{\"idsPerPod\":65536}", "each pod with users of its own has 65536 IDs"),
    ("volumePluginDir", Shape::Text, "\"\"", "there are no FlexVolumes"),
];

/// Why a field that is set has no effect; empty for one of which nothing is known.
pub fn reason(path: &str) -> &'static str {
    let of = |(name, ..): &&(&str, Shape, &str, &str)| {
        path.strip_prefix(name).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    if path.starts_with("tlsCipherSuites[") {
        return SUITES;
    }
    IDLE.iter().find(of).map_or("", |(.., why)| why)
}

impl Layer<'_> {
    /// Judges them, and ends the reading of the file: what nobody knows is a fault.
    pub(super) fn idle(&mut self, mut f: Fields<'_>) -> Vec<String> {
        let mut set = Vec::new();
        for (name, shape, usual, _) in IDLE {
            let Some(value) = f.shaped(name, *shape, self.faults) else { continue };
            let is_usual = serde_json::from_str::<Value>(usual).is_ok_and(|usual| same(&usual, value));
            if !is_usual && !super::fields::is_zero(value) {
                set.push(f.at(name).to_string());
            }
        }
        self.words(&f);
        self.amounts(&f);
        set.extend(f.finish(&[], self.faults));
        set
    }

    fn words(&mut self, f: &Fields<'_>) {
        let words: [(&str, &[&str]); 3] = [
            ("hairpinMode", &["hairpin-veth", "none", "promiscuous-bridge"]),
            ("configMapAndSecretChangeDetectionStrategy", &["Cache", "Get", "Watch"]),
            ("memoryReservationPolicy", &["None", "TieredReservation"]),
        ];
        let text = |name: &str| f.peek(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        for (name, known) in words {
            if let Some(word) = text(name).filter(|word| !known.contains(word)) {
                self.faults.not_supported(&f.at(name), word, known);
            }
        }
        if text("memoryReservationPolicy") == Some("TieredReservation") && !gate(f, "MemoryQoS") {
            let why = "requires MemoryQoS feature gate to be enabled";
            self.faults.invalid(&f.at("memoryReservationPolicy"), "TieredReservation", why);
        }
        if text("systemCgroups").is_some() && text("cgroupRoot").is_none() {
            self.faults.required(&f.at("cgroupRoot"), "must be specified with systemCgroups");
        }
        for (name, on) in f.peek("featureGates").and_then(Value::as_object).into_iter().flatten() {
            if !on.is_boolean() {
                self.faults.invalid(&f.at("featureGates").key(name), on.clone(), "must be true or false");
            }
        }
    }

    fn amounts(&mut self, f: &Fields<'_>) {
        if let Some(part) = f.peek("memoryThrottlingFactor").and_then(Value::as_f64)
            && !(part > 0.0 && part <= 1.0)
        {
            let why = "must be greater than 0 and less than or equal to 1.0";
            self.faults.invalid(&f.at("memoryThrottlingFactor"), json!(part), why);
        }
        let ids = f.peek("userNamespaces").and_then(|u| u.get("idsPerPod")).and_then(Value::as_i64);
        if let Some(ids) = ids.filter(|ids| *ids < IDS || ids % IDS != 0 || *ids > i64::from(u32::MAX)) {
            let why = format!("must be a multiple of {IDS}, not less than that and not more than {}", u32::MAX);
            self.faults.invalid(&f.at("userNamespaces").child("idsPerPod"), ids, why);
        }
        let period = f.peek("cpuCFSQuotaPeriod").and_then(Value::as_str).and_then(|t| super::duration(t).ok());
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

/// Whether the file turns a gate on that upstream has off.
fn gate(f: &Fields<'_>, name: &str) -> bool {
    f.peek("featureGates").and_then(|gates| gates.get(name)) == Some(&Value::Bool(true))
}

/// Whether two values say the same; durations may be written in several ways.
fn same(a: &Value, b: &Value) -> bool {
    let span = |v: &Value| v.as_str().and_then(|t| super::duration(t).ok());
    a == b || span(a).zip(span(b)).is_some_and(|(a, b)| a == b)
}
