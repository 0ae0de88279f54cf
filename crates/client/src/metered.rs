//! What a component shows of its requests to the API server, under the names that client-go's clients have.
use std::sync::Arc;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry};
use kelson_transport::BoxFuture;
use tokio::time::Instant;

use crate::{Request, Response, Transport, TransportError};

/// The value of the label `host` for the API server, which does not change with its address.
pub const API_HOST: &str = "kubernetes.default.svc";

/// The code of a request that got no answer.
const NO_ANSWER: &str = "<error>";

/// Counts the requests of a component, by code and method, and how long their answers took.
#[derive(Clone, Debug)]
pub struct Metered {
    requests: IntCounterVec,
    durations: HistogramVec,
    host: Arc<str>,
}

impl Metered {
    /// Registers the metrics; a registry accepts them once. `host` is the destination of the requests.
    pub fn new(registry: &Registry, host: &str) -> Self {
        let bounds = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
        let (requests, durations) = ("rest_client_requests_total", "rest_client_request_duration_seconds");
        Self {
            requests: registry.counters(requests, "Requests to the API server.", &["code", "method", "host"]),
            durations: registry.histograms(
                durations,
                "Time in seconds until the response headers were received.",
                &["verb", "host"],
                &bounds,
            ),
            host: host.into(),
        }
    }

    /// Returns the transport with its requests counted.
    pub fn over(&self, transport: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(MeteredTransport { metered: self.clone(), transport })
    }

    fn count(&self, method: &str, began: Instant, answer: &Result<Response, TransportError>) {
        let status = answer.as_ref().ok().map(Response::status);
        let code = status.as_ref().map_or(NO_ANSWER, http::StatusCode::as_str);
        self.requests.with_label_values(&[code, method, &self.host]).inc();
        self.durations.with_label_values(&[method, &self.host]).observe(began.elapsed().as_secs_f64());
    }
}

struct MeteredTransport {
    metered: Metered,
    transport: Arc<dyn Transport>,
}

impl Transport for MeteredTransport {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let (metered, method) = (self.metered.clone(), request.method().clone());
        let answer = self.transport.send(request);
        Box::pin(async move {
            let began = Instant::now();
            let answer = answer.await;
            metered.count(method.as_str(), began, &answer);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use kelson_transport::full_body;

    use super::*;

    struct Fake;

    impl Transport for Fake {
        fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
            Box::pin(async move {
                match request.uri().path() {
                    "/none" => Err(TransportError::new("no way")),
                    path => {
                        let mut answer = Response::new(full_body(""));
                        *answer.status_mut() = if path == "/ok" { StatusCode::OK } else { StatusCode::CONFLICT };
                        Ok(answer)
                    }
                }
            })
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_their_answer() {
        let registry = Registry::new();
        let transport = Metered::new(&registry, "here").over(Arc::new(Fake));
        for path in ["/ok", "/ok", "/other", "/none"] {
            let mut request = Request::default();
            *request.uri_mut() = path.parse().unwrap();
            drop(transport.send(request).await);
        }
        let text = registry.text();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"here\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"409\",host=\"here\",method=\"GET\"} 1",
            "rest_client_requests_total{code=\"<error>\",host=\"here\",method=\"GET\"} 1",
            "rest_client_request_duration_seconds_count{host=\"here\",verb=\"GET\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
