//! gRPC health checking (`grpc.health.v1`) for `grpc` probes.
use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::target::Outcome;
use super::words::address;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `ServingStatus.SERVING` of the health protocol.
const SERVING: i32 = 1;

/// Calls the health service once, within the limit.
pub async fn check(host: &str, port: u16, service: &str, limit: Duration) -> Outcome {
    let at = address(host, port);
    let work = async {
        let endpoint = Endpoint::from_shared(format!("http://{at}")).map_err(|e| Outcome::Unknown(e.to_string()))?;
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|e| {
            Outcome::Failure(format!("timeout: failed to connect service {at:?} within {}s: {e}", limit.as_secs()))
        })?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|e| Outcome::Failure(e.to_string()))?;
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
        let answer = grpc.unary(request, path, codec).await;
        let answer = answer.map_err(|s| match s.code() {
            tonic::Code::Unimplemented => Outcome::Failure(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                s.message()
            )),
            _ => Outcome::Failure(format!("error: health rpc probe failed: {s}")),
        })?;
        Ok::<i32, Outcome>(answer.into_inner().status)
    };
    match tokio::time::timeout(limit, work).await {
        Err(_) => Outcome::Failure(format!("timeout: health rpc did not complete within {}s", limit.as_secs())),
        Ok(Err(o)) => o,
        Ok(Ok(SERVING)) => Outcome::Success,
        Ok(Ok(other)) => {
            let word = match other {
                2 => "NOT_SERVING",
                3 => "SERVICE_UNKNOWN",
                _ => "UNKNOWN",
            };
            Outcome::Failure(format!("service unhealthy (responded with {word:?})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::{Frame, Incoming};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    /// Serves one connection: the service `good` is serving, all others are not.
    async fn answer(request: http::Request<Incoming>) -> Result<http::Response<Body>, std::convert::Infallible> {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        let asked = request.into_body().collect().await.expect("body").to_bytes();
        let status = if asked.ends_with(b"good") { 1 } else { 2 };
        let message = Bytes::from(vec![0, 0, 0, 0, 2, 8, status]);
        let trailers =
            http::HeaderMap::from_iter([("grpc-status".parse().expect("name"), "0".parse().expect("value"))]);
        let frames = [Ok(Frame::data(message)), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures::stream::iter(frames)).boxed_unsync();
        Ok(http::Response::builder().header("content-type", "application/grpc").body(body).expect("response"))
    }
    type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;

    #[tokio::test]
    async fn serving_not_serving_and_no_server() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let port = listener.local_addr().expect("address").port();
        let server = kelson_tasks::scoped("server", async move {
            let mut connections = Vec::new();
            for _ in 0..2 {
                let (tcp, _) = listener.accept().await.expect("accept");
                let service = hyper::service::service_fn(answer);
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let serving = builder.serve_connection(TokioIo::new(tcp), service);
                connections.push(kelson_tasks::scoped("connection", serving));
            }
            connections
        });
        let limit = Duration::from_secs(10);
        assert_eq!(check("127.0.0.1", port, "good", limit).await, Outcome::Success);
        let not = check("127.0.0.1", port, "bad", limit).await;
        assert_eq!(not, Outcome::Failure("service unhealthy (responded with \"NOT_SERVING\")".into()));
        let _connections = server.await.expect("both asked");
        let none = check("127.0.0.1", port, "good", limit).await;
        assert!(
            matches!(&none, Outcome::Failure(why) if why.starts_with("timeout: failed to connect service")),
            "{none:?}"
        );
    }
}
