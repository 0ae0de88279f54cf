//! Proxy: forwards a request to a pod, a service endpoint or a node's kubelet. The address is checked and then dialed, without
//! resolving names twice. Redirects of a backend are not followed; they are passed on only if they stay below the proxy's path.
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use kelson_meta::Status;
use kelson_store::Resource;
use kelson_tasks::OnPanic;
use kelson_transport::TransportError;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::catalog::Served;
use crate::catalog::record::parse;
use crate::connect::address;
use crate::connect::backend_tls;
use crate::connect::kubelet::Node;
use crate::connect::links::Links;
use crate::request::answer::Answer;
use crate::request::body::{ApiBody, RequestBody};
use crate::request::headers::DROPPED;
use crate::request::upgrade::wait_for_upgrade;
use crate::shared::context::RequestContext;
use crate::write::admit;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The media type of HTML pages.
const HTML: &str = "text/html";
/// Largest page in bytes whose links are rewritten, because it is buffered for that.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// The name and port in `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; `None` for another form.
fn split_name(text: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = text.split(':').collect();
    let (name, port) = match parts[..] {
        [name] => (name, ""),
        [name, port] | ["" | "http" | "https", name, port] => (name, port),
        _ => return None,
    };
    (!name.is_empty()).then_some((name, port))
}

/// The name and port in the proxy's path.
///
/// # Errors
/// 400 for an invalid form; `kind` is the kind in the message.
pub fn name_and_port<'a>(cx: &'a RequestContext, kind: &str) -> Result<(&'a str, &'a str), Status> {
    let name = &cx.info.name;
    split_name(name).ok_or_else(|| Status::bad_request(format!("invalid {kind} request {name:?}")))
}

fn is_https(text: &str) -> bool {
    text.starts_with("https:")
}

/// Splits the path after the proxy's part. The rest is empty if the path ends there.
fn split_path(cx: &RequestContext) -> (&str, &str) {
    const MARKER: &str = "/proxy";
    let (path, name) = (cx.uri.path(), &cx.info.name);
    let found = path.find(&format!("/{name}{MARKER}")).map(|at| at + 1 + name.len() + MARKER.len());
    path.split_at(found.unwrap_or(path.len()))
}

/// Whether a path to a kubelet is normalized. It was authorized by its first element, so no element may be empty or relative. A
/// trailing slash is allowed.
pub fn is_normal(cx: &RequestContext) -> bool {
    let path = split_path(cx).1;
    let path = path.strip_prefix('/').unwrap_or(path);
    if path.is_empty() {
        return true;
    }
    let raw = path.strip_suffix('/').unwrap_or(path);
    !raw.split('/').any(str::is_empty)
        && !cx.info.tail.iter().flat_map(|part| part.split('/')).any(|part| matches!(part, "" | "." | ".."))
}

/// Redirects a browser to the path with a trailing slash, because relative links of a page work only from there.
fn root_redirect(cx: &RequestContext) -> Option<Answer> {
    let reads = matches!(cx.method, Method::GET | Method::HEAD) && !kelson_streams::is_upgrade_request(&cx.headers);
    if !reads || !split_path(cx).1.is_empty() {
        return None;
    }
    let query = cx.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    // Two slashes at the beginning would be a host.
    let path = cx.uri.path().trim_start_matches('/');
    let location = HeaderValue::from_str(&format!("/{path}/{query}")).ok()?;
    let mut answer = http::Response::new(ApiBody::empty());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    answer.headers_mut().insert(header::LOCATION, location);
    Some(answer)
}

