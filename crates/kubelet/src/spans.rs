//! Trace spans of the kubelet under upstream's names: pod syncs and terminations, garbage collection, and requests to its server. Calls to
//! the runtime and the API server are child spans.
use std::sync::Arc;

use http::request::Parts;
use http::{StatusCode, header};
use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_tasks::Tasks;
use kelson_traces::{Exporter, ExporterOptions, KeyValue, Origin, Pace, Span, Tracer, TracingConfiguration};

use crate::pod;

/// Records spans if tracing is configured; otherwise does nothing. Clones share one tracer.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Tracer>>);

impl Spans {
    /// Starts the exporter for this node as `tracing` in the configuration says. Returns the exporter's metrics as well.
    ///
    /// # Errors
    /// The endpoint is invalid.
    pub fn start(
        configuration: Option<&TracingConfiguration>,
        node_name: &str,
        clock: &Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Result<(Self, Option<Registry>), String> {
        let Some(configuration) = configuration.cloned() else { return Ok((Self::default(), None)) };
        let resource = vec![KeyValue::text("service.name", "kubelet"), KeyValue::text("host.name", node_name)];
        let options = ExporterOptions {
            configuration,
            resource,
            clock: Arc::clone(clock),
            pace: Pace::default(),
            tasks: tasks.clone(),
        };
        let (tracer, counted) = Exporter::start(options).map_err(|e| format!("tracing: {e}"))?;
        Ok((Self(Some(tracer)), Some(counted)))
    }

    /// Exports the remaining spans.
    pub async fn close(&self) {
        if let Some(tracer) = &self.0 {
            tracer.close().await;
        }
    }

    /// Starts a span for work on the whole node, such as `Images/GarbageCollect`.
    pub fn node(&self, name: &str) -> Span {
        self.work(name, Vec::new)
    }

    /// Starts a span for work on one pod, such as `syncPod`. `update` is the type of update, where upstream sets it (`create`, `update`).
    pub fn pod(&self, name: &str, pod: &Pod, update: Option<&str>) -> Span {
        self.work(name, || {
            let mut attributes = vec![
                KeyValue::text("k8s.pod.uid", pod::uid(pod)),
                KeyValue::text("k8s.pod", format!("{}/{}", pod::namespace(pod), pod::name(pod))),
                KeyValue::text("k8s.pod.name", pod::name(pod)),
                KeyValue::text("k8s.namespace.name", pod::namespace(pod)),
            ];
            attributes.extend(update.map(|update| KeyValue::text("k8s.pod.update_type", update)));
            attributes
        })
    }

    fn work(&self, name: &str, attributes: impl FnOnce() -> Vec<KeyValue>) -> Span {
        self.0.as_ref().map_or_else(Span::default, |tracer| tracer.work(name, attributes))
    }

    /// Starts a span for an authorized request to the kubelet's server. It continues the trace in the request's headers.
    pub fn request(&self, parts: &Parts, route: &str) -> Span {
        let Some(tracer) = &self.0 else { return Span::passed(&parts.headers) };
        let attributes = || {
            let text = |name| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
            let mut attributes = vec![
                KeyValue::text("http.request.method", parts.method.as_str()),
                KeyValue::text("url.scheme", "https"),
                KeyValue::text("url.path", parts.uri.path()),
                KeyValue::text("server.address", "kubelet"),
            ];
            let agent = text(header::USER_AGENT);
            if !agent.is_empty() {
                attributes.push(KeyValue::text("user_agent.original", agent));
            }
            if !route.is_empty() {
                attributes.push(KeyValue::text("http.route", route));
            }
            attributes
        };
        let name = || if route.is_empty() { parts.method.as_str() } else { route }.to_owned();
        tracer.request(&parts.headers, Origin::Trusted, name, attributes)
    }
}

/// Records the status code of a response.
pub fn answered(span: &Span, code: StatusCode) {
    span.set(|| vec![KeyValue::number("http.response.status_code", code.as_u16())]);
    if code.is_server_error() {
        span.fail("");
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use kelson_doubles::collector::Collector;
    use kelson_meta::SystemClock;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn spans_have_upstreams_names() {
        let mut collector = Collector::start().await;
        let configuration = TracingConfiguration {
            endpoint: Some(collector.endpoint().to_owned()),
            sampling_rate_per_million: Some(1_000_000),
        };
        let (clock, tasks): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Tasks::root("spans"));
        let (spans, counted) = Spans::start(Some(&configuration), "n1", &clock, &tasks).expect("a collector");
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let work = spans.pod("syncPod", &pod, Some("create"));
        work.fail("no image");
        drop(work);
        drop(spans.node("Images/GarbageCollect"));
        let (parts, ()) = Request::get("/metrics/resource").body(()).expect("a request").into_parts();
        let request = spans.request(&parts, "/metrics/resource");
        answered(&request, StatusCode::OK);
        drop(request);
        spans.close().await;
        let all = collector.when(|all| all.len() == 3).await;
        let names: Vec<(&str, i32, i32)> = all.iter().map(|s| (s.name.as_str(), s.kind, s.status)).collect();
        assert_eq!(names, [("syncPod", 1, 2), ("Images/GarbageCollect", 1, 0), ("/metrics/resource", 2, 0)]);
        let said = |n: usize, key: &str| all[n].attributes.get(key).cloned().unwrap_or_default();
        assert_eq!((said(0, "k8s.pod"), said(0, "k8s.pod.update_type")), ("n/p".into(), "create".into()));
        assert_eq!((said(0, "k8s.pod.uid"), said(0, "k8s.namespace.name")), ("u".into(), "n".into()));
        assert_eq!(
            (said(2, "http.route"), said(2, "http.response.status_code")),
            ("/metrics/resource".into(), "200".into())
        );
        assert!(all.iter().all(|s| s.service == "kubelet" && s.parent.is_empty()));
        let text = counted.expect("counted").text();
        assert!(text.contains("kelson_tracing_spans_total{result=\"exported\"} 3"), "{text}");
    }

    #[tokio::test]
    async fn without_a_configuration_no_spans_are_recorded() {
        let (spans, counted) =
            Spans::start(None, "n1", &(Arc::new(SystemClock) as Arc<dyn Clock>), &Tasks::root("spans"))
                .expect("nothing");
        assert!(counted.is_none() && spans.node("Containers/GarbageCollect").current().context().is_none());
        spans.close().await;
    }
}
