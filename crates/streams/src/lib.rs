//! Kelson streams: exec, attach and port-forward as Kubernetes carries them over an upgraded connection.
//!
//! Two wire formats carry the same streams: SPDY/3.1 ([`spdy`]) and WebSocket channels ([`ws`]). Both feed one
//! multiplexer ([`mux`]), which owns buffers, half-close, resets and limits, so that [`exec`], [`portforward`] and
//! [`proxy`] do not handle frames. This crate does not authenticate, authorize, route or run anything. The server of a
//! request calls [`negotiate`], sends the response that it returns, and passes the upgraded connection to this crate.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `status` | errors and the final status |
//! | `spdy/`, `ws/`, `mux/` | frames; in `mux/`, `table` holds the streams and their budgets of bytes, `state` the rules, `driver` the tasks |
//! | `copy`, `negotiate/`, `exec`, `portforward`, `dial`, `exec_client`, `portforward_client`, `proxy` | what is carried |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub(crate) mod copy;
pub mod dial;
pub mod error;
pub mod exec;
pub mod exec_client;
pub mod mux;
pub mod negotiate;
pub mod portforward;
pub mod portforward_client;
pub mod proxy;
pub mod spdy;
pub mod status;
pub mod ws;

pub use copy::copy_gathered;
pub use dial::{DialError, Dialed, dial_upgrade};
pub use error::StreamError;
pub use exec::{ExecStreams, ResizeStream, TerminalSize};
pub use exec_client::{ExecClient, exec_client};
pub use mux::{Connection, ConnectionOptions, Stream};
pub use negotiate::{
    Accepted, ExecOptions, ExecProtocol, PortForwardProtocol, RemoteCommandVersion, accept_exec, accept_port_forward,
    is_tunnel_request, is_upgrade_request, is_websocket_request, wants_stream_close,
};
pub use portforward::{PortForwardPair, PortForwardSession};
pub use portforward_client::{ForwardedConnection, PortForwardClient};
pub use proxy::{splice, splice_until_idle, translate_websocket_to_spdy, tunnel_websocket_to_spdy};
pub use status::ExecResult;
