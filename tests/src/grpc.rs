//! gRPC between a node and its plugins: a server whose answers a test defines, and single calls. It has separate
//! threads, so that tests stay synchronous.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::{Builder, Runtime};

#[path = "../../crates/kubelet/tests/suite/grpc.rs"]
mod wire;

pub use wire::{Frames, ended, framed};

/// The timeout of a call.
const CALL_MAX: Duration = Duration::from_secs(60);

/// A server; dropping it closes its connections and removes its socket, like the end of a process.
pub struct GrpcServer {
    runtime: Option<Runtime>,
    socket: Option<PathBuf>,
}

impl GrpcServer {
    /// Listens on a unix socket; the path must not exist.
    pub fn at_socket<F>(socket: &Path, answer: F) -> anyhow::Result<Self>
    where
        F: Fn(&str, &[u8]) -> Frames + Send + Sync + 'static,
    {
        ensure!(!socket.exists(), "{} is there already", socket.display());
        ensure!(socket.parent().is_some_and(Path::is_dir), "the directory of {} is not there yet", socket.display());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        {
            let _inside = runtime.enter();
            wire::listen(socket, answer);
        }
        Ok(Self { runtime: Some(runtime), socket: Some(socket.to_owned()) })
    }

    /// Listens on a port of all addresses of this machine.
    pub fn at_port<F>(port: u16, answer: F) -> anyhow::Result<Self>
    where
        F: Fn(&str, &[u8]) -> Frames + Send + Sync + 'static,
    {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let address = SocketAddr::from(([0, 0, 0, 0], port));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address))?;
        {
            let _inside = runtime.enter();
            wire::listen_at(listener, answer);
        }
        Ok(Self { runtime: Some(runtime), socket: None })
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if let Some(socket) = &self.socket {
            // A starting kubelet removes sockets.
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Makes one call at a unix socket; returns the message of the answer.
///
/// # Errors
/// There is no answer in time, or it is an error, whose message is included.
pub fn call(socket: &Path, path: &str, message: &[u8]) -> anyhow::Result<Vec<u8>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answer = async { tokio::time::timeout(CALL_MAX, answer(socket, path, message)).await };
    runtime.block_on(answer).with_context(|| format!("{path}: no answer within {CALL_MAX:?}"))?
}

async fn answer(socket: &Path, path: &str, message: &[u8]) -> anyhow::Result<Vec<u8>> {
    let io = TokioIo::new(tokio::net::UnixStream::connect(socket).await?);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(framed(message)))?;
    let response = sender.send_request(request).await?;
    let head = response.headers().clone();
    let body = response.into_body().collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let said = |name: &str| {
        let value = trailers.get(name).or_else(|| head.get(name)).and_then(|v| v.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    if said("grpc-status") != "0" {
        bail!("{path}: status {}: {}", said("grpc-status"), said("grpc-message"));
    }
    let bytes = body.to_bytes();
    Ok(bytes.get(wire::PREFIX_BYTES..).unwrap_or_default().to_vec())
}
