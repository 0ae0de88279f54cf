//! Streams of the runtime's streaming server. The runtime returns a URL on loopback; the client's upgrade request is forwarded there, and
//! after a valid 101 response the bytes are copied in both directions. A redirect is never followed and never returned to the client.
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_tasks::{OnPanic, Tasks};
use tokio::net::TcpStream;

use super::answer::{Body, text};

/// Maximum size in bytes of a forwarded error response.
const REFUSAL_MAX: usize = 64 * 1024;

/// Parses the runtime's streaming URL, which must be plain HTTP on loopback.
pub(super) fn loopback(url: &str) -> Result<(SocketAddr, Uri), String> {
    let uri: Uri = url.parse().map_err(|e| format!("the runtime's streaming URL: {e}"))?;
    if uri.scheme_str() != Some("http") {
        return Err(format!("the runtime's streaming URL {url:?} is not http"));
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    let ip: std::net::IpAddr =
        host.parse().map_err(|_| format!("the runtime's streaming host {host:?} is not an IP address"))?;
    if !ip.is_loopback() {
        return Err(format!("the runtime streams on {ip}, which is not a loopback address"));
    }
    Ok((SocketAddr::new(ip, uri.port_u16().unwrap_or(80)), uri))
}

/// Forwards the request to the runtime's `url` and copies the stream until it is idle for `idle`. `tasks` is the group of its tasks.
pub async fn carry(tasks: &Tasks, url: &str, request: Request<Incoming>, idle: Duration) -> Response<Body> {
    match upgrade(tasks, url, request, idle).await {
        Ok(response) => response,
        Err(e) => {
            tracing::warn!(error = %e, "cannot open a stream of the runtime");
            text(StatusCode::INTERNAL_SERVER_ERROR, e)
        }
    }
}

async fn upgrade(
    tasks: &Tasks,
    url: &str,
    mut request: Request<Incoming>,
    idle: Duration,
) -> Result<Response<Body>, String> {
    let (at, uri) = loopback(url)?;
    let tcp = TcpStream::connect(at).await.map_err(|e| format!("runtime's streaming server: {e}"))?;
    let _ = tcp.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(|e| e.to_string())?;
    tasks.spawn("stream-to-runtime", OnPanic::Contain, async move {
        if let Err(e) = connection.with_upgrades().await {
            tracing::debug!(error = %e, "connection to the runtime ended");
        }
    });
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut forward = Request::builder().method(request.method().clone()).uri(path).body(Empty::<bytes::Bytes>::new());
    let forward_ok = forward.as_mut().map_err(|e| e.to_string())?;
    for (name, value) in request.headers() {
        // The runtime does not need the client's credentials.
        if !matches!(*name, http::header::AUTHORIZATION | http::header::COOKIE | HOST) {
            forward_ok.headers_mut().append(name, value.clone());
        }
    }
    let host = at.to_string().parse().map_err(|_| "host header".to_owned())?;
    forward_ok.headers_mut().insert(HOST, host);
    let forward = forward.map_err(|e| e.to_string())?;
    let wants = request.headers().get(UPGRADE).cloned();
    let answer = sender.send_request(forward).await.map_err(|e| e.to_string())?;
    if answer.status().is_redirection() {
        return Err("the runtime attempted to redirect this request, which is not permitted".into());
    }
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refusal(answer).await);
    }
    let same = |a: Option<&http::HeaderValue>, b: Option<&http::HeaderValue>| match (a, b) {
        (Some(a), Some(b)) => a.as_bytes().eq_ignore_ascii_case(b.as_bytes()),
        _ => false,
    };
    if !same(answer.headers().get(UPGRADE), wants.as_ref()) {
        return Err("unable to upgrade connection: the runtime switched to another protocol".into());
    }
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in answer.headers() {
        response.headers_mut().append(name, value.clone());
    }
    if !response.headers().contains_key(CONNECTION) {
        response.headers_mut().insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    }
    let client = hyper::upgrade::on(&mut request);
    tasks.spawn("stream-splice", OnPanic::Contain, async move {
        let (client, runtime) = match tokio::try_join!(client, hyper::upgrade::on(answer)) {
            Ok(both) => both,
            Err(e) => {
                tracing::debug!(error = %e, "upgrading a connection for a stream failed");
                return;
            }
        };
        if let Err(e) = kelson_streams::splice_until_idle(TokioIo::new(client), TokioIo::new(runtime), idle).await {
            tracing::debug!(error = %e, "a stream ended with an error");
        }
    });
    Ok(response)
}

async fn refusal(answer: Response<Incoming>) -> Response<Body> {
    let code = answer.status();
    let mut body = answer.into_body();
    let mut kept = Vec::new();
    while kept.len() < REFUSAL_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        if let Ok(data) = frame.into_data() {
            kept.extend_from_slice(&data);
        }
    }
    text(code, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback() {
        assert!(loopback("http://127.0.0.1:1234/exec/x").is_ok() && loopback("http://[::1]:1/x").is_ok());
        for bad in ["http://10.0.0.1:1/x", "https://127.0.0.1/x", "http://example.com/x", "/exec/x"] {
            assert!(loopback(bad).is_err(), "{bad}");
        }
    }
}
