//! The test server's HTTP interface: access control, routing and answers.
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kelson_platform::sockets::{self, UnixListener};
use kelson_tasks::{OnPanic, Tasks};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::address::Address;
use super::clusters::{ClusterRequest, Clusters, Refused};

/// The maximum size of a request's body in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of connections; further ones wait.
const CONNECTIONS_MAX: usize = 256;
/// The time limit for a request's headers, and for idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause after a connection could not be accepted: the process is out of descriptors.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

type Answer = Response<Full<Bytes>>;

/// Listens and serves until the group ends; returns the address with its port.
pub async fn listen(address: Address, clusters: Arc<Clusters>, tasks: &Tasks) -> std::io::Result<Address> {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let group = tasks.clone();
    match address {
        Address::Tcp(address) if !address.ip().is_loopback() => Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!("must be a loopback address, got {address}"),
        )),
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address).await?;
            let bound = Address::Tcp(listener.local_addr()?);
            tasks.spawn("test-server", OnPanic::EndProcess, async move {
                while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
                    match listener.accept().await {
                        Ok((stream, _)) => serve(stream, &clusters, permit, &group),
                        Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
                    }
                }
            });
            Ok(bound)
        }
        Address::Unix(path) => {
            let listener = private(&path)?;
            tasks.spawn("test-server", OnPanic::EndProcess, async move {
                while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
                    match listener.accept().await {
                        Ok((stream, _)) => serve(stream, &clusters, permit, &group),
                        Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
                    }
                }
            });
            Ok(Address::Unix(path))
        }
    }
}

/// Binds a socket that only its owner may use. One left by a killed server is replaced.
#[allow(clippy::disallowed_methods, reason = "blocking: at start, before anything is served")]
fn private(path: &std::path::Path) -> std::io::Result<UnixListener> {
    if !sockets::is_served(path) && path.exists() {
        std::fs::remove_file(path)?;
    }
    sockets::listen(path)
}

fn serve<S>(stream: S, clusters: &Arc<Clusters>, permit: OwnedSemaphorePermit, tasks: &Tasks)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let clusters = Arc::clone(clusters);
    tasks.spawn("test-server-connection", OnPanic::Contain, async move {
        let answers = service_fn(|request| {
            let clusters = Arc::clone(&clusters);
            async move { Ok::<_, Infallible>(answer(&clusters, request).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        // A client that disconnects gets no answer.
        drop(http.serve_connection(TokioIo::new(stream), answers).await);
        drop(permit);
    });
}

async fn answer(clusters: &Clusters, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    // A web page in a browser of this machine may send requests here; they are rejected.
    if head.headers.contains_key(header::ORIGIN) || !names_this_machine(head.headers.get(header::HOST)) {
        return fault(StatusCode::FORBIDDEN, "requests from web pages or for other hosts are not allowed");
    }
    let path = head.uri.path().trim_end_matches('/').to_owned();
    match (&head.method, path.as_str(), path.strip_prefix("/clusters/")) {
        (&Method::GET, "/healthz", _) => plain(StatusCode::OK, "ok"),
        (&Method::GET, "/clusters", _) => reported(StatusCode::OK, &json!({"clusters": clusters.list()})),
        (&Method::POST, "/clusters", _) => match wanted(body).await {
            Ok(wanted) => outcome(StatusCode::CREATED, Box::pin(clusters.create(wanted)).await),
            Err(why) => fault(StatusCode::BAD_REQUEST, &why),
        },
        (&Method::GET, _, Some(name)) => outcome(StatusCode::OK, clusters.show(name)),
        (&Method::DELETE, _, Some(name)) => match clusters.delete(name).await {
            Ok(()) => plain(StatusCode::NO_CONTENT, ""),
            Err(refused) => refusal(&refused),
        },
        (_, "/healthz" | "/clusters", _) | (_, _, Some(_)) => fault(StatusCode::METHOD_NOT_ALLOWED, "not supported"),
        _ => fault(StatusCode::NOT_FOUND, "path not found"),
    }
}

/// Reports whether a `Host` is this machine's loopback; with a unix socket it may be anything without a port.
fn names_this_machine(host: Option<&header::HeaderValue>) -> bool {
    let Some(Ok(host)) = host.map(|h| h.to_str()) else { return true };
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    // A part besides host and port would be a user.
    let name = authority.host();
    let port = authority.port().map_or(0, |port| port.as_str().len() + 1);
    let name_alone = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let is_here = name == "localhost" || name_alone.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_here && name.len() + port == host.len()
}

async fn wanted(body: Incoming) -> Result<ClusterRequest, String> {
    let bytes = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|e| e.to_string())?.to_bytes();
    if bytes.is_empty() {
        Ok(ClusterRequest::default())
    } else {
        serde_json::from_slice(&bytes).map_err(|e| e.to_string())
    }
}

fn outcome<T: Serialize>(status: StatusCode, outcome: Result<T, Refused>) -> Answer {
    match outcome {
        Ok(value) => reported(status, &value),
        Err(refused) => refusal(&refused),
    }
}

fn refusal(refused: &Refused) -> Answer {
    let status = match refused {
        Refused::NotFound(_) => StatusCode::NOT_FOUND,
        Refused::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
        Refused::Cluster(crate::Error::UnknownController(_)) => StatusCode::BAD_REQUEST,
        Refused::Cluster(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    fault(status, &refused.to_string())
}

fn fault(status: StatusCode, why: &str) -> Answer {
    reported(status, &json!({"error": why}))
}

fn reported<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine() {
        let rows = [
            ("localhost", true),
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("localhost:1", true),
            ("example.com", false),
            ("192.0.2.1:80", false),
            ("localhost.example.com", false),
            ("[::1]", true),
            ("[::1]evil", false),
            ("[::1]evil:80", false),
            ("user@localhost", false),
            ("localhost:80:90", false),
            ("", false),
        ];
        for (host, want) in rows {
            assert_eq!(names_this_machine(Some(&header::HeaderValue::from_static(host))), want, "{host}");
        }
        assert!(names_this_machine(None));
    }
}
