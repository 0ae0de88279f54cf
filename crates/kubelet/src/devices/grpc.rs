//! A server for unary gRPC calls on a Unix socket, for device plugins and clients of the PodResources API.
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kelson_tasks::{FILES, OnPanic, Tasks};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Maximum number of connections per socket.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of concurrent calls per connection.
const CALLS_MAX: u32 = 16;
/// Maximum size of a request in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A service that handles gRPC requests.
pub trait GrpcService: Clone + Send + Sync + 'static {
    /// Handles one request.
    fn call(&self, request: http::Request<Incoming>) -> BoxFuture<'static, http::Response<Body>>;
}

/// Decodes the message of a unary call, runs `work`, and encodes the response.
pub async fn answer<Q, A, F, R>(request: http::Request<Incoming>, work: F) -> http::Response<Body>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Send + 'static,
    F: FnMut(Q) -> R + Send,
    R: Future<Output = Result<A, Status>> + Send + 'static,
{
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    grpc.unary(Work(work), request).await
}

/// Response to a call of an unknown method.
pub fn unknown() -> http::Response<Body> {
    Status::unimplemented("unknown method").into_http()
}

struct Work<F>(F);

impl<Q, A, F, R> UnaryService<Q> for Work<F>
where
    A: Send + 'static,
    F: FnMut(Q) -> R,
    R: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = BoxFuture<'static, Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

/// Listens at `socket`, which only root can access, and serves until the task is aborted.
///
/// # Errors
/// It cannot listen there.
pub async fn serve(tasks: &Tasks, name: &'static str, socket: &Path, calls: impl GrpcService) -> std::io::Result<()> {
    let path = socket.to_owned();
    FILES.run(move || prepare(&path)).await.map_err(std::io::Error::other)??;
    let listener = UnixListener::bind(socket)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let (connection, _) = listener.accept().await?;
        let calls = calls.clone();
        let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let answer = calls.call(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        tasks.spawn(name, OnPanic::Contain, async move {
            let _place = place;
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let serving = server.max_concurrent_streams(CALLS_MAX).serve_connection(TokioIo::new(connection), service);
            if let Err(error) = serving.await {
                tracing::debug!(%error, name, "a connection to a plugin socket ended with an error");
            }
        });
    }
}

/// Creates the directory, which only root can access, and removes the socket of an earlier kubelet.
#[allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
fn prepare(socket: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o750))?;
    }
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
