//! Streams from kubelets to clients: logs, and the upgraded connections of exec, attach and port-forward.
use std::future::Future;

use futures::stream;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use kelson_meta::{GroupResource, Reason, Status};
use kelson_streams::dial::Transport;
use kelson_streams::{ConnectionOptions, DialError, Dialed, ExecOptions, ExecResult, RemoteCommandVersion, negotiate};
use kelson_tasks::OnPanic;
use kelson_traces::pass_on;
use kelson_transport::TransportError;

use crate::connect::kubelet::Node;
use crate::connect::target::Target;
use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::request::upgrade::wait_for_upgrade;
use crate::shared::context::RequestContext;
use crate::shared::stream_metrics::TranslatedBy;

/// Bytes that are read of a kubelet's error.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const PROTOCOLS: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const WEBSOCKET_PROTOCOLS: HeaderName = HeaderName::from_static("sec-websocket-protocol");

/// Serves a pod's log.
///
/// # Errors
/// The kubelet's error, or 500 if it cannot be reached.
pub async fn log(cx: &RequestContext, node: &Node, target: &Target) -> Result<Answer, Status> {
    let reservation = super::backend_limit::take(cx)?;
    let io = node
        .connect(&cx.server)
        .await
        .map_err(|why| Status::internal(format!("Get \"https://{}{}\": {why}", node.authority(), target.path)))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(Status::internal)?;
    cx.server.tasks.spawn_graceful("api-log", OnPanic::Contain, async move {
        let _reservation = reservation;
        if let Err(error) = connection.await {
            tracing::debug!(%error, "log connection failed");
        }
    });
    let mut request = http::Request::builder()
        .uri(&target.path)
        .header(header::HOST, node.authority())
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .map_err(Status::internal)?;
    pass_on(request.headers_mut());
    let response = sender.send_request(request).await.map_err(Status::internal)?;
    let code = response.status();
    if code != StatusCode::OK {
        let body = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
        let text = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).trim_end().to_owned()).unwrap_or_default();
        return Err(refused(cx, code, &text));
    }
    let body = response.into_body();
    let chunks = stream::unfold((body, sender), |(mut body, sender)| async move {
        loop {
            match body.frame().await? {
                Ok(frame) => {
                    let Ok(data) = frame.into_data() else { continue };
                    return Some((Ok(data), (body, sender)));
                }
                Err(error) => return Some((Err(TransportError::new(error)), (body, sender))),
            }
        }
    });
    Ok(answer(StatusCode::OK, "text/plain", ApiBody::stream(chunks)))
}

fn refused(cx: &RequestContext, code: StatusCode, text: &str) -> Status {
    match code.as_u16() {
        400 => Status::bad_request(text),
        404 => {
            let gr = GroupResource::new("", "pods/log");
            let mut status = Status::not_found(&gr, &cx.info.name);
            status.message = format!("the server could not find the requested resource ( pods/log {})", cx.info.name);
            status
        }
        500 => Status::internal(text),
        300..=399 => Status::internal("the backend attempted to redirect this request, which is not permitted"),
        other => Status::failure(other, Reason::Unknown, text),
    }
}

/// Serves an exec, attach or port-forward.
///
/// # Errors
/// 400 without an upgrade, and the kubelet's error.
pub async fn upgrade(cx: &RequestContext, node: &Node, target: &Target) -> Result<Answer, Status> {
    if !negotiate::is_upgrade_request(&cx.headers) {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let upgrade = cx.upgrade.lock().take();
    let upgrade = upgrade.ok_or_else(|| Status::bad_request("Upgrade request required over HTTP/1.1"))?;
    let port_forward = cx.info.subresource == "portforward";
    let streams = cx.server.metrics.streams();
    let translates_here = !node.translates_websockets();
    if translates_here && !port_forward && negotiate::wants_stream_close(&cx.headers) {
        streams.websocket(&cx.info.subresource, TranslatedBy::Server);
        return translate(cx, node, target, upgrade).await;
    }
    let tunnel = translates_here && negotiate::is_tunnel_request(&cx.headers);
    let websocket = negotiate::is_websocket_request(&cx.headers) && !tunnel;
    let (transport, offered) = if websocket {
        (Transport::WebSocket, header_values(&cx.headers, &WEBSOCKET_PROTOCOLS))
    } else if tunnel {
        (Transport::Spdy, vec![negotiate::PORT_FORWARD_V1.to_owned()])
    } else {
        (Transport::Spdy, header_values(&cx.headers, &PROTOCOLS))
    };
    if tunnel || websocket {
        let by = if tunnel { TranslatedBy::Server } else { TranslatedBy::Kubelet };
        streams.websocket(&cx.info.subresource, by);
    }
    let reservation = super::backend_limit::take(cx)?;
    let dialed = dial(cx, node, &target.path, transport, &offered).await;
    if tunnel {
        let code = dialed.as_ref().map_or_else(|status| status.code, |_| StatusCode::SWITCHING_PROTOCOLS.as_u16());
        streams.tunnelled(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
    }
    let dialed = dialed?;
    let response =
        accept(cx, tunnel || websocket, if tunnel { negotiate::PORT_FORWARD_TUNNEL } else { &dialed.protocol });
    cx.server.tasks.spawn("api-stream", OnPanic::Contain, async move {
        let _reservation = reservation;
        let Some(client) = wait_for_upgrade(upgrade).await else { return };
        let carry = async {
            if tunnel {
                kelson_streams::tunnel_websocket_to_spdy(client, dialed.io).await
            } else {
                kelson_streams::splice(client, dialed.io).await
            }
        };
        if let Err(error) = carry.await {
            tracing::debug!(%error, "stream failed");
        }
    });
    Ok(response)
}

fn header_values(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()).collect()
}

async fn dial(
    cx: &RequestContext,
    node: &Node,
    path: &str,
    transport: Transport,
    offered: &[String],
) -> Result<Dialed, Status> {
    let io = node.connect(&cx.server).await.map_err(Status::internal)?;
    let uri = format!("https://{}{path}", node.authority()).parse().map_err(Status::internal)?;
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    kelson_streams::dial_upgrade(io, transport, &uri, trace_headers(), &offered).await.map_err(|error| match error {
        DialError::Refused { status, body, .. } => {
            let text = String::from_utf8_lossy(&body).trim_end().to_owned();
            kelson_meta::from_json::<Status>(&body).ok().filter(|s| s.code == status.as_u16()).unwrap_or_else(|| {
                match status.as_u16() {
                    400 => Status::bad_request(text),
                    404 => Status::failure(404, Reason::NotFound, text),
                    code => Status::failure(code.max(400), Reason::Unknown, text),
                }
            })
        }
        other => Status::internal(other),
    })
}

/// Headers with the request's trace for the kubelet.
fn trace_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    pass_on(&mut headers);
    headers
}

