//! The `healthz` port (`healthzBindAddress`, `healthzPort`): plain HTTP for `kubeadm` and supervisors on this machine.
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kelson_tasks::{OnPanic, Tasks};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::answer::{Body, not_found, text};

/// Delay before a port in use is tried again.
const TAKEN_RETRY: Duration = Duration::from_secs(5);
/// Timeout for request headers and for idle connections.
const HEAD_MAX: Duration = Duration::from_secs(15);
/// Maximum number of connections; more are closed.
const CONNECTIONS_MAX: usize = 32;

/// Serves until the task is aborted. If the port is in use, the kubelet works without it and retries.
pub async fn serve(tasks: Tasks, at: SocketAddr) {
    let mut is_logged = false;
    let listener = loop {
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            Err(error) if !is_logged => tracing::warn!(%at, %error, "cannot listen on the healthz port; retrying"),
            Err(_) => {}
        }
        is_logged = true;
        tokio::time::sleep(TAKEN_RETRY).await;
    };
    listen(tasks, listener).await;
}

async fn listen(tasks: Tasks, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            tokio::time::sleep(TAKEN_RETRY).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        tasks.spawn("health-connection", OnPanic::Contain, async move {
            let _place = place;
            let service =
                service_fn(
                    |request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(request.uri().path())) },
                );
            let mut server = hyper::server::conn::http1::Builder::new();
            let server = server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
            // A client that disconnects needs no response.
            let _ = server.serve_connection(TokioIo::new(tcp), service).await;
        });
    }
}

fn answer(path: &str) -> Response<Body> {
    match path {
        "/healthz" | "/healthz/ping" => text(StatusCode::OK, "ok"),
        _ => not_found(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn the_healthz_port_serves_only_healthz() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let at = listener.local_addr().expect("its address");
        let tasks = Tasks::root("test");
        let _serving = tasks.scoped("health", listen(tasks.clone(), listener));
        for (path, status, body) in [
            ("/healthz", "200 OK", "ok"),
            ("/healthz/ping", "200 OK", "ok"),
            ("/metrics", "404 Not Found", "404 page not found\n"),
        ] {
            let mut tcp = TcpStream::connect(at).await.expect("connected");
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            tcp.write_all(request.as_bytes()).await.expect("asked");
            let mut said = String::new();
            tcp.read_to_string(&mut said).await.expect("answered");
            assert!(
                said.starts_with(&format!("HTTP/1.1 {status}\r\n")) && said.ends_with(&format!("\r\n\r\n{body}")),
                "{said}"
            );
        }
    }
}