/// Proxies to a pod.
///
/// # Errors
/// 400, 404, 503.
pub async fn pod(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    admit::connect(cx, served, "PodProxyOptions", json!({})).await?;
    let (name, port) = name_and_port(cx, "pod")?;
    let pod = parse(&*cx.stored(served, name)?);
    let ip = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
    let ip = ip.ok_or_else(|| Status::bad_request("address not allowed"))?;
    let port = match port {
        "" => {
            let ports = pod["spec"]["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|c| c["ports"].as_array())
                .flatten();
            ports.filter_map(|p| p["containerPort"].as_u64()).next().and_then(|p| u16::try_from(p).ok()).unwrap_or(80)
        }
        text => text.parse().map_err(|_| Status::bad_request(format!("invalid pod request {:?}", cx.info.name)))?,
    };
    to_address(cx, SocketAddr::new(ip, port), body).await
}

/// Proxies to a ready endpoint of a service.
///
/// # Errors
/// 400, 404, 503.
pub async fn service(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    admit::connect(cx, served, "ServiceProxyOptions", json!({})).await?;
    let (name, port) = name_and_port(cx, "service")?;
    let service = parse(&*cx.stored(served, name)?);
    let ports = service["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let chosen = match (port, ports) {
        ("", [only]) => Some(only),
        ("", _) => ports.iter().find(|p| p["name"].as_str().unwrap_or("").is_empty()),
        (text, _) => match text.parse::<i64>() {
            Ok(number) => {
                let found = ports.iter().find(|p| p["port"] == number);
                let why = || format!("no service port {number} found for service {name:?}");
                Some(found.ok_or_else(|| Status::unavailable(why()))?)
            }
            Err(_) => ports.iter().find(|p| p["name"] == text),
        },
    };
    let port_name = chosen.map(|p| p["name"].as_str().unwrap_or(""));
    to_address(cx, ready_endpoint(cx, served, name, port_name)?, body).await
}

/// A ready endpoint of a service; `port` is the name of its port, `None` if it does not exist.
///
/// # Errors
/// 404 if the service has no endpoint slice, 503 if no endpoint is ready.
fn ready_endpoint(cx: &RequestContext, served: &Served, name: &str, port: Option<&str>) -> Result<SocketAddr, Status> {
    let slices =
        cx.server.store.list(Resource::new("discovery.k8s.io", "endpointslices"), Some(&cx.info.namespace), None, None);
    let mut own = slices.iter().filter(|r| r.meta().labels.get("kubernetes.io/service-name") == Some(name)).peekable();
    if own.peek().is_none() {
        return Err(Status::not_found(&served.gr, name));
    }
    let found = port.and_then(|port| own.find_map(|record| endpoint(&parse(record), port)));
    found.ok_or_else(|| Status::unavailable(format!("no endpoints available for service {:?}", cx.info.name)))
}

fn endpoint(slice: &Value, port_name: &str) -> Option<SocketAddr> {
    let port = slice["ports"].as_array()?.iter().find(|p| p["name"].as_str().unwrap_or("") == port_name)?;
    let port = u16::try_from(port["port"].as_u64()?).ok()?;
    let ready = slice["endpoints"].as_array()?.iter().find(|e| e["conditions"]["ready"].as_bool().unwrap_or(true))?;
    Some(SocketAddr::new(ready["addresses"][0].as_str()?.parse().ok()?, port))
}

async fn to_address(cx: &RequestContext, backend: SocketAddr, body: RequestBody) -> Result<Answer, Status> {
    if !address::is_allowed(backend.ip()) {
        return Err(Status::bad_request("address not allowed"));
    }
    if let Some(redirect) = root_redirect(cx) {
        return Ok(redirect);
    }
    let failed = |e: &dyn std::fmt::Display| {
        Status::unavailable(format!("error trying to reach service: dial tcp {backend}: {e}"))
    };
    let tcp = match tokio::time::timeout(CONNECT_TIMEOUT, address::dial(backend)).await {
        Ok(Ok(tcp)) => tcp,
        Ok(Err(error)) => return Err(failed(&error)),
        Err(_) => return Err(failed(&"i/o timeout")),
    };
    let host = backend.to_string();
    if !is_https(&cx.info.name) {
        return forward(cx, tcp, &host, body).await;
    }
    match tokio::time::timeout(CONNECT_TIMEOUT, backend_tls::connect(tcp, backend.ip())).await {
        Ok(Ok(tls)) => forward(cx, tls, &host, body).await,
        Ok(Err(error)) => Err(Status::unavailable(format!("error trying to reach service: {error}"))),
        Err(_) => Err(Status::unavailable("error trying to reach service: net/http: TLS handshake timeout")),
    }
}

/// Proxies to a node's kubelet.
///
/// # Errors
/// 503.
pub async fn to_kubelet(cx: &RequestContext, node: &Node, body: RequestBody) -> Result<Answer, Status> {
    if let Some(redirect) = root_redirect(cx) {
        return Ok(redirect);
    }
    let io = node.connect(&cx.server).await.map_err(Status::unavailable)?;
    forward(cx, io, &node.authority(), body).await
}

fn headers(cx: &RequestContext, host: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &cx.headers {
        if !DROPPED.contains(&name.as_str()) && name != header::CONTENT_LENGTH {
            headers.append(name.clone(), value.clone());
        }
    }
    if let Ok(host) = HeaderValue::from_str(host) {
        headers.insert(header::HOST, host);
    }
    if let Ok(path) = HeaderValue::from_str(cx.uri.path()) {
        headers.insert(HeaderName::from_static("x-forwarded-uri"), path);
    }
    // Links in a page are rewritten, which needs an uncompressed page.
    let accepts = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    if accepts.contains(HTML) {
        headers.remove(header::ACCEPT_ENCODING);
    }
    headers
}

fn broken(e: &dyn std::fmt::Display) -> Status {
    Status::unavailable(format!("error trying to reach service: {e}"))
}

/// The request for the backend at `host`.
fn request(
    cx: &RequestContext,
    host: &str,
    path: &str,
    body: Bytes,
    wants_upgrade: bool,
) -> Result<http::Request<Full<Bytes>>, Status> {
    let mut request = http::Request::new(Full::new(body));
    *request.method_mut() = cx.method.clone();
    let query = cx.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    *request.uri_mut() = format!("{path}{query}").parse().map_err(|e| broken(&e))?;
    *request.headers_mut() = headers(cx, host);
    if wants_upgrade {
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    } else {
        request.headers_mut().remove(header::UPGRADE);
    }
    Ok(request)
}

async fn forward<T>(cx: &RequestContext, io: T, host: &str, body: RequestBody) -> Result<Answer, Status>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let body = body.read().await?;
    let reservation = super::backend_limit::take(cx)?;
    let of_connection = Arc::clone(&reservation);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|e| broken(&e))?;
    cx.server.tasks.spawn_graceful("api-proxy", OnPanic::Contain, async move {
        let _reservation = of_connection;
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "proxied connection failed");
        }
    });
    let wants_upgrade = kelson_streams::is_upgrade_request(&cx.headers);
    let (prefix, path) = split_path(cx);
    let path = if path.is_empty() { "/" } else { path };
    let request = request(cx, host, path, body, wants_upgrade)?;
    let mut response = sender.send_request(request).await.map_err(|e| broken(&e))?;
    let asked = cx.headers.get(header::HOST).and_then(|v| v.to_str().ok()).unwrap_or("");
    let links = Links { prefix, backend: host, asked };
    rewrite_redirect(&links, path, &mut response)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let same = response.headers().get(header::UPGRADE) == cx.headers.get(header::UPGRADE);
        let client = cx.upgrade.lock().take().filter(|_| wants_upgrade && same);
        let client = client.ok_or_else(|| broken(&"the backend switched to a protocol that was not requested"))?;
        let backend = hyper::upgrade::on(&mut response);
        cx.server.tasks.spawn("api-proxy-stream", OnPanic::Contain, async move {
            let _reservation = reservation;
            let (Some(client), Some(backend)) = (wait_for_upgrade(client).await, wait_for_upgrade(backend).await)
            else {
                return;
            };
            if let Err(error) = kelson_streams::splice(client, backend).await {
                tracing::debug!(%error, "proxied stream failed");
            }
        });
        return Ok(response.map(|_| ApiBody::empty()));
    }
    let (mut parts, mut body) = response.into_parts();
    for name in ["connection", "keep-alive", "transfer-encoding", "trailer"] {
        parts.headers.remove(HeaderName::from_static(name));
    }
    let mut first = Bytes::new();
    if cx.method != Method::HEAD && is_page(&parts.headers) {
        first = page(&links, &mut body).await.map_err(|e| broken(&e))?;
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let chunks = chunks(first, body, sender);
    Ok(http::Response::from_parts(parts, ApiBody::stream(chunks).hold(reservation)))
}

