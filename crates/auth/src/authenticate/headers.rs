//! Bearer tokens in headers: `Authorization`, and for browsers' WebSockets the protocol list.
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use zeroize::Zeroizing;

const WEBSOCKET_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// A bearer token from a request: it is never printed, and its memory is overwritten when it is dropped.
pub struct BearerToken(Zeroizing<String>);

impl BearerToken {
    fn new(token: &str) -> Option<Self> {
        (!token.is_empty()).then(|| Self(Zeroizing::new(token.to_owned())))
    }

    /// Returns the token, to be compared or verified and not to be stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// Returns the bearer token of a request, if there is one.
pub fn bearer_token(headers: &HeaderMap) -> Option<BearerToken> {
    if let Some(value) = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()) {
        let mut parts = value.trim().splitn(3, ' ');
        let scheme = parts.next()?;
        return match parts.next() {
            Some(token) if scheme.eq_ignore_ascii_case("bearer") => BearerToken::new(token),
            _ => None,
        };
    }
    websocket_token(headers)
}

/// Only on an upgrade, and only with another protocol: the server must have one to answer with.
fn websocket_token(headers: &HeaderMap) -> Option<BearerToken> {
    headers.get(http::header::UPGRADE).filter(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))?;
    let protocols: Vec<&str> = protocols(headers).collect();
    let mut tokens = protocols.iter().filter_map(|p| p.strip_prefix(WEBSOCKET_PREFIX));
    let token = tokens.next()?;
    if tokens.next().is_some() || protocols.len() < 2 {
        return None;
    }
    let decoded = Zeroizing::new(URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?);
    BearerToken::new(std::str::from_utf8(&decoded).ok()?)
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

/// Removes credentials, so that no later step can log them or pass them on.
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
