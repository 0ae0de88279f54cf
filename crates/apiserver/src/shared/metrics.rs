//! Metrics: counters of requests, watches and refusals, in the classic text format. Label values come from the catalog
//! and fixed words only, so that no client can make new series.
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use kelson_meta::GroupResource;
use parking_lot::Mutex;

use crate::request::route::RequestInfo;

/// Upper bounds of the duration histogram, seconds (upstream's, thinned).
const BUCKETS_S: [f64; 14] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
/// Series kept; beyond them requests are counted under `other`.
const SERIES_MAX: usize = 4096;

/// What a request is counted under.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Labels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
}

#[derive(Default)]
struct Series {
    codes: HashMap<u16, u64>,
    buckets: [u64; BUCKETS_S.len()],
    count: u64,
    sum_s: f64,
}

/// All counters.
pub struct Metrics {
    started: Timestamp,
    series: Mutex<HashMap<Labels, Series>>,
    watches: Mutex<HashMap<String, Arc<AtomicI64>>>,
    rejected_credentials: AtomicU64,
    turned_away: [AtomicU64; 2],
}

/// What is read of other parts when metrics are asked for.
pub struct Gauges {
    /// Reads under way.
    pub reads: usize,
    /// Writes under way.
    pub writes: usize,
    /// Stored objects by resource.
    pub objects: Vec<(kelson_store::Resource, usize)>,
    /// What the committer has done.
    pub store: kelson_store::Stats,
}

/// Counts a watch for as long as it lives.
pub struct WatchGuard(Arc<AtomicI64>);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new(started: Timestamp) -> Self {
        Self {
            started,
            series: Mutex::default(),
            watches: Mutex::default(),
            rejected_credentials: AtomicU64::new(0),
            turned_away: Default::default(),
        }
    }
    /// What a request will be counted under. `served`: the catalog has the resource and its subresource; what clients make up
    /// is counted together.
    pub fn labels(&self, info: &RequestInfo, served: bool) -> Labels {
        let upper = |verb| match verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" => "POST",
            "update" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            _ => "other",
        };
        if !info.is_resource || !served {
            let resource = if info.is_resource { "other".to_owned() } else { String::new() };
            let (group, version) = (String::new(), String::new());
            return Labels { verb: upper(info.verb), group, version, resource, subresource: String::new() };
        }
        Labels {
            verb: upper(info.verb),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
        }
    }
    /// Counts an answer.
    pub fn done(&self, labels: Labels, code: StatusCode, took: Duration) {
        let mut series = self.series.lock();
        let known = series.contains_key(&labels);
        let labels = if known || series.len() < SERIES_MAX {
            labels
        } else {
            let empty = String::new;
            Labels {
                verb: labels.verb,
                group: empty(),
                version: empty(),
                resource: "other".into(),
                subresource: empty(),
            }
        };
        let s = series.entry(labels).or_default();
        *s.codes.entry(code.as_u16()).or_default() += 1;
        let seconds = took.as_secs_f64();
        s.count += 1;
        s.sum_s += seconds;
        for (bucket, bound) in s.buckets.iter_mut().zip(BUCKETS_S) {
            *bucket += u64::from(seconds <= bound);
        }
    }
    /// Counts a watch.
    pub fn watch_opened(&self, gr: &GroupResource) -> WatchGuard {
        let counter = Arc::clone(self.watches.lock().entry(gr.to_string()).or_default());
        counter.fetch_add(1, Ordering::Relaxed);
        WatchGuard(counter)
    }
    /// Counts bad credentials.
    pub fn rejected_credentials(&self) {
        self.rejected_credentials.fetch_add(1, Ordering::Relaxed);
    }
    /// Counts a request turned away for want of room.
    pub fn turned_away(&self, read: bool) {
        self.turned_away[usize::from(!read)].fetch_add(1, Ordering::Relaxed);
    }
    /// All of it, as text.
    pub fn text(&self, gauges: &Gauges) -> String {
        let mut out = String::with_capacity(16 * 1024);
        self.requests(&mut out);
        self.gauges(gauges, &mut out);
        process(self.started, &mut out);
        out
    }

    fn requests(&self, out: &mut String) {
        let series = self.series.lock();
        let mut sorted: Vec<_> = series.iter().collect();
        sorted.sort_by_cached_key(|(l, _)| format!("{l:?}"));
        head(
            out,
            "apiserver_request_total",
            "counter",
            "Counter of apiserver requests by verb, resource and HTTP response code.",
        );
        for (l, s) in &sorted {
            let mut codes: Vec<_> = s.codes.iter().collect();
            codes.sort();
            for (code, n) in codes {
                let _ = writeln!(out, "apiserver_request_total{{code=\"{code}\",{}}} {n}", l.text());
            }
        }
        let name = "apiserver_request_duration_seconds";
        head(out, name, "histogram", "Response latency distribution in seconds by verb and resource.");
        for (l, s) in sorted.iter().filter(|(l, _)| l.verb != "WATCH") {
            for (bound, n) in BUCKETS_S.iter().zip(s.buckets) {
                let _ = writeln!(out, "{name}_bucket{{{},le=\"{bound}\"}} {n}", l.text());
            }
            let _ = writeln!(out, "{name}_bucket{{{},le=\"+Inf\"}} {}", l.text(), s.count);
            let _ = writeln!(out, "{name}_sum{{{}}} {}", l.text(), s.sum_s);
            let _ = writeln!(out, "{name}_count{{{}}} {}", l.text(), s.count);
        }
    }

    fn gauges(&self, gauges: &Gauges, out: &mut String) {
        head(out, "apiserver_current_inflight_requests", "gauge", "Requests under way, by kind.");
        let (reads, writes) = (gauges.reads, gauges.writes);
        let _ = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"mutating\"}} {writes}");
        let _ = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"readOnly\"}} {reads}");
        head(out, "apiserver_dropped_requests_total", "counter", "Requests turned away with 429.");
        for (kind, n) in ["readOnly", "mutating"].iter().zip(&self.turned_away) {
            let _ = writeln!(
                out,
                "apiserver_dropped_requests_total{{request_kind=\"{kind}\"}} {}",
                n.load(Ordering::Relaxed)
            );
        }
        head(out, "authentication_attempts", "counter", "Rejected credentials.");
        let _ = writeln!(
            out,
            "authentication_attempts{{result=\"error\"}} {}",
            self.rejected_credentials.load(Ordering::Relaxed)
        );
        head(out, "apiserver_longrunning_requests", "gauge", "Open watches by resource.");
        let mut watches: Vec<_> =
            self.watches.lock().iter().map(|(k, v)| (k.clone(), v.load(Ordering::Relaxed))).collect();
        watches.sort();
        for (resource, n) in watches {
            let _ = writeln!(out, "apiserver_longrunning_requests{{resource=\"{resource}\",verb=\"WATCH\"}} {n}");
        }
        head(out, "apiserver_storage_objects", "gauge", "Stored objects by resource.");
        for (resource, n) in &gauges.objects {
            let gr = GroupResource::new(resource.group(), resource.plural());
            let _ = writeln!(out, "apiserver_storage_objects{{resource=\"{gr}\"}} {n}");
        }
        store(&gauges.store, out);
        head(out, "kubernetes_build_info", "gauge", "Version.");
        let _ = writeln!(
            out,
            "kubernetes_build_info{{git_version=\"{}\",major=\"1\",minor=\"36\",platform=\"{}\"}} 1",
            kelson_meta::version::GIT_VERSION,
            kelson_meta::version::platform()
        );
    }
}

