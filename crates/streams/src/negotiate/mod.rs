//! Answers upgrade requests: chooses the transport and the protocol version, or rejects the request. `exec`,
//! `portforward` and `proxy` serve the upgraded connection. Upstream: `httpstream.go` (`Handshake`),
//! `wsstream/conn.go`.
mod protocol;

use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use kelson_meta::url::Query;

use crate::ws::accept_key;

pub use protocol::{ExecOptions, ExecProtocol, PortForwardProtocol, RemoteCommandVersion};

/// The value of the `Upgrade` header for SPDY.
pub const SPDY_31: &str = "SPDY/3.1";

/// The header with the protocol versions that a SPDY client offers, and in the response with the chosen one.
pub const STREAM_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The header of a rejection with the protocol versions that the server accepts.
pub const ACCEPTED_STREAM_PROTOCOL_VERSIONS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

/// The only port-forward protocol.
pub const PORT_FORWARD_V1: &str = "portforward.k8s.io";

/// SPDY in WebSocket messages (KEP-4006).
pub const PORT_FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

const WEBSOCKET_PROTOCOL: &str = "sec-websocket-protocol";

/// The limit of ports in one legacy WebSocket port-forward. Each port takes two channels.
pub const CHANNEL_PORTS_MAX: usize = 64;

/// An accepted upgrade. The caller sends the response and passes the upgraded connection on with the protocol.
#[derive(Debug)]
pub struct Accepted<P> {
    /// The response, with status 101.
    pub response: Response<()>,
    /// The agreed protocol.
    pub protocol: P,
}

/// The response to a rejected upgrade, in plain text as in upstream.
pub type Refusal = Box<Response<String>>;

fn refusal(status: StatusCode, message: String) -> Refusal {
    let mut response = Response::new(message + "\n");
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    Box::new(response)
}

fn listed(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let parts = values.flat_map(|value| value.split(','));
    parts.map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn mentions(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.to_ascii_lowercase().contains(word))
}

/// Reports whether the request asks for an upgrade of its connection.
pub fn is_upgrade_request(headers: &HeaderMap) -> bool {
    mentions(headers, &CONNECTION, "upgrade")
}

/// Reports whether the request asks for a WebSocket.
pub fn is_websocket_request(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    is_upgrade_request(headers) && upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// The subprotocols that a WebSocket client offers, in its order.
pub fn offered_websocket_protocols(headers: &HeaderMap) -> Vec<String> {
    listed(headers, &HeaderName::from_static(WEBSOCKET_PROTOCOL))
}

/// Reports whether the request is for a WebSocket whose client can end stdin (`v5.channel.k8s.io`). The API server
/// translates it to SPDY for the kubelet and passes other requests through.
pub fn wants_stream_close(headers: &HeaderMap) -> bool {
    is_websocket_request(headers)
        && offered_websocket_protocols(headers).iter().any(|name| name == RemoteCommandVersion::V5.name())
}

/// Reports whether the request asks for SPDY in a WebSocket.
pub fn is_tunnel_request(headers: &HeaderMap) -> bool {
    is_websocket_request(headers)
        && offered_websocket_protocols(headers)
            .iter()
            .any(|name| name.starts_with("SPDY/3.1+") && name.ends_with(".k8s.io"))
}

/// Negotiates an exec or attach on the server's side.
pub fn accept_exec(parts: &Parts) -> Result<Accepted<ExecProtocol>, Refusal> {
    if !is_websocket_request(&parts.headers) {
        let names = RemoteCommandVersion::SPDY_SERVER.map(RemoteCommandVersion::name);
        let (response, chosen) = accept_spdy(&parts.headers, &names)?;
        let version = RemoteCommandVersion::SPDY_SERVER[chosen];
        return Ok(Accepted { response, protocol: ExecProtocol::Spdy(version) });
    }
    use RemoteCommandVersion::{V1, V4, V5};
    let known = [
        ("", V1, false),
        ("v5.channel.k8s.io", V5, false),
        ("v4.channel.k8s.io", V4, false),
        ("v4.base64.channel.k8s.io", V4, true),
        ("channel.k8s.io", V1, false),
        ("base64.channel.k8s.io", V1, true),
    ];
    let (response, chosen) = accept_websocket(&parts.method, &parts.headers, &known.map(|(name, ..)| name))?;
    let (_, version, base64) = known[chosen];
    Ok(Accepted { response, protocol: ExecProtocol::WebSocket { version, base64 } })
}

/// Negotiates a port-forward on the server's side.
pub fn accept_port_forward(parts: &Parts) -> Result<Accepted<PortForwardProtocol>, Refusal> {
    if !is_websocket_request(&parts.headers) {
        let (response, _) = accept_spdy(&parts.headers, &[PORT_FORWARD_V1])?;
        return Ok(Accepted { response, protocol: PortForwardProtocol::Spdy });
    }
    if is_tunnel_request(&parts.headers) {
        let (response, _) = accept_websocket(&parts.method, &parts.headers, &[PORT_FORWARD_TUNNEL])?;
        return Ok(Accepted { response, protocol: PortForwardProtocol::Tunnel });
    }
    let ports = query_ports(parts.uri.query()).map_err(|message| refusal(StatusCode::BAD_REQUEST, message))?;
    let known = [("", false), ("v4.channel.k8s.io", false), ("v4.base64.channel.k8s.io", true)];
    let (response, chosen) = accept_websocket(&parts.method, &parts.headers, &known.map(|(name, _)| name))?;
    Ok(Accepted { response, protocol: PortForwardProtocol::Channels { ports, base64: known[chosen].1 } })
}

fn query_ports(query: Option<&str>) -> Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for (_, value) in Query::parse(query).pairs().filter(|(name, _)| matches!(*name, "port" | "ports")) {
        if value.is_empty() {
            return Err("query parameter \"port\" cannot be empty".into());
        }
        for part in value.split(',') {
            match part.parse::<u16>() {
                Ok(0) => return Err(format!("port {value:?} must be > 0")),
                Ok(port) => ports.push(port),
                Err(error) => return Err(format!("unable to parse {value:?} as a port: {error}")),
            }
        }
    }
    match ports.len() {
        0 => Err("query parameter \"port\" is required".into()),
        1..=CHANNEL_PORTS_MAX => Ok(ports),
        _ => Err(format!("at most {CHANNEL_PORTS_MAX} ports can be forwarded over one connection")),
    }
}

