//! Forwarding of a client's request to another API server. The authenticated user is sent in headers, which the server trusts because
//! of the front proxy certificate; the client's credentials are not sent. Redirects are neither followed nor passed on. Upstream:
//! `kube-aggregator/pkg/apiserver/handler_proxy.go`.
use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_auth::UserInfo;
use kelson_meta::Status;
use kelson_meta::url::encode_header_name;
use kelson_pki::{SwappableCertificate, provider};
use kelson_tasks::{OnPanic, Tasks};
use kelson_traces::KeyValue;
use kelson_transport::TransportError;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::request::headers::DROPPED;
use crate::request::routes::RemoteRequest;
use crate::request::upgrade::wait_for_upgrade;

/// Why the spec of an APIService allows no TLS connections to its server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectorError {
    /// The CA bundle is not base64.
    #[error("caBundle: {0}")]
    CaBundle(#[from] base64::DecodeError),
    /// TLS cannot be configured.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Reason why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// Its service cannot be resolved.
    #[error("{0}")]
    Service(String),
    /// TLS connections to it are not possible.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    /// The request has no valid target.
    #[error(transparent)]
    Target(#[from] http::uri::InvalidUri),
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
}

impl Unreachable {
    /// The connection failed for this reason.
    pub fn connection(why: &dyn std::fmt::Display) -> Self {
        Self::Connection(why.to_string())
    }
}

/// A request as it is sent to the other server.
pub type Outgoing = http::Request<Full<Bytes>>;

/// Connects with the front proxy's certificate, if there is one, to servers that the verifier trusts.
///
/// # Errors
/// TLS cannot be configured.
pub fn connector(
    verifier: Arc<dyn ServerCertVerifier>,
    certificate: Option<&Arc<SwappableCertificate>>,
) -> Result<TlsConnector, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match certificate {
        Some(certificate) => builder.with_client_cert_resolver(Arc::clone(certificate) as _),
        None => builder.with_no_client_auth(),
    };
    // Upgrades require HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A request with the headers of a user, for a server with this host name and port.
///
/// # Errors
/// [`Unreachable::Target`].
pub fn outgoing(
    (method, target): (&Method, &str),
    headers: &HeaderMap,
    user: &UserInfo,
    body: Bytes,
    authority: &str,
) -> Result<Outgoing, Unreachable> {
    let mut request = http::Request::new(Full::new(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.parse().map_err(Unreachable::Target)?;
    let kept = headers.iter().filter(|(name, _)| {
        let name = name.as_str();
        // The body's length may differ after decoding. The user's headers come only from this server.
        !DROPPED.contains(&name) && name != "content-length" && !name.starts_with("x-remote-")
    });
    let out = request.headers_mut();
    for (name, value) in kept {
        out.append(name.clone(), value.clone());
    }
    identify(user, out);
    if let Ok(host) = HeaderValue::from_str(authority) {
        out.insert(header::HOST, host);
    }
    Ok(request)
}

/// Sends a request over a new connection. The body of the response is not read yet.
///
/// # Errors
/// [`Unreachable::Connection`].
pub async fn exchange<S>(stream: S, request: Outgoing, tasks: &Tasks) -> Result<Response<Incoming>, Unreachable>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |e: hyper::Error| Unreachable::connection(&e);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tasks.spawn_graceful("api-aggregated", OnPanic::Contain, async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to another API server failed");
        }
    });
    sender.send_request(request).await.map_err(broken)
}

/// Reads a response of at most `limit` bytes.
///
/// # Errors
/// [`Unreachable::Connection`].
pub async fn collect(response: Response<Incoming>, limit: usize) -> Result<(StatusCode, Bytes), Unreachable> {
    let code = response.status();
    let body = Limited::new(response.into_body(), limit).collect().await;
    Ok((code, body.map_err(|e| Unreachable::connection(&e))?.to_bytes()))
}