impl Labels {
    fn text(&self) -> String {
        let scope = if self.resource.is_empty() { "" } else { "resource" };
        format!(
            "component=\"apiserver\",group=\"{}\",resource=\"{}\",scope=\"{scope}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
            self.group, self.resource, self.subresource, self.verb, self.version
        )
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// What the committer has done; names of our own, as upstream's are etcd's.
fn store(stats: &kelson_store::Stats, out: &mut String) {
    for (name, help, n) in [
        ("kelson_store_writes_total", "Writes committed.", stats.writes),
        ("kelson_store_batches_total", "Batches the writes were committed in.", stats.batches),
        ("kelson_store_syncs_total", "Times the store was synced to disk.", stats.syncs),
        ("kelson_store_written_bytes_total", "Bytes of committed objects.", stats.bytes),
    ] {
        head(out, name, "counter", help);
        let _ = writeln!(out, "{name} {n}");
    }
}

/// What the kernel says of this process.
fn process(started: Timestamp, out: &mut String) {
    /// Clock ticks per second of `/proc/PID/stat`, the same on every Linux that Kelson runs on.
    const TICKS_PER_S: f64 = 100.0;
    const PAGE_BYTES: u64 = 4096;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
    let field = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let cpu_s = (field(11) + field(12)) as f64 / TICKS_PER_S;
    head(out, "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.");
    let _ = writeln!(out, "process_cpu_seconds_total {cpu_s}");
    head(out, "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
    let _ = writeln!(out, "process_resident_memory_bytes {}", field(21) * PAGE_BYTES);
    head(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.");
    let _ = writeln!(out, "process_virtual_memory_bytes {}", field(20));
    head(out, "process_open_fds", "gauge", "Number of open file descriptors.");
    let _ = writeln!(out, "process_open_fds {}", std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count));
    head(out, "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.");
    let _ = writeln!(out, "process_start_time_seconds {}", started.as_second());
}
