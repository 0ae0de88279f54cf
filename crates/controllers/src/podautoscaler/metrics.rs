//! Clients of the metrics APIs: `metrics.k8s.io` (resource usage of pods), `custom.metrics.k8s.io` (metrics of objects)
//! and `external.metrics.k8s.io`. Extension servers serve these groups. Without one, a request gets the response for an
//! unknown path.
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use kelson_client::{Client, ClientError};
use kelson_meta::url::{append_query, encode};
use kelson_meta::{Quantity, null_default};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::usage::{Sample, Samples};
use crate::shared::scale::{Scales, Target};
use crate::views::{MetricName, ObjectOf};

/// The default window of a custom metric.
const WINDOW: Duration = Duration::from_secs(60);
const CUSTOM: &str = "custom.metrics.k8s.io";

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

/// `metrics.k8s.io/v1beta1` PodMetrics.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PodMetrics {
    metadata: Named,
    timestamp: Option<Timestamp>,
    window: String,
    #[serde(deserialize_with = "null_default")]
    containers: Vec<ContainerMetrics>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerMetrics {
    name: String,
    #[serde(deserialize_with = "null_default")]
    usage: std::collections::BTreeMap<String, String>,
}

/// `custom.metrics.k8s.io` MetricValue and `external.metrics.k8s.io` ExternalMetricValue.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetricValue {
    described_object: Named,
    timestamp: Option<Timestamp>,
    window_seconds: Option<u64>,
    window: Option<u64>,
    value: String,
}

#[derive(Deserialize)]
struct MetricsGroup {
    #[serde(default)]
    versions: Vec<MetricsVersion>,
}

#[derive(Deserialize)]
struct MetricsVersion {
    version: String,
}

/// Reads the metrics APIs.
pub struct MetricsClient {
    client: Client,
}

impl MetricsClient {
    /// Uses `client` for all requests.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn read<T: DeserializeOwned>(&self, path: &str, what: &str) -> Result<T, String> {
        let bytes = self.client.call(Method::GET, path, "", Bytes::new()).await.map_err(|e| said(&e, what))?;
        kelson_meta::from_json(&bytes).map_err(|e| e.to_string())
    }

    /// Returns the usage of a resource by the pods that `selector` selects, of all containers or of one.
    ///
    /// # Errors
    /// The message for the autoscaler's status.
    pub async fn of_pods(
        &self,
        namespace: &str,
        selector: &str,
        resource: &str,
        container: &str,
    ) -> Result<Samples, String> {
        let path = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods{}",
            query(&[("labelSelector", selector)])
        );
        let list: Result<List<PodMetrics>, String> = self.read(&path, "get pods.metrics.k8s.io").await;
        let items = list.map_err(|e| format!("unable to fetch metrics from resource metrics API: {e}"))?.items;
        let items = items.unwrap_or_default();
        if items.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        Ok(items.iter().filter_map(|m| Some((m.metadata.name.clone(), sample(m, resource, container)?))).collect())
    }

    /// Returns a custom metric of each pod that `selector` selects.
    ///
    /// # Errors
    /// The message for the autoscaler's status.
    pub async fn of_each_pod(&self, namespace: &str, selector: &str, metric: &MetricName) -> Result<Samples, String> {
        let series = metric.query()?;
        let query = query(&[("labelSelector", selector), ("metricLabelSelector", &series)]);
        let rest = format!("namespaces/{namespace}/pods/%2A/{}{query}", encode(&metric.name));
        let items = self.custom(&rest).await?;
        let one = |v: MetricValue| {
            let window = v.window_seconds.or(v.window).map_or(WINDOW, Duration::from_secs);
            Some((v.described_object.name, Sample { at: v.timestamp, window, value: milli(&v.value)? }))
        };
        Ok(items.into_iter().filter_map(one).collect())
    }

    /// Returns a custom metric of one object.
    ///
    /// # Errors
    /// The message for the autoscaler's status.
    pub async fn of_object(
        &self,
        scales: &Scales,
        namespace: &str,
        object: &ObjectOf,
        metric: &MetricName,
    ) -> Result<i64, String> {
        let series = metric.query()?;
        let query = query(&[("metricLabelSelector", &series)]);
        let name = encode(&metric.name);
        let rest = if object.kind == "Namespace" && matches!(object.api_version.as_str(), "v1" | "") {
            // An autoscaler may only read metrics of its namespace.
            format!("namespaces/{namespace}/metrics/{name}{query}")
        } else {
            let target = Target { api_version: &object.api_version, kind: &object.kind, namespace, name: &object.name };
            let resource = scales.resource_name(target).await.map_err(|e| e.to_string())?;
            format!("namespaces/{namespace}/{resource}/{}/{name}{query}", encode(&object.name))
        };
        let items = self.custom(&rest).await?;
        let [value] = items.as_slice() else {
            let n = items.len();
            return Err(format!("the custom metrics API server returned {n} results when we asked for exactly one"));
        };
        milli(&value.value)
            .ok_or_else(|| format!("the custom metrics API server returned no quantity: {:?}", value.value))
    }

    async fn custom(&self, rest: &str) -> Result<Vec<MetricValue>, String> {
        const FETCH: &str = "unable to fetch metrics from custom metrics API";
        let group: Result<MetricsGroup, String> =
            self.read(&format!("/apis/{CUSTOM}"), "get custom.metrics.k8s.io").await;
        let group = match group {
            Ok(group) => group,
            Err(_) => return Err(format!("{FETCH}: no custom metrics API ({CUSTOM}) registered")),
        };
        let newest = group.versions.iter().map(|v| v.version.as_str()).find(|v| matches!(*v, "v1beta2" | "v1beta1"));
        let Some(version) = newest else { return Err(format!("{FETCH}: no known available metric versions found")) };
        let path = format!("/apis/{CUSTOM}/{version}/{rest}");
        let list: List<MetricValue> =
            self.read(&path, "get custom metric").await.map_err(|e| format!("{FETCH}: {e}"))?;
        let items = list.items.unwrap_or_default();
        if items.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        Ok(items)
    }

    /// Returns an external metric, summed over its series.
    ///
    /// # Errors
    /// The message for the autoscaler's status.
    pub async fn external(&self, namespace: &str, metric: &MetricName) -> Result<i64, String> {
        let series = metric.query()?;
        let (name, query) = (encode(&metric.name), query(&[("labelSelector", &series)]));
        let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}{query}");
        let what = format!("get {}.external.metrics.k8s.io", metric.name);
        let list: Result<List<MetricValue>, String> = self.read(&path, &what).await;
        let items = list.map_err(|e| format!("unable to fetch metrics from external metrics API: {e}"))?.items;
        let items = items.unwrap_or_default();
        if items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        Ok(items.iter().filter_map(|v| milli(&v.value)).fold(0i64, i64::saturating_add))
    }
}