fn accept_spdy(headers: &HeaderMap, known: &[&str]) -> Result<(Response<()>, usize), Refusal> {
    let name = "X-Stream-Protocol-Version";
    if !headers.contains_key(&STREAM_PROTOCOL_VERSION) {
        let count = headers.keys_len();
        let message = format!("unable to upgrade: header {name} does not exist in request with {count} headers");
        return Err(refusal(StatusCode::BAD_REQUEST, message));
    }
    let offered = listed(headers, &STREAM_PROTOCOL_VERSION);
    if offered.is_empty() {
        let message = format!("unable to upgrade: header {name} contains no valid protocols");
        return Err(refusal(StatusCode::BAD_REQUEST, message));
    }
    let Some(chosen) = offered.iter().find_map(|name| known.iter().position(|known| known == name)) else {
        let message = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
            offered.join(" "),
            known.join(" "),
        );
        let mut refused = refusal(StatusCode::FORBIDDEN, message);
        for name in known {
            if let Ok(value) = HeaderValue::from_str(name) {
                refused.headers_mut().append(ACCEPTED_STREAM_PROTOCOL_VERSIONS, value);
            }
        }
        return Err(refused);
    };
    if !is_upgrade_request(headers) || !mentions(headers, &UPGRADE, "spdy/3.1") {
        let message = "unable to upgrade: missing upgrade headers in request".to_owned();
        return Err(refusal(StatusCode::BAD_REQUEST, message));
    }
    let mut response = switching(SPDY_31);
    if let Ok(value) = HeaderValue::from_str(known[chosen]) {
        response.headers_mut().insert(STREAM_PROTOCOL_VERSION, value);
    }
    Ok((response, chosen))
}

/// Negotiates a WebSocket on the server's side, with one of the known subprotocols (`""` if the client names none).
/// Returns the index of the chosen one.
///
/// # Errors
/// Returns the response to send if the request is rejected.
pub fn accept_websocket(
    method: &http::Method,
    headers: &HeaderMap,
    known: &[&str],
) -> Result<(Response<()>, usize), Refusal> {
    let version = headers.get("sec-websocket-version").and_then(|value| value.to_str().ok());
    if version != Some("13") {
        let mut refused = refusal(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version".into());
        refused.headers_mut().insert("sec-websocket-version", HeaderValue::from_static("13"));
        return Err(refused);
    }
    let key = headers.get("sec-websocket-key").and_then(|value| value.to_str().ok());
    let Some(key) = key.filter(|_| method == http::Method::GET) else {
        return Err(refusal(StatusCode::BAD_REQUEST, "bad WebSocket handshake: method or key".into()));
    };
    let mut offered = offered_websocket_protocols(headers);
    if offered.is_empty() {
        offered.push(String::new());
    }
    let Some(chosen) = offered.iter().find_map(|name| known.iter().position(|known| known == name)) else {
        let message = format!(
            "requested protocol(s) are not supported: [{}]; supports [{}]",
            offered.join(" "),
            known.join(" "),
        );
        return Err(refusal(StatusCode::FORBIDDEN, message));
    };
    let mut response = switching("websocket");
    if let Ok(value) = HeaderValue::from_str(&accept_key(key)) {
        response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, value);
    }
    if !known[chosen].is_empty()
        && let Ok(value) = HeaderValue::from_str(known[chosen])
    {
        response.headers_mut().insert(WEBSOCKET_PROTOCOL, value);
    }
    Ok((response, chosen))
}

