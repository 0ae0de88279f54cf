//! Metrics of cgroups above containers: of pods, of all pods together, and of the machine (`id="/"`). The container label is empty.
//! Dashboards select them by `id`.
use k8s_openapi::api::core::v1::Pod;
use kelson_metrics::Families;

use super::super::state::ServerState;
use super::columns::{self, CgroupSample};
use super::{machine, usage};
use crate::cgroups::reading::CgroupReading;
use crate::cgroups::usage::CgroupUsage;
use crate::node::facts;
use crate::pod;

/// A cgroup above containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParentCgroup {
    /// Namespace and name of its pod; empty for others.
    pub pod: (String, String),
    /// Measurements; the path is the label `id`.
    pub reading: CgroupReading,
}

/// Reads the cgroups of the machine, of all pods, of QoS classes and of these pods.
pub fn read(state: &ServerState, pods: &[&Pod]) -> Vec<ParentCgroup> {
    let mut machine = state.cgroups.of_machine();
    machine.usage = whole_machine(machine.usage);
    let above = std::iter::once(machine).chain(state.cgroups.above_pods());
    let mut all: Vec<ParentCgroup> = above.map(|reading| ParentCgroup { reading, ..ParentCgroup::default() }).collect();
    let of_pod = |p: &&Pod| {
        let reading = state.cgroups.of_pod(pod::uid(p))?;
        Some(ParentCgroup { pod: (pod::namespace(p).to_owned(), pod::name(p).to_owned()), reading })
    };
    all.extend(pods.iter().filter_map(of_pod));
    all
}

/// Usage of the machine: what the kernel has no file for in the root cgroup is added.
fn whole_machine(of_root: CgroupUsage) -> CgroupUsage {
    let (memory, more) = (facts::machine_memory(), machine::memory());
    CgroupUsage {
        cpu_nanos: Some(usage::machine_cpu_nanos()),
        memory: Some(more.usage),
        working_set: u64::try_from(memory.total.saturating_sub(memory.available)).ok(),
        rss: Some(more.rss),
        faults: (Some(more.faults.0), Some(more.faults.1)),
        limit: u64::try_from(memory.total).ok(),
        ..of_root
    }
}

type ParentCgroupColumn = (&'static str, &'static str, fn(&CgroupUsage) -> Option<u64>);

/// The container metrics of the runtime.
const GAUGES: &[ParentCgroupColumn] = &[
    ("container_memory_working_set_bytes", "Current working set in bytes.", |u| u.working_set),
    ("container_memory_usage_bytes", "Memory charged to the container in bytes.", |u| u.memory),
    ("container_memory_rss", "Resident memory in bytes.", |u| u.rss),
    ("container_spec_memory_limit_bytes", "Memory limit of the container in bytes.", |u| Some(u.limit.unwrap_or(0))),
];

/// Writes their metrics. `at` is the time of the reading in milliseconds since the epoch.
pub fn series(f: &mut Families, all: &[ParentCgroup], at: i64) {
    let labels = |a: &ParentCgroup| -> [(&'static str, String); 6] {
        let (namespace, pod) = a.pod.clone();
        [
            ("container", String::new()),
            ("id", a.reading.id.clone()),
            ("image", String::new()),
            ("name", String::new()),
            ("namespace", namespace),
            ("pod", pod),
        ]
    };
    let labels: Vec<[(&str, String); 6]> = all.iter().map(labels).collect();
    let samples: Vec<CgroupSample<'_>> = all
        .iter()
        .zip(&labels)
        .map(|(a, labels)| CgroupSample {
            labels: labels.iter().map(|(name, value)| (*name, value.as_str())).collect(),
            usage: &a.reading.usage,
            pressure: &a.reading.pressure,
            io: &a.reading.io,
            processes: a.reading.processes,
            at,
        })
        .collect();
    let mut of = f.counter("container_cpu_usage_seconds_total", "Total CPU time in seconds.");
    for (s, nanos) in samples.iter().filter_map(|s| Some((s, s.usage.cpu_nanos?))) {
        let labels: Vec<(&str, &str)> = s.labels.iter().copied().chain([("cpu", "total")]).collect();
        of.sample_at(&labels, nanos as f64 / 1e9, at);
    }
    for (name, help, value) in GAUGES {
        let mut of = f.gauge(name, help);
        for (s, v) in samples.iter().filter_map(|s| Some((s, value(s.usage)?))) {
            of.sample(&s.labels, v as f64);
        }
    }
    columns::series(f, &samples);
    let mut of = f.gauge("container_last_seen", "Time of the reading in seconds since the epoch.");
    for s in &samples {
        of.sample(&s.labels, at as f64 / 1e3);
    }
    for s in &samples {
        columns::page_faults(f, &s.labels, s.usage.faults);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_and_pod_cgroups_have_metrics() {
        let faults = (Some(4), None);
        let usage = CgroupUsage { cpu_nanos: Some(2_500_000_000), rss: Some(7), faults, ..CgroupUsage::default() };
        let reading = |id: &str| CgroupReading { id: id.into(), usage, ..CgroupReading::default() };
        let machine = ParentCgroup { reading: reading("/"), ..ParentCgroup::default() };
        let pod = ParentCgroup { pod: ("n".into(), "p".into()), reading: reading("/kubepods/podu") };
        let mut f = Families::default();
        series(&mut f, &[machine, pod], 2000);
        let text = f.text();
        for line in [
            "container_cpu_usage_seconds_total{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\",cpu=\"total\"} 2.5 2000",
            "container_memory_rss{container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",namespace=\"n\",pod=\"p\"} 7",
            "container_last_seen{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 2",
            "container_spec_memory_limit_bytes{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 0",
            "container_memory_failures_total{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\",failure_type=\"pgfault\",scope=\"hierarchy\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains("container_memory_cache{"), "what is not known is not shown:\n{text}");
        let whole = whole_machine(CgroupUsage { cache: Some(5), ..CgroupUsage::default() });
        assert!(whole.memory.is_some_and(|m| m > 0) && whole.limit > whole.working_set);
        assert_eq!(whole.cache, Some(5), "the root cgroup has it");
    }
}