/// The 101 response for the client.
fn accept(cx: &RequestContext, websocket: bool, protocol: &str) -> Answer {
    let mut response = Response::new(ApiBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let named = HeaderValue::from_str(protocol).ok().filter(|_| !protocol.is_empty());
    if websocket {
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        let key = cx.headers.get("sec-websocket-key").and_then(|v| v.to_str().ok()).unwrap_or("");
        if let Ok(value) = HeaderValue::from_str(&kelson_streams::ws::accept_key(key)) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, value);
        }
        named.map(|v| headers.insert(WEBSOCKET_PROTOCOLS, v));
    } else {
        headers.insert(header::UPGRADE, HeaderValue::from_static(negotiate::SPDY_31));
        named.map(|v| headers.insert(PROTOCOLS, v));
    }
    response
}

/// An exec over a WebSocket whose client can close stdin. It is translated to SPDY, which all kubelets support.
async fn translate(
    cx: &RequestContext,
    node: &Node,
    target: &Target,
    upgrade: hyper::upgrade::OnUpgrade,
) -> Result<Answer, Status> {
    let mut request = http::Request::new(());
    *request.method_mut() = cx.method.clone();
    *request.uri_mut() = cx.uri.clone();
    *request.headers_mut() = cx.headers.clone();
    let (parts, ()) = request.into_parts();
    let accepted = match negotiate::accept_exec(&parts) {
        Ok(accepted) => accepted,
        Err(refusal) => {
            cx.server.metrics.streams().translated(StatusCode::BAD_REQUEST);
            return Ok(refusal.map(ApiBody::full));
        }
    };
    let wanted = ExecOptions::from_query(cx.uri.query()).map_err(Status::bad_request)?;
    let reservation = super::backend_limit::take(cx)?;
    let io = node.connect(&cx.server).await;
    let uri: Result<http::Uri, _> = format!("https://{}{}", node.authority(), target.path).parse();
    let (is_dialed, reached) = tokio::sync::oneshot::channel();
    let trace_headers = trace_headers();
    let backend = async move {
        let uri = uri.map_err(ExecResult::internal_error)?;
        let io = io.map_err(ExecResult::internal_error)?;
        let offered = RemoteCommandVersion::SPDY_SERVER.map(RemoteCommandVersion::name);
        let dialed = kelson_streams::dial_upgrade(io, Transport::Spdy, &uri, trace_headers, &offered).await;
        let dialed = dialed.map_err(ExecResult::internal_error)?;
        let version = RemoteCommandVersion::from_name(&dialed.protocol).unwrap_or(RemoteCommandVersion::V1);
        // The receiver is gone if the client has closed.
        let _ = is_dialed.send(());
        Ok((dialed.io, version))
    };
    let streams = cx.server.metrics.streams().clone();
    cx.server.tasks.spawn("api-stream", OnPanic::Contain, async move {
        let _reservation = reservation;
        let Some(client) = wait_for_upgrade(upgrade).await else { return };
        let is_carried = carry(client, accepted.protocol, wanted, backend).await && reached.await.is_ok();
        streams.translated(if is_carried { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR });
    });
    Ok(accepted.response.map(|()| ApiBody::empty()))
}

/// Carries a session until it ends. Returns whether it ended normally.
async fn carry<B>(
    client: TokioIo<hyper::upgrade::Upgraded>,
    protocol: kelson_streams::ExecProtocol,
    wanted: ExecOptions,
    backend: impl Future<Output = Result<(B, RemoteCommandVersion), ExecResult>>,
) -> bool
where
    B: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
{
    let options = ConnectionOptions::default();
    let carried = kelson_streams::translate_websocket_to_spdy(client, protocol, wanted, backend, &options).await;
    if let Err(error) = &carried {
        tracing::debug!(%error, "stream failed");
    }
    carried.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_trace_context_is_passed_to_kubelets() {
        assert!(trace_headers().is_empty(), "no trace was requested");
        let trace = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let asked = HeaderMap::from_iter([(HeaderName::from_static("traceparent"), trace)]);
        let passed = kelson_traces::Span::passed(&asked).scope(async { trace_headers() }).await;
        assert_eq!(passed, asked);
    }
}
