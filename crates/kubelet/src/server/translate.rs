//! Exec and attach over WebSocket, and port-forward with tunneled SPDY. They are terminated here, and the runtime's streaming server gets
//! SPDY (`ExtendWebSocketsToKubelet`, which this node declares, so that API servers forward them unchanged). Runtimes do not support the
//! newer protocols, and containerd 1.6 loses the output of a short command with a terminal over the older ones.
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_streams::dial::Transport;
use kelson_streams::{ConnectionOptions, DialError, Dialed, ExecOptions, ExecResult, RemoteCommandVersion, negotiate};
use kelson_tasks::OnPanic;
use tokio::net::TcpStream;

use super::answer::{Body, refused, text};
use super::splice;
use super::state::ServerState;

/// Forwards an exec or attach to the runtime's `url`.
pub async fn exec(state: &ServerState, url: &str, wanted: ExecOptions, request: Request<Incoming>) -> Response<Body> {
    if !negotiate::is_websocket_request(request.headers()) {
        return splice::carry(&state.tasks, url, request, state.config.server.streaming_idle).await;
    }
    let (parts, body) = request.into_parts();
    let accepted = match kelson_streams::accept_exec(&parts) {
        Ok(accepted) => accepted,
        Err(refusal) => return refused(*refusal),
    };
    let upgraded = hyper::upgrade::on(Request::from_parts(parts, body));
    let options = ConnectionOptions { idle_limit: Some(state.config.server.streaming_idle), ..Default::default() };
    let (url, protocol) = (url.to_owned(), accepted.protocol);
    state.tasks.spawn("stream-translated", OnPanic::Contain, async move {
        let client = match upgraded.await {
            Ok(client) => TokioIo::new(client),
            Err(error) => return tracing::debug!(%error, "upgrading a connection for a stream failed"),
        };
        let backend = async {
            let offered = RemoteCommandVersion::SPDY_SERVER.map(RemoteCommandVersion::name);
            let dialed = dial(&url, &offered).await.map_err(|fault| ExecResult::internal_error(fault.words()))?;
            let version = RemoteCommandVersion::from_name(&dialed.protocol).unwrap_or(RemoteCommandVersion::V1);
            Ok((dialed.io, version))
        };
        let carried = kelson_streams::translate_websocket_to_spdy(client, protocol, wanted, backend, &options).await;
        if let Err(error) = carried {
            tracing::debug!(%error, "a stream ended with an error");
        }
    });
    accepted.response.map(|()| Empty::new().boxed_unsync())
}

/// Forwards a port-forward to the runtime's `url`.
pub async fn port_forward(state: &ServerState, url: &str, request: Request<Incoming>) -> Response<Body> {
    if !negotiate::is_tunnel_request(request.headers()) {
        return splice::carry(&state.tasks, url, request, state.config.server.streaming_idle).await;
    }
    let dialed = match dial(url, &[negotiate::PORT_FORWARD_V1]).await {
        Ok(dialed) => dialed,
        Err(RuntimeFault::Refused(status, why)) => return text(status, why),
        Err(RuntimeFault::Unreachable(why)) => return text(StatusCode::INTERNAL_SERVER_ERROR, why),
    };
    let (parts, body) = request.into_parts();
    let accepted = match kelson_streams::accept_port_forward(&parts) {
        Ok(accepted) => accepted,
        Err(refusal) => return refused(*refusal),
    };
    let upgraded = hyper::upgrade::on(Request::from_parts(parts, body));
    state.tasks.spawn("stream-tunnel", OnPanic::Contain, async move {
        let client = match upgraded.await {
            Ok(client) => TokioIo::new(client),
            Err(error) => return tracing::debug!(%error, "upgrading a connection for a stream failed"),
        };
        if let Err(error) = kelson_streams::tunnel_websocket_to_spdy(client, dialed.io).await {
            tracing::debug!(%error, "a stream ended with an error");
        }
    });
    accepted.response.map(|()| Empty::new().boxed_unsync())
}

/// Why the runtime's streaming server did not open a stream.
enum RuntimeFault {
    /// It could not be reached.
    Unreachable(String),
    /// It returned this error response.
    Refused(StatusCode, String),
}

impl RuntimeFault {
    fn words(&self) -> &str {
        match self {
            Self::Unreachable(why) | Self::Refused(_, why) => why,
        }
    }
}

/// Connects to the runtime's streaming server with SPDY.
async fn dial(url: &str, offered: &[&str]) -> Result<Dialed, RuntimeFault> {
    let lost = |why: String| RuntimeFault::Unreachable(why);
    let (at, uri): (_, Uri) = splice::loopback(url).map_err(lost)?;
    let tcp = TcpStream::connect(at).await.map_err(|e| lost(format!("runtime's streaming server: {e}")))?;
    // A failure only delays small writes.
    let _ = tcp.set_nodelay(true);
    kelson_streams::dial_upgrade(tcp, Transport::Spdy, &uri, HeaderMap::new(), offered).await.map_err(|e| match e {
        DialError::Refused { status, body, .. } => {
            RuntimeFault::Refused(status, String::from_utf8_lossy(&body).into_owned())
        }
        other => lost(other.to_string()),
    })
}
