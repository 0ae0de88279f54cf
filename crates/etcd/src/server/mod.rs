//! The server: sockets, TLS, the calls of the protocol, and plain HTTP.

mod calls;
mod concurrency;
mod exchange;
mod face;
mod grpc;
mod http;
mod json;
mod listen;
mod methods;
mod metrics;
mod nameless;
mod options;
mod prompt;
mod received;
mod route;
mod start;
mod streams;
mod tls;
mod unread;

pub use options::{Address, Endpoint, ServerOptions, StartError, TlsFiles, VERSION};
pub use start::Server;
