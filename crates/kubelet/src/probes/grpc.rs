//! gRPC health checking (`grpc.health.v1`), as `grpc` probes use it.
use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::Outcome;
use super::handlers::address;

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

/// `SERVING`.
const SERVING: i32 = 1;

/// Asks once.
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
