//! Calls of a key service over its unix socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::proto::{DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse};
use crate::metrics::Metrics;

/// Largest answer: a data key and annotations of 32 KiB fit.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// The service's name in the paths of its methods.
const SERVICE: &str = "/v2.KeyManagementService";

/// One key service.
pub(crate) struct Service {
    name: String,
    channel: Channel,
    timeout: Duration,
    metrics: Arc<Metrics>,
}

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub(crate) struct CallError {
    pub code: Code,
    pub message: String,
}

impl Service {
    /// A service at `unix:///PATH`; connects when it is first called.
    pub fn new(name: &str, endpoint: &str, timeout: Duration, metrics: Arc<Metrics>) -> Result<Self, String> {
        let to = Endpoint::from_shared(endpoint.to_owned()).map_err(|e| e.to_string())?;
        let channel = to.connect_timeout(timeout).connect_lazy();
        Ok(Self { name: name.to_owned(), channel, timeout, metrics })
    }

    /// Requests the version, the health and the current key.
    pub async fn status(&self) -> Result<StatusResponse, CallError> {
        self.call("Status", StatusRequest {}).await
    }

    /// Encrypts a data key.
    pub async fn encrypt(&self, request: EncryptRequest) -> Result<EncryptResponse, CallError> {
        self.call("Encrypt", request).await
    }

    /// Decrypts a data key.
    pub async fn decrypt(&self, request: DecryptRequest) -> Result<DecryptResponse, CallError> {
        self.call("Decrypt", request).await
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, CallError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let begun = Instant::now();
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let work = async {
            let fault = |code, message: String| CallError { code, message };
            grpc.ready().await.map_err(|e| fault(Code::Unavailable, chain(&e)))?;
            let path = PathAndQuery::try_from(format!("{SERVICE}/{method}"))
                .map_err(|e| fault(Code::Internal, e.to_string()))?;
            let answer = grpc.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await;
            answer.map(tonic::Response::into_inner).map_err(|s| fault(s.code(), s.message().to_owned()))
        };
        let done = match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(CallError { code: Code::DeadlineExceeded, message: "context deadline exceeded".to_owned() }),
        };
        let code = format!("{:?}", done.as_ref().err().map_or(Code::Ok, |e| e.code));
        let code = if code == "Ok" { "OK" } else { &code };
        let full = format!("{SERVICE}/{method}");
        self.metrics.called(&self.name, &full, code, begun.elapsed());
        done
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        message = format!("{message}: {e}");
        cause = e.source();
    }
    message
}
