//! The registry of one component.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};

use crate::families::{Families, encode};
use crate::process;

type OnScrape = Box<dyn Fn(&mut Families) + Send + Sync>;

/// The metrics of one component. Cloning gives another handle to the same registry.
///
/// Names, label names and bounds are literals of the component: one that is not valid or is registered twice is a fault of
/// the code and panics, which any test that makes the component's metrics finds.
#[derive(Clone, Default)]
pub struct Registry {
    counted: prometheus::Registry,
    on_scrape: Arc<Mutex<Vec<OnScrape>>>,
    included: Arc<Mutex<Vec<Registry>>>,
    /// The label names by the name of the metric.
    descriptions: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
}

impl Registry {
    /// Returns an empty registry, for a part that is included in its component's registry, and for tests.
    pub fn new() -> Self {
        Self::default()
    }

    /// A component's registry, which shows process, tasks and build as well.
    pub fn of_component() -> Self {
        let registry = Self::new();
        registry.on_scrape(process::process);
        registry.on_scrape(process::tasks);
        registry.on_scrape(process::build);
        registry
    }

    /// A number that only grows.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(name, IntCounter::new(name, help))
    }

    /// Numbers that only grow, one for each combination of label values.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(name, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// A whole number that rises and falls.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(name, IntGauge::new(name, help))
    }

    /// Whole numbers that rise and fall, one for each combination of label values.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(name, IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// A number with a fraction that rises and falls.
    pub fn float_gauge(&self, name: &str, help: &str) -> Gauge {
        self.add(name, Gauge::new(name, help))
    }

    /// Numbers with a fraction that rise and fall, one for each combination of label values.
    pub fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(name, GaugeVec::new(Opts::new(name, help), labels))
    }

    /// Makes a histogram, which counts the values in each bucket. `bounds` are the buckets' upper bounds in ascending
    /// order.
    pub fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        self.add(name, Histogram::with_opts(HistogramOpts::new(name, help).buckets(bounds.to_vec())))
    }

    /// Histograms, one for each combination of label values.
    pub fn histograms(&self, name: &str, help: &str, labels: &[&str], bounds: &[f64]) -> HistogramVec {
        self.add(name, HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels))
    }

    /// Calls `read` at each scrape to add families. It runs on the thread that serves the scrape: it may read memory
    /// and `/proc`, and must not block.
    pub fn on_scrape(&self, read: impl Fn(&mut Families) + Send + Sync + 'static) {
        self.on_scrape.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(read));
    }

    /// Shows the families of another registry with this one's. Their names must differ from each other.
    pub fn include(&self, other: Registry) {
        self.included.lock().unwrap_or_else(PoisonError::into_inner).push(other);
    }

    /// Shows the families of another registry in place of those that were included before: of a part that has been
    /// started again, since a metric can be registered only once.
    pub fn include_only(&self, other: Registry) {
        *self.included.lock().unwrap_or_else(PoisonError::into_inner) = vec![other];
    }

    /// All of it in the classic text format, by name.
    pub fn text(&self) -> String {
        let mut families = self.gather();
        families.sort_by(|a, b| a.name().cmp(b.name()));
        encode(families)
    }

    fn gather(&self) -> Vec<MetricFamily> {
        let mut read = Families::default();
        for f in self.on_scrape.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            f(&mut read);
        }
        let mut families = self.counted.gather();
        families.extend(read.into_inner());
        for other in self.included.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            families.extend(other.gather());
        }
        families
    }

    /// Name and label names of every metric, whether it has been counted or not. Labels of what is read at a scrape are
    /// those of its samples.
    pub fn described(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut read = Families::default();
        for f in self.on_scrape.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            f(&mut read);
        }
        let mut all = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for family in read.into_inner() {
            let labels = family.get_metric().iter().flat_map(|m| m.get_label().iter().map(|l| l.name().to_owned()));
            all.entry(family.name().to_owned()).or_default().extend(labels);
        }
        for other in self.included.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            all.extend(other.described());
        }
        all
    }

    fn add<C: Collector + Clone + 'static>(&self, name: &str, made: prometheus::Result<C>) -> C {
        if let Ok(made) = &made {
            let mut all = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
            for desc in made.desc() {
                all.insert(desc.fq_name.clone(), desc.variable_labels.iter().cloned().collect());
            }
        }
        let added = made.and_then(|c| self.counted.register(Box::new(c.clone())).map(|()| c));
        match added {
            Ok(c) => c,
            Err(e) => panic!("metric {name}: {e}"),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_started_again_has_each_metric_once() {
        let (registry, part) = (Registry::new(), Registry::new());
        registry.include(part.clone());
        for start in 1..=2 {
            let own = Registry::new();
            own.counter("starts_total", "Starts.").inc_by(start);
            part.include_only(own);
        }
        assert_eq!(registry.text().matches("\nstarts_total ").count(), 1);
        assert!(registry.text().contains("\nstarts_total 2\n"), "{}", registry.text());
    }

    #[test]
    fn counted_and_read_families_by_name() {
        let registry = Registry::new();
        let errors = registry.counters("b_errors_total", "Errors.", &["plugin"]);
        errors.with_label_values(&["one"]).inc();
        registry.histogram("c_seconds", "Time.", &[0.5, 1.0]).observe(0.75);
        registry.counters("unused_total", "Nothing counted yet.", &["y", "x"]);
        let other = Registry::new();
        other.on_scrape(|f| {
            f.gauge("a_depth", "Depth.").sample(&[("queue", "active")], 3.0);
        });
        registry.include(other);
        let described: Vec<(String, Vec<String>)> =
            registry.described().into_iter().map(|(name, labels)| (name, labels.into_iter().collect())).collect();
        let labels = |labels: &[&str]| labels.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            described,
            [
                ("a_depth".to_owned(), labels(&["queue"])),
                ("b_errors_total".to_owned(), labels(&["plugin"])),
                ("c_seconds".to_owned(), labels(&[])),
                ("unused_total".to_owned(), labels(&["x", "y"])),
            ]
        );
        let want = "# HELP a_depth Depth.\n# TYPE a_depth gauge\na_depth{queue=\"active\"} 3\n\
                    # HELP b_errors_total Errors.\n# TYPE b_errors_total counter\nb_errors_total{plugin=\"one\"} 1\n\
                    # HELP c_seconds Time.\n# TYPE c_seconds histogram\nc_seconds_bucket{le=\"0.5\"} 0\n\
                    c_seconds_bucket{le=\"1\"} 1\nc_seconds_bucket{le=\"+Inf\"} 1\nc_seconds_sum 0.75\nc_seconds_count 1\n";
        assert_eq!(registry.text(), want);
    }

    #[test]
    #[should_panic(expected = "metric a_total: ")]
    fn a_name_is_registered_once() {
        let registry = Registry::new();
        registry.counter("a_total", "First.");
        registry.counter("a_total", "Second.");
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_shows_process_tasks_and_build() {
        let tasks = kelson_tasks::Tasks::root("test");
        tasks.spawn("metrics-test-runs", kelson_tasks::OnPanic::Contain, std::future::pending());
        tasks.spawn("metrics-test-panics", kelson_tasks::OnPanic::Contain, async { panic!("for the count") });
        tokio::task::yield_now().await;
        let text = Registry::of_component().text();
        let value = |series: &str| -> f64 {
            let line = text.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' '));
            line.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{series} in\n{text}"))
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_start_time_seconds") > 1_600_000_000.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("go_goroutines") >= 1.0);
        assert_eq!(value("kelson_tasks_running{task=\"metrics-test-runs\"}"), 1.0);
        assert_eq!(value("kelson_task_panics_total{task=\"metrics-test-panics\"}"), 1.0);
        assert_eq!(value("kelson_task_panics_total{task=\"metrics-test-runs\"}"), 0.0);
        let minor = format!("minor=\"{}\"", kelson_meta::version::MINOR);
        assert!(text.contains("kubernetes_build_info{build_date=\"") && text.contains(&minor));
    }
}
