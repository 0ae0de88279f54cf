//! The gRPC channel to a unix socket, and calls over it: to the runtime, and to node plugins.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::error::{CriError, CriResult};

/// The maximum size of an answer from a runtime, as in upstream's kubelet (`maxMsgSize`): a list of thousands of
/// containers fits.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The timeout of a connection attempt to the socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Creates a lazily connected channel to a unix socket.
///
/// # Errors
/// The endpoint is not an absolute path of a unix socket.
pub fn connect(endpoint: &str) -> CriResult<Channel> {
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        None if !endpoint.is_empty() => endpoint.strip_prefix("unix:").unwrap_or(endpoint),
        _ => {
            let message = format!("container runtime endpoint {endpoint:?}: only unix:///path is supported");
            return Err(CriError::new("Connect", Code::InvalidArgument, message));
        }
    };
    if !Path::new(path).is_absolute() {
        let message = format!("container runtime endpoint {endpoint:?}: the socket's path must be absolute");
        return Err(CriError::new("Connect", Code::InvalidArgument, message));
    }
    let endpoint = Endpoint::from_shared(format!("unix://{path}"))
        .map_err(|e| CriError::new("Connect", Code::InvalidArgument, e.to_string()))?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy())
}

/// Makes a call with one request and one answer, within `limit`.
///
/// # Errors
/// The status of the server, or that it could not be reached in time.
pub async fn unary<Q, A>(
    channel: &Channel,
    name: &'static str,
    path: &'static str,
    limit: Option<Duration>,
    mut request: Request<Q>,
) -> CriResult<A>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    if let Some(limit) = limit {
        // The runtime receives the deadline too and stops the work when it passes.
        request.set_timeout(limit);
    }
    let work = async {
        grpc.ready().await.map_err(|e| transport_error(name, &e))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|s| CriError::from_status(name, &s))
    };
    match limit {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => Err(CriError::new(name, Code::DeadlineExceeded, "context deadline exceeded")),
        },
    }
}

/// Makes a call with one request and a stream of answers, without a time limit.
///
/// # Errors
/// The status of the server, or that it could not be reached.
pub async fn stream<Q, A>(
    channel: &Channel,
    name: &'static str,
    path: &'static str,
    request: Q,
) -> CriResult<BoxStream<'static, CriResult<A>>>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.ready().await.map_err(|e| transport_error(name, &e))?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.server_streaming(Request::new(request), PathAndQuery::from_static(path), codec).await;
    let answers = answer.map_err(|s| CriError::from_status(name, &s))?.into_inner();
    Ok(answers.map(move |a| a.map_err(|s| CriError::from_status(name, &s))).boxed())
}

pub(crate) fn transport_error(name: &'static str, error: &tonic::transport::Error) -> CriError {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(err) = cause {
        message = format!("{message}: {err}");
        cause = err.source();
    }
    CriError::new(name, Code::Unavailable, message)
}
