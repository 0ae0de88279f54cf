//! WebSocket as Kubernetes uses it: RFC 6455 framing, the channel subprotocols, and SPDY tunnelled in messages.

pub mod frame;
pub mod tunnel;
pub(crate) mod wire;

use base64::Engine as _;

/// The value RFC 6455 section 1.3 appends to the key before it is digested.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The role of this side in the connection; a client masks the frames that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that sent the upgrade request.
    Client,
    /// The side that answered it.
    Server,
}

/// The `Sec-WebSocket-Accept` that answers a `Sec-WebSocket-Key`.
pub fn accept_key(key: &str) -> String {
    // SHA-1 is what RFC 6455 asks for; it protects nothing here.
    let mut context = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key.as_bytes());
    context.update(GUID.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(context.finish())
}

/// A fresh `Sec-WebSocket-Key`.
pub fn new_key() -> String {
    base64::engine::general_purpose::STANDARD.encode(rand::random::<[u8; 16]>())
}

#[cfg(test)]
mod tests {
    #[test]
    fn accept_key_of_the_standard() {
        assert_eq!(super::accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