/// Sends a client's request by `send`, and passes the response on.
///
/// # Errors
/// 502 for a redirect, and the errors of a body that cannot be read. The inner error is the one of `send`.
pub async fn carry<F, Sent>(
    request: RemoteRequest<'_>,
    authority: &str,
    tasks: &Tasks,
    send: F,
) -> Result<Result<Answer, Unreachable>, Status>
where
    F: FnOnce(Outgoing) -> Sent,
    Sent: Future<Output = Result<Response<Incoming>, Unreachable>>,
{
    let wants_upgrade = kelson_streams::is_upgrade_request(request.headers);
    let body = request.body.read().await?;
    let target = request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut made = match outgoing((request.method, target), request.headers, request.user, body, authority) {
        Ok(made) => made,
        Err(why) => return Ok(Err(why)),
    };
    if wants_upgrade {
        made.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    } else {
        made.headers_mut().remove(header::UPGRADE);
    }
    let span = kelson_traces::client(&format!("HTTP {}", request.method), || {
        let method = KeyValue::text("http.request.method", request.method.as_str());
        vec![method, KeyValue::text("url.full", format!("https://{authority}{target}"))]
    });
    span.pass_on(made.headers_mut());
    let sent = send(made).await;
    match &sent {
        Ok(response) => {
            span.set(|| vec![KeyValue::number("http.response.status_code", response.status().as_u16())]);
        }
        Err(why) => span.fail(&why.to_string()),
    }
    drop(span);
    match sent {
        Ok(response) => {
            let client = request.upgrade.lock().take().filter(|_| wants_upgrade);
            pass_on(response, request.headers, client, request.reservation, tasks).map(Ok)
        }
        Err(why) => Ok(Err(why)),
    }
}

/// The server's response for the client. `client` is the pending upgrade of the client's connection, if the client wants one.
fn pass_on(
    mut response: Response<Incoming>,
    asked: &HeaderMap,
    client: Option<hyper::upgrade::OnUpgrade>,
    reservation: Arc<dyn Any + Send + Sync>,
    tasks: &Tasks,
) -> Result<Answer, Status> {
    let code = response.status();
    if code.is_redirection() && code != StatusCode::NOT_MODIFIED {
        let why = "the backend attempted to redirect this request, which is not permitted";
        return Err(Status::failure(502, kelson_meta::Reason::Unknown, why));
    }
    if code == StatusCode::SWITCHING_PROTOCOLS {
        let same = response.headers().get(header::UPGRADE) == asked.get(header::UPGRADE);
        let Some(client) = client.filter(|_| same) else {
            let text = "the backend switched to a protocol that was not requested";
            return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let backend = hyper::upgrade::on(&mut response);
        tasks.spawn("api-aggregated-stream", OnPanic::Contain, async move {
            let (Some(client), Some(backend)) = (wait_for_upgrade(client).await, wait_for_upgrade(backend).await)
            else {
                return;
            };
            if let Err(error) = kelson_streams::splice(client, backend).await {
                tracing::debug!(%error, "stream of another API server failed");
            }
            drop(reservation);
        });
        return Ok(response.map(|_| ApiBody::empty()));
    }
    let (mut parts, body) = response.into_parts();
    for name in ["connection", "keep-alive", "transfer-encoding", "trailer"] {
        parts.headers.remove(HeaderName::from_static(name));
    }
    let chunks = stream::unfold(body, |mut body| async move {
        loop {
            match body.frame().await? {
                Ok(frame) => {
                    let Ok(data) = frame.into_data() else { continue };
                    return Some((Ok(data), body));
                }
                Err(error) => return Some((Err(TransportError::new(error)), body)),
            }
        }
    });
    Ok(Response::from_parts(parts, ApiBody::stream(chunks).hold(reservation)))
}

/// An error in plain text, as upstream's aggregator returns.
pub fn refusal(code: StatusCode, text: &str) -> Answer {
    answer(code, "text/plain; charset=utf-8", ApiBody::full(format!("{text}\n")))
}

/// Adds the headers with the user for a server that trusts the front proxy.
fn identify(user: &UserInfo, headers: &mut HeaderMap) {
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    user.groups.iter().for_each(|group| add("x-remote-group", group));
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", encode_header_name(key));
        values.iter().for_each(|value| add(&name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_sent_in_headers() {
        let mut user = UserInfo::new("jane", ["a", "b"]);
        user.uid = "7".into();
        user.extra.insert("example.com/Scope".into(), vec!["x".into(), "y".into()]);
        let mut headers = HeaderMap::new();
        identify(&user, &mut headers);
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-uid"), ["7"]);
        assert_eq!(all("x-remote-group"), ["a", "b"]);
        assert_eq!(all("x-remote-extra-example.com%2fscope"), ["x", "y"]);
    }
}
