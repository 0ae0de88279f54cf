//! Headers: which of a request are not passed on to other servers, whoever they are.

/// Headers of a request that are not passed on: they belong to one hop, or hold the client's credentials for this server.
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
