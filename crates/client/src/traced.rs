//! Traces requests to the API server as parts of the work that makes them: a span each, if that work is recorded, and
//! the trace context is sent to the server in any case.
use std::sync::Arc;

use kelson_traces::KeyValue;
use kelson_transport::BoxFuture;

use crate::{Request, Response, Transport, TransportError};

/// Adds trace context and spans to the requests of a transport.
pub(crate) struct TracedTransport(pub Arc<dyn Transport>);

impl Transport for TracedTransport {
    fn send(&self, mut request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let method = request.method().as_str();
        let span = kelson_traces::client(&format!("HTTP {method}"), || {
            let path = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
            vec![KeyValue::text("http.request.method", method), KeyValue::text("url.full", path)]
        });
        span.pass_on(request.headers_mut());
        let answer = self.0.send(request);
        Box::pin(async move {
            let answer = answer.await;
            match &answer {
                Ok(answer) => {
                    let code = answer.status().as_u16();
                    span.set(|| vec![KeyValue::number("http.response.status_code", code)]);
                    if code >= 400 {
                        span.fail("");
                    }
                }
                Err(e) => span.fail(&e.to_string()),
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};
    use kelson_traces::Span;
    use kelson_transport::full_body;

    use super::*;

    /// Answers with the trace that the request named.
    struct Echo;

    impl Transport for Echo {
        fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
            let trace = request.headers().get("traceparent").cloned();
            Box::pin(async move {
                let mut answer = Response::new(full_body(""));
                answer.headers_mut().extend(trace.map(|t| (HeaderName::from_static("traceparent"), t)));
                Ok(answer)
            })
        }
    }

    #[tokio::test]
    async fn the_server_receives_the_trace() {
        let transport = TracedTransport(Arc::new(Echo));
        let reported = async || {
            let answer = transport.send(Request::default()).await.unwrap();
            answer.headers().get("traceparent").cloned()
        };
        assert_eq!(reported().await, None);
        let trace = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let headers = HeaderMap::from_iter([(HeaderName::from_static("traceparent"), trace.clone())]);
        assert_eq!(Span::passed(&headers).scope(reported()).await, Some(trace));
    }
}
