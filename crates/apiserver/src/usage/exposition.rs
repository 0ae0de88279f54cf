//! Reads the kubelet's `/metrics/resource`, in the classic text format. Of a container, CPU time, memory and start time are read; a node
//! or pod with an incomplete container is left out, as in metrics-server (`pkg/scraper/client/resource/decode.go`).
use std::collections::BTreeMap;

/// One measurement of a node or a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Start of the container in nanoseconds since the Unix epoch; 0 for a node.
    pub started_at: i64,
    /// Time of the measurement in nanoseconds since the Unix epoch.
    pub at: i64,
    /// CPU time since the start, in nanoseconds of one core.
    pub cpu: u64,
    /// The working set in bytes.
    pub memory: u64,
}

impl Point {
    fn is_complete(&self) -> bool {
        self.at != 0 && self.cpu != 0 && self.memory != 0
    }
}

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// The figures that a kubelet reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The node, if its measurement is complete.
    pub node: Option<Point>,
    /// The complete pods with their containers by name.
    pub pods: BTreeMap<PodName, BTreeMap<String, Point>>,
}

/// A line that is not in the text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not in the text format of metrics")]
pub struct ExpositionError {
    /// The line's number, from 1.
    pub line: usize,
}

/// Reads a report. `now` is the time of series without a time, in milliseconds since the Unix epoch.
///
/// # Errors
/// A line of a series that is read cannot be parsed.
pub fn parse(text: &str, now: i64) -> Result<Report, ExpositionError> {
    let mut node = Point::default();
    let mut pods: BTreeMap<PodName, BTreeMap<String, Point>> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let name = &line[..line.find(['{', ' ', '\t']).unwrap_or(line.len())];
        let Some(series) = Series::of(name) else { continue };
        let fault = || ExpositionError { line: index + 1 };
        let (labels, rest) = labels(&line[name.len()..]).ok_or_else(fault)?;
        let mut words = rest.split_ascii_whitespace();
        let value: f64 = words.next().and_then(|word| word.parse().ok()).ok_or_else(fault)?;
        let at = words.next().map_or(Ok(now), |word| word.parse().map_err(|_| fault()))?.saturating_mul(1_000_000);
        let point = if series.is_of_node() {
            &mut node
        } else {
            let of = |name: &str| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
            let (Some(namespace), Some(pod), Some(container)) = (of("namespace"), of("pod"), of("container")) else {
                return Err(fault());
            };
            pods.entry((namespace, pod)).or_default().entry(container).or_default()
        };
        series.write(point, value, at);
    }
    pods.retain(|_, containers| containers.values().all(Point::is_complete));
    Ok(Report { node: Some(node).filter(Point::is_complete), pods })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Series {
    NodeCpu,
    NodeMemory,
    Cpu,
    Memory,
    Start,
}

impl Series {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "node_cpu_usage_seconds_total" => Self::NodeCpu,
            "node_memory_working_set_bytes" => Self::NodeMemory,
            "container_cpu_usage_seconds_total" => Self::Cpu,
            "container_memory_working_set_bytes" => Self::Memory,
            "container_start_time_seconds" => Self::Start,
            _ => return None,
        })
    }

    fn is_of_node(self) -> bool {
        matches!(self, Self::NodeCpu | Self::NodeMemory)
    }

    /// Writes a value, whose conversion saturates: a hostile kubelet harms its own numbers only.
    fn write(self, point: &mut Point, value: f64, at: i64) {
        match self {
            Self::NodeCpu | Self::Cpu => (point.cpu, point.at) = ((value * 1e9) as u64, at),
            Self::NodeMemory | Self::Memory => (point.memory, point.at) = (value as u64, at),
            Self::Start => point.started_at = (value * 1e9) as i64,
        }
    }
}

type LabelPairs<'a> = Vec<(&'a str, String)>;

/// Returns the labels at the beginning of a string, and the rest.
fn labels(text: &str) -> Option<(LabelPairs<'_>, &str)> {
    let mut all = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Some((all, text)) };
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((all, after));
        }
        let (key, after) = rest.split_once('=')?;
        let after = after.trim_start().strip_prefix('"')?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, c) => value.push(c),
            }
        };
        all.push((key.trim(), value));
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP container_cpu_usage_seconds_total Total CPU time
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container=\"a\",namespace=\"n\",pod=\"p\"} 1.5 1700000000123
container_cpu_usage_seconds_total{container=\"b\\\"x\",namespace=\"n\",pod=\"p\"} 2 1700000000123
container_cpu_usage_seconds_total{container=\"a\",namespace=\"n\",pod=\"idle\"} 0 1700000000123
container_memory_working_set_bytes{container=\"a\",namespace=\"n\",pod=\"p\"} 4.096e+06 1700000000123
container_memory_working_set_bytes{container=\"b\\\"x\",namespace=\"n\",pod=\"p\"} 1024 1700000000123
container_memory_working_set_bytes{container=\"a\",namespace=\"n\",pod=\"idle\"} 1024 1700000000123
container_start_time_seconds{container=\"a\",namespace=\"n\",pod=\"p\"} 1.69999999e+09
node_cpu_usage_seconds_total 100.25 1700000000200
node_memory_working_set_bytes 2e+09 1700000000200
pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} broken
";

    #[test]
    fn reports_are_read_with_their_times() {
        let report = parse(TEXT, 0).expect("parses");
        let at = 1_700_000_000_123_000_000;
        let a = Point { started_at: 1_699_999_990_000_000_000, at, cpu: 1_500_000_000, memory: 4_096_000 };
        let b = Point { started_at: 0, at, cpu: 2_000_000_000, memory: 1024 };
        let node = Point { started_at: 0, at: at + 77_000_000, cpu: 100_250_000_000, memory: 2_000_000_000 };
        assert_eq!(report.node, Some(node));
        let pod: Vec<_> = report.pods[&("n".into(), "p".into())].iter().collect();
        assert_eq!(pod, [(&"a".to_owned(), &a), (&"b\"x".to_owned(), &b)]);
        assert_eq!(report.pods.len(), 1, "a pod with a container that has used nothing is incomplete");
    }

    #[test]
    fn a_series_without_a_time_is_of_now() {
        let report = parse("node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 1\n", 7).expect("parses");
        assert_eq!(report.node.map(|point| point.at), Some(7_000_000));
        assert_eq!(parse("node_cpu_usage_seconds_total 1\n", 7).expect("parses").node, None, "no memory");
    }

    #[test]
    fn broken_lines_are_named_and_extreme_values_saturate() {
        for (text, line) in [
            ("\nnode_cpu_usage_seconds_total", 2),
            ("node_cpu_usage_seconds_total x", 1),
            ("node_cpu_usage_seconds_total 1 x", 1),
            ("container_cpu_usage_seconds_total{pod=\"p\"} 1", 1),
            ("container_cpu_usage_seconds_total{pod=\"p 1", 1),
            ("container_cpu_usage_seconds_total{pod} 1", 1),
        ] {
            assert_eq!(parse(text, 1), Err(ExpositionError { line }), "{text}");
        }
        let text = "node_cpu_usage_seconds_total 1e300 9223372036854775807\nnode_memory_working_set_bytes NaN";
        assert_eq!(parse(text, 1).expect("parses").node, None, "NaN is no memory");
    }
}
