//! The tracing configuration of the operator (`TracingConfiguration`, `component-base/tracing/api/v1`): the address of
//! the collector and the sampling rate.
use kelson_meta::{FieldErrors, FieldPath};
use serde_json::Value;

const GROUP: &str = "apiserver.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const KIND: &str = "TracingConfiguration";
/// The default address of the collector.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const PER_MILLION_MAX: i32 = 1_000_000;

/// The address of the collector, and the share of requests that are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracingConfiguration {
    /// The collector: `HOST:PORT`, or a gRPC name (`dns:///HOST:PORT`, `unix:///PATH`).
    pub endpoint: Option<String>,
    /// The number of requests per million that are recorded, among those without a trace. If it is not set, a request
    /// is recorded only if its caller records the trace.
    pub sampling_rate_per_million: Option<i32>,
}

impl TracingConfiguration {
    /// Decodes a configuration file.
    ///
    /// # Errors
    /// Returns the message of upstream's decoder.
    pub fn decode(text: &[u8]) -> Result<Self, String> {
        let (tree, duplicates) = kelson_codec::yaml::to_value(text).map_err(|e| e.to_string())?;
        for (field, shown) in [("kind", "Kind"), ("apiVersion", "apiVersion")] {
            if tree[field].as_str().is_none_or(str::is_empty) {
                return Err(format!("Object '{shown}' is missing in '{}'", String::from_utf8_lossy(text)));
            }
        }
        let (version, kind) = (tree["apiVersion"].as_str().unwrap_or(""), tree["kind"].as_str().unwrap_or(""));
        let known =
            version.strip_prefix(GROUP).and_then(|v| v.strip_prefix('/')).is_some_and(|v| VERSIONS.contains(&v));
        if !known || kind != KIND {
            return Err(format!("no kind {kind:?} is registered for version {version:?}"));
        }
        let found = Self::of(&tree)?;
        let known = ["apiVersion", "kind", "endpoint", "samplingRatePerMillion"];
        let unknown = tree.as_object().into_iter().flatten().filter(|(key, _)| !known.contains(&key.as_str()));
        let unknown = unknown.map(|(key, _)| format!("unknown field {key:?}"));
        let strict: Vec<String> = duplicates.iter().map(ToString::to_string).chain(unknown).collect();
        match strict.is_empty() {
            true => Ok(found),
            false => Err(format!("strict decoding error: {}", strict.join(", "))),
        }
    }

    /// Reads the two fields from a tree.
    ///
    /// # Errors
    /// Fails for a value of the wrong type.
    pub fn of(tree: &Value) -> Result<Self, String> {
        let endpoint = match &tree["endpoint"] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => return Err(misfit("endpoint", kelson_codec::go_kind(other, "object"), "string")),
        };
        let rate = &tree["samplingRatePerMillion"];
        let sampling_rate_per_million = match rate.as_i64().map(i32::try_from) {
            _ if rate.is_null() => None,
            Some(Ok(rate)) => Some(rate),
            _ if rate.is_number() => return Err(misfit("samplingRatePerMillion", &format!("number {rate}"), "int32")),
            _ => return Err(misfit("samplingRatePerMillion", kelson_codec::go_kind(rate, "object"), "int32")),
        };
        Ok(Self { endpoint, sampling_rate_per_million })
    }

    /// Validates the configuration. `at` is its path if it is part of another configuration.
    pub fn check(&self, at: Option<&FieldPath>) -> FieldErrors {
        let child = |name: &str| at.map_or_else(|| FieldPath::new(name), |at| at.child(name));
        let mut errors = FieldErrors::new();
        if let Some(rate) = self.sampling_rate_per_million {
            let at = child("samplingRatePerMillion");
            if rate < 0 {
                errors.invalid(&at, rate, "sampling rate must be positive");
            }
            if rate > PER_MILLION_MAX {
                errors.invalid(&at, rate, "sampling rate per million must be less than or equal to one million");
            }
        }
        if let Some(endpoint) = &self.endpoint {
            let endpoint = if endpoint.contains("//") { endpoint.clone() } else { format!("dns://{endpoint}") };
            if let Err(why) = check_endpoint(&endpoint) {
                errors.invalid(&child("endpoint"), &endpoint, why);
            }
        }
        errors
    }

    /// Converts the collector's address to a connection target.
    ///
    /// # Errors
    /// Fails for an address that is valid upstream, but not supported here.
    pub(crate) fn target(&self) -> Result<Target, String> {
        let endpoint = self.endpoint.as_deref().filter(|e| !e.is_empty()).unwrap_or(DEFAULT_ENDPOINT);
        if let Some(rest) = endpoint.strip_prefix("unix-abstract:") {
            return match rest.strip_prefix("//") {
                None => Ok(Target::Abstract(rest.to_owned())),
                Some(path) if path.starts_with('/') => Ok(Target::Abstract(path.to_owned())),
                Some(_) => Err(format!("{endpoint}: invalid (non-empty) authority")),
            };
        }
        if endpoint.starts_with("unix:") {
            return Ok(Target::Uri(endpoint.to_owned()));
        }
        let Some(rest) = endpoint.strip_prefix("dns:") else { return Ok(Target::Uri(format!("http://{endpoint}"))) };
        // The part before the slash names a DNS server; the collector's name follows it.
        let name = match rest.strip_prefix("//").and_then(|rest| rest.split_once('/')) {
            Some((_, name)) => name,
            None => rest.trim_start_matches('/'),
        };
        Ok(Target::Uri(format!("http://{name}")))
    }
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A network address, or the path of a Unix socket.
    Uri(String),
    /// The name of an abstract Unix socket.
    Abstract(String),
}

