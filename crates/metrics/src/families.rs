//! Metric families that are computed at each scrape, from values that exist elsewhere (usage of containers, lengths of
//! queues), some with the time of their measurement.
use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Families in the order in which they were begun.
#[derive(Debug, Default)]
pub struct Families(Vec<MetricFamily>);

/// One family: a name, a type, and its samples.
#[derive(Debug)]
pub struct Family<'a>(&'a mut MetricFamily);

impl Families {
    /// Begins a family of values that only grow.
    pub fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.begin(MetricType::COUNTER, name, help)
    }

    /// Begins a family of values that rise and fall.
    pub fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.begin(MetricType::GAUGE, name, help)
    }

    /// Begins a family of distributions.
    pub fn histogram(&mut self, name: &str, help: &str) -> Family<'_> {
        self.begin(MetricType::HISTOGRAM, name, help)
    }

    fn begin(&mut self, of: MetricType, name: &str, help: &str) -> Family<'_> {
        // An existing family is continued, since a name may occur only once in the text.
        let at = self.0.iter().position(|f| f.name() == name).unwrap_or_else(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(of);
            self.0.push(family);
            self.0.len() - 1
        });
        Family(&mut self.0[at])
    }

    /// The classic text format. A family without a sample is left out.
    pub fn text(self) -> String {
        encode(self.0)
    }

    pub(crate) fn into_inner(self) -> Vec<MetricFamily> {
        self.0
    }
}

impl Family<'_> {
    /// Adds a sample. Labels are written in the order given; their values are escaped.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.push(labels, value, 0)
    }

    /// Adds a sample that was measured at a time, in milliseconds since the Unix epoch.
    pub fn sample_at(&mut self, labels: &[(&str, &str)], value: f64, at_millis: i64) -> &mut Self {
        self.push(labels, value, at_millis)
    }

    /// Adds a sample of a family that [`Families::histogram`] began: how many values were at most each bound and above the bound
    /// before it, how many were above all of them, and what all values are together.
    pub fn distribution(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) -> &mut Self {
        let mut count = 0_u64;
        let cumulative = buckets.map(|(bound, values)| {
            count = count.saturating_add(values);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(cumulative.collect());
        histogram.set_sample_count(count.saturating_add(above));
        histogram.set_sample_sum(sum);
        let mut metric = labeled(labels);
        metric.set_histogram(histogram);
        self.0.mut_metric().push(metric);
        self
    }

    fn push(&mut self, labels: &[(&str, &str)], value: f64, at_millis: i64) -> &mut Self {
        let mut metric = labeled(labels);
        if self.0.get_field_type() == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric.set_timestamp_ms(at_millis);
        self.0.mut_metric().push(metric);
        self
    }
}

fn labeled(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

/// Formats families, without those that have no sample.
pub(crate) fn encode(mut families: Vec<MetricFamily>) -> String {
    families.retain(|f| !f.get_metric().is_empty());
    let mut text = String::new();
    // It fails for a family without a name or sample: names are literals, and the others were just left out.
    if let Err(e) = TextEncoder::new().encode_utf8(&families, &mut text) {
        debug_assert!(false, "metrics not encoded: {e}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_labels_and_times() {
        let mut families = Families::default();
        families.gauge("memory_bytes", "Memory.").sample_at(&[("pod", "a\"b\\\n")], 4096.0, 2000);
        families.gauge("nothing", "No sample.");
        families.counter("cpu_seconds_total", "CPU.").sample(&[], 0.25).sample(&[("core", "1")], 1.0);
        let want = "# HELP memory_bytes Memory.\n# TYPE memory_bytes gauge\nmemory_bytes{pod=\"a\\\"b\\\\\\n\"} 4096 2000\n\
                    # HELP cpu_seconds_total CPU.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 0.25\n\
                    cpu_seconds_total{core=\"1\"} 1\n";
        assert_eq!(families.text(), want);
    }
    #[test]
    fn a_family_that_is_begun_again_continues() {
        let mut families = Families::default();
        families.gauge("a", "A.").sample(&[("of", "1")], 1.0);
        families.gauge("b", "B.").sample(&[], 1.0);
        families.gauge("a", "A.").sample(&[("of", "2")], 2.0);
        let text = families.text();
        assert_eq!(text.matches("# TYPE a gauge").count(), 1, "{text}");
        assert!(text.contains("a{of=\"1\"} 1\na{of=\"2\"} 2\n"), "{text}");
    }
}
