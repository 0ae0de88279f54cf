//! Bearer tokens in headers: `Authorization`, and for browsers' WebSockets the protocol list.
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};

const WEBSOCKET_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The bearer token offered, if any.
pub fn bearer_token(headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()) {
        let mut parts = value.trim().splitn(3, ' ');
        let scheme = parts.next()?;
        return match parts.next() {
            Some(token) if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() => Some(token.to_owned()),
            _ => None,
        };
    }
    websocket_token(headers)
}

/// Only on an upgrade, and only beside another protocol: the server must have one to answer with.
fn websocket_token(headers: &HeaderMap) -> Option<String> {
    headers.get(http::header::UPGRADE).filter(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))?;
    let protocols: Vec<&str> = protocols(headers).collect();
    let mut tokens = protocols.iter().filter_map(|p| p.strip_prefix(WEBSOCKET_PREFIX));
    let token = tokens.next()?;
    if tokens.next().is_some() || protocols.len() < 2 {
        return None;
    }
    String::from_utf8(URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?).ok().filter(|t| !t.is_empty())
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(str::trim)
        .filter(|p| !p.is_empty())
}

/// Removes what authentication consumed, so that no later step can log it or pass it on.
pub fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    if protocols(headers).any(|p| p.starts_with(WEBSOCKET_PREFIX)) {
        let rest: Vec<&str> = protocols(headers).filter(|p| !p.starts_with(WEBSOCKET_PREFIX)).collect();
        let rest = HeaderValue::from_str(&rest.join(", "));
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
        if let Ok(value) = rest {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}
