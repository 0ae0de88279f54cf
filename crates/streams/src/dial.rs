//! Sends an upgrade request over a connection and checks its answer: only a verified 101 gives a stream. Leaves
//! connecting, TLS and credentials to the caller.

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::negotiate::{SPDY_31, STREAM_PROTOCOL_VERSION};
use crate::ws::{accept_key, new_key};

/// The number of bytes of a refusal's body that are read at most.
pub const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// The reason why there is no upgraded connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The request could not be sent or its answer not be read.
    #[error("error sending request: {0}")]
    Http(#[from] hyper::Error),
    /// The request could not be made.
    #[error("invalid request: {0}")]
    Request(#[from] http::Error),
    /// The backend wants the request elsewhere; a redirect of a backend is neither followed nor passed on.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// The backend answered, but not with an upgrade.
    #[error("unable to upgrade connection: {}", String::from_utf8_lossy(.body))]
    Refused {
        /// The answer's status, never 101.
        status: StatusCode,
        /// The answer's headers.
        headers: HeaderMap,
        /// The beginning of its body.
        body: Bytes,
    },
    /// The backend said 101, but not to what was asked.
    #[error("unable to upgrade connection: the backend switched to another protocol")]
    WrongUpgrade,
}

/// An upgraded connection.
#[derive(Debug)]
pub struct Dialed {
    /// The connection, with nothing of it lost.
    pub io: TokioIo<Upgraded>,
    /// The protocol the server chose, empty if it named none.
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

/// Asks for an upgrade over `io`, offering `protocols` in order of preference; `headers` are added as they are.
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
    // Over as soon as the connection is upgraded, or with this attempt.
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
