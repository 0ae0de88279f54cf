//! Request headers that are not passed on to other servers.

/// Headers that are not passed on: they concern one hop, or contain the client's credentials for this server.
pub const DROPPED: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "authorization",
    "host",
];
