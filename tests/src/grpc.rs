//! gRPC between a node and what is installed on it: a server whose answers a test gives, and single calls. It has threads of its own,
//! so that tests stay plain functions.
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

/// Longest wait for the answer to one call.
const CALL_MAX: Duration = Duration::from_secs(60);

/// A server; dropped, it ends as a process does: connections close, its socket goes.
pub struct GrpcServer {
    runtime: Option<Runtime>,
    socket: Option<PathBuf>,
}

impl GrpcServer {
    /// Answers at a unix socket, in whose place nothing else may be.
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

    /// Answers at a port of all addresses of this machine.
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
            // The kubelet removes what it finds when it starts.
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// One call at a unix socket: the message of the answer.
///
/// # Errors
/// Nobody answers in time, or the answer is a refusal, whose words the error has.
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