/// Formats an error as upstream's client does. Where no server serves the path, the error names the request; an adapter's own
/// `Status` is shown as it is.
fn said(e: &ClientError, what: &str) -> String {
    const UNSERVED: &str = "the server could not find the requested resource";
    match e.status() {
        Some(s) if s.code == 404 && (e.is_unexpected() || s.message == UNSERVED) => format!("{UNSERVED} ({what})"),
        _ => e.to_string(),
    }
}

fn milli(text: &str) -> Option<i64> {
    text.parse::<Quantity>().ok().map(Quantity::milli_value)
}

/// Returns the usage of a pod, or `None` if a container's usage is missing.
fn sample(m: &PodMetrics, resource: &str, container: &str) -> Option<Sample> {
    let of = |c: &ContainerMetrics| milli(c.usage.get(resource)?);
    let value = if container.is_empty() {
        let all: Option<Vec<i64>> = m.containers.iter().map(of).collect();
        all.filter(|a| !a.is_empty())?.into_iter().fold(0i64, i64::saturating_add)
    } else {
        of(m.containers.iter().find(|c| c.name == container)?)?
    };
    let window = m.window.parse::<jiff::SignedDuration>().ok().and_then(|d| Duration::try_from(d).ok());
    Some(Sample { at: m.timestamp, window: window.unwrap_or(WINDOW), value })
}

/// A query string; empty values are left out.
fn query(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    append_query(&mut out, pairs.iter().copied().filter(|(_, value)| !value.is_empty()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_pods_use() {
        let m = json!({"metadata": {"name": "p"}, "timestamp": "2026-01-01T00:00:00Z", "window": "30s", "containers": [
            {"name": "a", "usage": {"cpu": "250m", "memory": "1Ki"}}, {"name": "b", "usage": {"cpu": "1"}}]});
        let m: PodMetrics = serde_json::from_value(m).unwrap();
        let value = |resource: &str, container: &str| sample(&m, resource, container).map(|s| s.value);
        assert_eq!(
            (value("cpu", ""), value("cpu", "a"), value("memory", "a")),
            (Some(1250), Some(250), Some(1_024_000))
        );
        assert_eq!((value("memory", ""), value("memory", "b"), value("cpu", "x")), (None, None, None));
        assert_eq!(sample(&m, "cpu", "").unwrap().window, Duration::from_secs(30));
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(
            query(&[("labelSelector", "a in (b,c)"), ("x", ""), ("y", "z")]),
            "?labelSelector=a%20in%20%28b%2Cc%29&y=z"
        );
        assert_eq!(query(&[("x", "")]), "");
    }
}