/// Describes a value of the wrong type in the words of Go's decoder.
fn misfit(field: &str, shown: &str, wanted: &str) -> String {
    format!("json: cannot unmarshal {shown} into Go struct field {KIND}.{field} of type {wanted}")
}

/// Validates a URL and its scheme as a gRPC name, in the words of Go's `net/url`.
fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let unread = |why: &str| Err(format!("parse {endpoint:?}: {why}"));
    if endpoint.bytes().any(|b| b < b' ' || b == 0x7f) {
        return unread("net/url: invalid control character in URL");
    }
    let scheme = match endpoint.split_once(':') {
        Some(("", _)) => return unread("missing protocol scheme"),
        Some((scheme, _)) if is_scheme(scheme) => scheme.to_ascii_lowercase(),
        Some((head, _)) if !head.contains('/') => return unread("first path segment in URL cannot contain colon"),
        _ => String::new(),
    };
    let rest = endpoint.get(scheme.len() + 1..).unwrap_or_default();
    let behind = rest.strip_prefix("//").unwrap_or_default();
    let host = behind.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((_, port)) => port,
            None => return unread("missing ']' in host"),
        },
        None => host.rfind(':').map_or("", |i| &host[i..]),
    };
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit())) {
        return unread(&format!("invalid port {port:?} after host"));
    }
    if let Some(wrong) = host.chars().find(|c| " \\^`{}|".contains(*c)) {
        return unread(&format!("invalid character {:?} in host name", wrong.to_string()));
    }
    if let Err(wrong) = kelson_meta::url::decode_bytes(behind) {
        return unread(&format!("invalid URL escape {wrong:?}"));
    }
    if !["dns", "unix", "unix-abstract"].contains(&scheme.as_str()) {
        let options = "Options are none, dns, unix, or unix-abstract.";
        let more = "See https://github.com/grpc/grpc/blob/master/doc/naming.md";
        return Err(format!("unsupported scheme: {scheme}.  {options}  {more}"));
    }
    Ok(())
}

