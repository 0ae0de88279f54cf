//! Metrics of cgroups above containers: of pods, of all pods together, and of the machine (`id="/"`). The container label is empty.
//! Dashboards select them by `id`.
use k8s_openapi::api::core::v1::Pod;
use kelson_metrics::Families;

use super::super::state::ServerState;
use super::{machine, usage};
use crate::cgroups::usage::CgroupUsage;
use crate::node::facts;
use crate::pod;

/// A cgroup above containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParentCgroup {
    /// Path of the cgroup, the label `id`.
    pub id: String,
    /// Namespace and name of its pod; empty for others.
    pub pod: (String, String),
    /// Usage of the cgroup.
    pub usage: CgroupUsage,
}

/// Reads the usage of these cgroups; `paths` has the pods' cgroups by UID.
pub fn read(
    state: &ServerState,
    pods: &[&Pod],
    paths: &std::collections::BTreeMap<String, String>,
) -> Vec<ParentCgroup> {
    let mut all = vec![ParentCgroup { id: "/".to_owned(), usage: whole_machine(), ..ParentCgroup::default() }];
    if let Some(id) = state.cgroups.all_pods() {
        all.push(ParentCgroup { id, usage: state.cgroups.usage(None), ..ParentCgroup::default() });
    }
    let of_pod = |p: &&Pod| {
        let id = paths.get(pod::uid(p)).filter(|path| !path.is_empty())?.clone();
        let usage = state.cgroups.usage(Some(pod::uid(p)));
        Some(ParentCgroup { id, pod: (pod::namespace(p).to_owned(), pod::name(p).to_owned()), usage })
    };
    all.extend(pods.iter().filter_map(of_pod));
    all
}

/// Usage of the machine; the kernel has few files for the root cgroup.
fn whole_machine() -> CgroupUsage {
    let (memory, more) = (facts::machine_memory(), machine::memory());
    CgroupUsage {
        cpu_nanos: Some(usage::machine_cpu_nanos()),
        memory: Some(more.usage),
        working_set: u64::try_from(memory.total.saturating_sub(memory.available)).ok(),
        rss: Some(more.rss),
        faults: (Some(more.faults.0), Some(more.faults.1)),
        ..CgroupUsage::default()
    }
}

type ParentCgroupColumn = (&'static str, &'static str, fn(&CgroupUsage) -> Option<f64>);

const COUNTERS: &[ParentCgroupColumn] = &[
    ("container_cpu_usage_seconds_total", "Total CPU time in seconds.", |u| u.cpu_nanos.map(|n| n as f64 / 1e9)),
    ("container_cpu_cfs_periods_total", "Elapsed periods of the CPU quota.", |u| u.throttled.map(|t| t.periods as f64)),
    ("container_cpu_cfs_throttled_periods_total", "Throttled periods of the CPU quota.", |u| {
        u.throttled.map(|t| t.throttled_periods as f64)
    }),
    ("container_cpu_cfs_throttled_seconds_total", "Total time throttled by the CPU quota in seconds.", |u| {
        u.throttled.map(|t| t.nanos as f64 / 1e9)
    }),
    ("container_oom_events_total", "Processes killed because of memory shortage.", |u| u.oom_kills.map(|n| n as f64)),
];

const GAUGES: &[ParentCgroupColumn] = &[
    ("container_memory_working_set_bytes", "Current working set in bytes.", |u| u.working_set.map(|n| n as f64)),
    ("container_memory_usage_bytes", "Memory charged to the container in bytes.", |u| u.memory.map(|n| n as f64)),
    ("container_memory_rss", "Resident memory in bytes.", |u| u.rss.map(|n| n as f64)),
    ("container_memory_cache", "File pages in memory in bytes.", |u| u.cache.map(|n| n as f64)),
];

/// Writes their metrics.
pub fn series(f: &mut Families, all: &[ParentCgroup], at: i64) {
    let labels = |a: &ParentCgroup| {
        let (namespace, pod) = a.pod.clone();
        [
            ("container", String::new()),
            ("id", a.id.clone()),
            ("image", String::new()),
            ("name", String::new()),
            ("namespace", namespace),
            ("pod", pod),
        ]
    };
    for (columns, counts) in [(COUNTERS, true), (GAUGES, false)] {
        for (name, help, value) in columns {
            let mut of = if counts { f.counter(name, help) } else { f.gauge(name, help) };
            for (a, v) in all.iter().filter_map(|a| Some((a, value(&a.usage)?))) {
                let labels = labels(a);
                let mut labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (*k, v.as_str())).collect();
                if *name == "container_cpu_usage_seconds_total" {
                    labels.push(("cpu", "total"));
                }
                if counts {
                    of.sample_at(&labels, v, at)
                } else {
                    of.sample(&labels, v)
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_and_pod_cgroups_have_metrics() {
        let usage = CgroupUsage { cpu_nanos: Some(2_500_000_000), rss: Some(7), ..CgroupUsage::default() };
        let machine = ParentCgroup { id: "/".into(), usage, ..ParentCgroup::default() };
        let pod = ParentCgroup { id: "/kubepods/podu".into(), pod: ("n".into(), "p".into()), usage };
        let mut f = Families::default();
        series(&mut f, &[machine, pod], 2000);
        let text = f.text();
        for line in [
            "container_cpu_usage_seconds_total{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\",cpu=\"total\"} 2.5 2000",
            "container_memory_rss{container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",namespace=\"n\",pod=\"p\"} 7",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains("container_memory_cache{"), "what is not known is not shown:\n{text}");
        assert!(whole_machine().memory.is_some_and(|m| m > 0));
    }
}