fn switching(upgrade: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(upgrade));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("request").into_parts().0
    }

    const SPDY: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];
    const WEBSOCKET: [(&str, &str); 4] = [
        ("Connection", "keep-alive, Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn spdy_takes_the_clients_first_known_version() {
        let version = ("X-Stream-Protocol-Version", "v5.channel.k8s.io, v4.channel.k8s.io");
        let other = ("X-Stream-Protocol-Version", "v3.channel.k8s.io");
        let accepted = accept_exec(&parts("/exec", &[SPDY[0], SPDY[1], version, other])).expect("accepted");
        assert_eq!(accepted.protocol, ExecProtocol::Spdy(RemoteCommandVersion::V4));
        assert_eq!(accepted.response.status(), 101);
        assert_eq!(accepted.response.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
        assert_eq!(accepted.response.headers()["upgrade"], "SPDY/3.1");
    }

    #[test]
    fn spdy_refusals_are_upstreams() {
        let refused = accept_exec(&parts("/exec", &SPDY)).expect_err("no version");
        assert_eq!(refused.status(), 400);
        let unknown = ("X-Stream-Protocol-Version", "v9.channel.k8s.io");
        let refused = accept_exec(&parts("/exec", &[SPDY[0], SPDY[1], unknown])).expect_err("unknown version");
        assert_eq!(refused.status(), 403);
        let accepted: Vec<_> = refused.headers().get_all("x-accepted-stream-protocol-versions").iter().collect();
        assert_eq!(accepted, ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]);
        assert!(refused.body().contains("client supports [v9.channel.k8s.io], server accepts [v4.channel.k8s.io"));
        let version = ("X-Stream-Protocol-Version", "portforward.k8s.io");
        let refused = accept_port_forward(&parts("/portForward", &[version])).expect_err("no upgrade");
        assert_eq!(refused.status(), 400);
    }

    #[test]
    fn websocket_protocols_map_to_versions() {
        use RemoteCommandVersion::{V1, V4, V5};
        for (offer, version, base64) in [
            (Some("v5.channel.k8s.io"), V5, false),
            (Some("v9.channel.k8s.io, v4.base64.channel.k8s.io"), V4, true),
            (Some("channel.k8s.io"), V1, false),
            (None, V1, false),
        ] {
            let mut headers = WEBSOCKET.to_vec();
            headers.extend(offer.map(|offer| ("Sec-WebSocket-Protocol", offer)));
            let request = parts("/exec", &headers);
            assert_eq!(wants_stream_close(&request.headers), version == V5);
            let accepted = accept_exec(&request).expect("accepted");
            assert_eq!(accepted.protocol, ExecProtocol::WebSocket { version, base64 });
            assert_eq!(accepted.response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
            assert_eq!(accepted.response.headers().contains_key("sec-websocket-protocol"), offer.is_some());
        }
        let mut headers = WEBSOCKET.to_vec();
        headers.push(("Sec-WebSocket-Protocol", "odd"));
        assert_eq!(accept_exec(&parts("/exec", &headers)).expect_err("unknown").status(), 403);
    }

    #[test]
    fn port_forward_has_three_forms() {
        let mut tunnel = WEBSOCKET.to_vec();
        tunnel.push(("Sec-WebSocket-Protocol", PORT_FORWARD_TUNNEL));
        let accepted = accept_port_forward(&parts("/pf", &tunnel)).expect("tunnel");
        assert_eq!(accepted.protocol, PortForwardProtocol::Tunnel);
        assert_eq!(accepted.response.headers()["sec-websocket-protocol"], PORT_FORWARD_TUNNEL);
        let accepted = accept_port_forward(&parts("/pf?port=80&port=443,8080", &WEBSOCKET)).expect("channels");
        let ports = vec![80, 443, 8080];
        assert_eq!(accepted.protocol, PortForwardProtocol::Channels { ports, base64: false });
        for uri in ["/pf", "/pf?port=", "/pf?port=0", "/pf?port=x"] {
            assert_eq!(accept_port_forward(&parts(uri, &WEBSOCKET)).expect_err("bad ports").status(), 400, "{uri}");
        }
    }

    #[test]
    fn queries_round_trip() {
        let options = ExecOptions { stdin: true, stdout: true, stderr: false, tty: true };
        assert_eq!(ExecOptions::from_query(Some(&options.to_query())), Ok(options));
        assert_eq!(ExecOptions::from_query(Some("stdin=true&stdout=true&stderr=true&tty=true")), Ok(options));
        assert!(ExecOptions::from_query(Some("tty=1")).is_err());
    }
}