fn is_scheme(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    #[test]
    fn files_are_read_as_upstream_reads_them() {
        let read = TracingConfiguration::decode(format!("{HEAD}endpoint: a:1\nsamplingRatePerMillion: 5").as_bytes());
        let want = TracingConfiguration { endpoint: Some("a:1".to_owned()), sampling_rate_per_million: Some(5) };
        assert_eq!(read, Ok(want));
        assert_eq!(TracingConfiguration::decode(HEAD.as_bytes()), Ok(TracingConfiguration::default()));
        for (text, why) in [
            (format!("{HEAD}rate: 1"), "strict decoding error: unknown field \"rate\""),
            (
                format!("{HEAD}samplingRatePerMillion: many"),
                "json: cannot unmarshal string into Go struct field TracingConfiguration.samplingRatePerMillion of type int32",
            ),
            (
                format!("{HEAD}samplingRatePerMillion: 3000000000"),
                "json: cannot unmarshal number 3000000000 into Go struct field TracingConfiguration.samplingRatePerMillion of type int32",
            ),
            (
                "apiVersion: apiserver.config.k8s.io/v2\nkind: TracingConfiguration".to_owned(),
                "no kind \"TracingConfiguration\" is registered for version \"apiserver.config.k8s.io/v2\"",
            ),
            ("kind: TracingConfiguration".to_owned(), "Object 'apiVersion' is missing in 'kind: TracingConfiguration'"),
            ("apiVersion: v1".to_owned(), "Object 'Kind' is missing in 'apiVersion: v1'"),
        ] {
            assert_eq!(TracingConfiguration::decode(text.as_bytes()), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn faults_have_upstreams_messages() {
        const NAMING: &str = "  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md";
        let reported = |endpoint: Option<&str>, rate: Option<i32>| {
            let endpoint = endpoint.map(str::to_owned);
            let errors = TracingConfiguration { endpoint, sampling_rate_per_million: rate }.check(None);
            if errors.is_empty() { String::new() } else { errors.to_string() }
        };
        for endpoint in ["localhost:4317", "dns://google.com:4317", "unix://path/to/socket", "[::1]:4317", "dns:///a:1"]
        {
            assert_eq!(reported(Some(endpoint), Some(1_000_000)), "", "{endpoint}");
        }
        let refused = |shown: &str, why: &str| format!("endpoint: Invalid value: {shown:?}: {why}");
        for (endpoint, why) in [
            ("http://localhost:4317", refused("http://localhost:4317", &format!("unsupported scheme: http.{NAMING}"))),
            (
                "dn%2s://localhost:4317",
                refused(
                    "dn%2s://localhost:4317",
                    "parse \"dn%2s://localhost:4317\": first path segment in URL cannot contain colon",
                ),
            ),
            ("a:b", refused("dns://a:b", "parse \"dns://a:b\": invalid port \":b\" after host")),
            ("a%zz", refused("dns://a%zz", "parse \"dns://a%zz\": invalid URL escape \"%zz\"")),
        ] {
            assert_eq!(reported(Some(endpoint), None), why);
        }
        assert_eq!(
            reported(None, Some(-1)),
            "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"
        );
        assert_eq!(
            reported(None, Some(1_000_001)),
            "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million"
        );
    }

    #[test]
    fn collectors_are_named_as_grpc_names_them() {
        let uri = |uri: &str| Target::Uri(uri.to_owned());
        for (endpoint, want) in [
            (None, Ok(uri("http://localhost:4317"))),
            (Some("a:1"), Ok(uri("http://a:1"))),
            (Some("dns:///a:1"), Ok(uri("http://a:1"))),
            (Some("dns://8.8.8.8/a:1"), Ok(uri("http://a:1"))),
            (Some("dns:a:1"), Ok(uri("http://a:1"))),
            (Some("unix:///run/otel.sock"), Ok(uri("unix:///run/otel.sock"))),
            (Some("unix-abstract:x"), Ok(Target::Abstract("x".to_owned()))),
            (Some("unix-abstract:///x/y"), Ok(Target::Abstract("/x/y".to_owned()))),
            (Some("unix-abstract://x/y"), Err("unix-abstract://x/y: invalid (non-empty) authority")),
        ] {
            let of = TracingConfiguration { endpoint: endpoint.map(str::to_owned), ..TracingConfiguration::default() };
            assert_eq!(of.target(), want.map_err(str::to_owned), "{endpoint:?}");
        }
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        let document = serde_json::json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "TracingConfiguration",
            "endpoint": "localhost:4317", "samplingRatePerMillion": 1});
        assert!(TracingConfiguration::decode(document.to_string().as_bytes()).is_ok());
        for (at, misspelt) in kelson_codec::strict::misspelt(&document) {
            let why = TracingConfiguration::decode(misspelt.to_string().as_bytes()).expect_err(&at);
            assert!(why.contains("misspelt"), "{at}: {why}");
        }
    }
}
