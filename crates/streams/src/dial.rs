//! Sends an upgrade request over a connection and checks the response. Only a valid 101 response gives a stream. The
//! caller connects, and adds TLS and credentials.

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::negotiate::{SPDY_31, STREAM_PROTOCOL_VERSION};
use crate::ws::{accept_key, new_key};

/// The number of bytes that are read from the body of an error response.
pub const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// Why there is no upgraded connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The request could not be sent, or its response could not be read.
    #[error("error sending request: {0}")]
    Http(#[from] hyper::Error),
    /// The request could not be built.
    #[error("invalid request: {0}")]
    Request(#[from] http::Error),
    /// The backend redirected the request. Redirects of a backend are neither followed nor passed on.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// The backend responded without an upgrade.
    #[error("unable to upgrade connection: {}", String::from_utf8_lossy(.body))]
    Refused {
        /// The status of the response, never 101.
        status: StatusCode,
        /// The headers of the response.
        headers: HeaderMap,
        /// The beginning of the response's body.
        body: Bytes,
    },
    /// The backend responded with 101, but with another protocol than requested.
    #[error("unable to upgrade connection: the backend switched to another protocol")]
    WrongUpgrade,
}

/// An upgraded connection.
#[derive(Debug)]
pub struct Dialed {
    /// The connection, including the bytes that arrived with the response.
    pub io: TokioIo<Upgraded>,
    /// The protocol that the server chose. Empty if it named none.
    pub protocol: String,
}

/// The protocol of the upgrade to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `POST` with `Upgrade: SPDY/3.1`.
    Spdy,
    /// `GET` with `Upgrade: websocket`.
    WebSocket,
}

/// Requests an upgrade over `io`. Offers `protocols` in order of preference and adds `headers` unchanged.
pub async fn dial_upgrade<T>(
    io: T,
    transport: Transport,
    uri: &Uri,
    headers: HeaderMap,
    protocols: &[&str],
) -> Result<Dialed, DialError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let key = new_key();
    let request = request(transport, uri, headers, protocols, &key)?;
    send_upgrade(io, request, transport, &key).await
}

fn request(
    transport: Transport,
    uri: &Uri,
    headers: HeaderMap,
    protocols: &[&str],
    key: &str,
) -> Result<Request<Empty<Bytes>>, DialError> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder().uri(path).body(Empty::new())?;
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    if !headers.contains_key(HOST) {
        let host = uri.authority().map_or("localhost", |authority| authority.as_str());
        headers.insert(HOST, HeaderValue::from_str(host).map_err(http::Error::from)?);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    match transport {
        Transport::Spdy => {
            headers.insert(UPGRADE, HeaderValue::from_static(SPDY_31));
            for protocol in protocols {
                let value = HeaderValue::from_str(protocol).map_err(http::Error::from)?;
                headers.append(STREAM_PROTOCOL_VERSION, value);
            }
            *request.method_mut() = Method::POST;
        }
        Transport::WebSocket => {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
            headers.insert("sec-websocket-key", HeaderValue::from_str(key).map_err(http::Error::from)?);
            let offer = HeaderValue::from_str(&protocols.join(", ")).map_err(http::Error::from)?;
            headers.insert("sec-websocket-protocol", offer);
        }
    }
    Ok(request)
}

async fn send_upgrade<T>(
    io: T,
    request: Request<Empty<Bytes>>,
    transport: Transport,
    key: &str,
) -> Result<Dialed, DialError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    // The task ends when the connection is upgraded, or with this attempt.
    let _connection = kelson_tasks::scoped("stream-dial", async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection of an upgrade request ended");
        }
    });
    let response = sender.send_request(request).await?;
    if response.status().is_redirection() {
        return Err(DialError::Redirect);
    }
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (parts, mut body) = response.into_parts();
        let mut kept = Vec::new();
        while kept.len() < ERROR_BODY_BYTES_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            if let Some(data) = frame.data_ref() {
                kept.extend_from_slice(&data[..data.len().min(ERROR_BODY_BYTES_MAX - kept.len())]);
            }
        }
        return Err(DialError::Refused { status: parts.status, headers: parts.headers, body: kept.into() });
    }
    let text =
        |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (expected, protocol) = match transport {
        Transport::Spdy => ("spdy/3.1", text("x-stream-protocol-version")),
        Transport::WebSocket => ("websocket", text("sec-websocket-protocol")),
    };
    let upgraded = text("connection").to_ascii_lowercase().contains("upgrade")
        && text("upgrade").to_ascii_lowercase().contains(expected)
        && (transport == Transport::Spdy || text("sec-websocket-accept") == accept_key(key));
    if !upgraded {
        return Err(DialError::WrongUpgrade);
    }
    let io = hyper::upgrade::on(response).await?;
    Ok(Dialed { io: TokioIo::new(io), protocol })
}