/// The buffered beginning of the response, then the rest. It keeps the connection open.
fn chunks<S: Send + 'static>(
    first: Bytes,
    body: hyper::body::Incoming,
    sender: S,
) -> impl futures::Stream<Item = Result<Bytes, TransportError>> + Send + 'static {
    stream::unfold((first, body, sender), |(mut first, mut body, sender)| async move {
        if !first.is_empty() {
            let data = std::mem::take(&mut first);
            return Some((Ok(data), (first, body, sender)));
        }
        loop {
            match body.frame().await? {
                Ok(frame) => {
                    let Ok(data) = frame.into_data() else { continue };
                    return Some((Ok(data), (first, body, sender)));
                }
                Err(error) => return Some((Err(TransportError::new(error)), (first, body, sender))),
            }
        }
    })
}

/// Rewrites the location of a backend's redirect, or rejects it.
fn rewrite_redirect<B>(links: &Links<'_>, path: &str, response: &mut http::Response<B>) -> Result<(), Status> {
    if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
        return Ok(());
    }
    let location = response.headers().get(header::LOCATION).and_then(|v| v.to_str().ok());
    let led = location.and_then(|l| links.redirect(l, path)).and_then(|l| HeaderValue::from_str(&l).ok());
    let led = led.ok_or_else(|| {
        let why = "the backend attempted to redirect this request, which is not permitted";
        Status::failure(502, kelson_meta::Reason::Unknown, why)
    })?;
    response.headers_mut().insert(header::LOCATION, led);
    Ok(())
}

/// Whether a response is a page whose links can be rewritten.
fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    kind.split(';').next().is_some_and(|k| k.trim().eq_ignore_ascii_case(HTML))
        && !headers.contains_key(header::CONTENT_ENCODING)
}

/// The page with rewritten links, or the unchanged beginning if the page is longer than [`PAGE_BYTES_MAX`] or not UTF-8.
async fn page(links: &Links<'_>, body: &mut hyper::body::Incoming) -> Result<Bytes, hyper::Error> {
    let mut bytes = BytesMut::new();
    while bytes.len() <= PAGE_BYTES_MAX {
        let Some(frame) = body.frame().await else {
            return Ok(match std::str::from_utf8(&bytes) {
                Ok(text) => links.page(text).into(),
                Err(_) => bytes.freeze(),
            });
        };
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(split_name("a"), Some(("a", "")));
        assert_eq!(split_name("a:80"), Some(("a", "80")));
        assert_eq!(split_name("https:a:web"), Some(("a", "web")));
        assert_eq!(split_name("http:a:"), Some(("a", "")));
        for wrong in ["", ":80", "ftp:a:80", "http::80", "a:b:c:d"] {
            assert_eq!(split_name(wrong), None, "{wrong}");
        }
        assert!(is_https("https:a:1") && !is_https("a:1"));
    }
}
