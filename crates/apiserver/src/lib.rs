//! The API server of Kelson: it takes a request from the bytes that arrive to the bytes of the response. A request passes the
//! filters in `front` (identify, audit, authorize, flow control), then `front::dispatch` finds its handler, which reads or writes
//! objects through the store and encodes the response. [`ApiServer::start`] builds a server from a [`Config`] and returns
//! [`Running`]; components of the same process send requests through [`Running::in_process`] and take the same path without
//! sockets.
//!
//! The rooms (folders), from the bottom up. A file imports from its own room and from those above it in this list, never from
//! those below:
//! `catalog` (the kinds that are served), `request` (one request as data), `config` (the server's configuration), `custom` (custom
//! resource definitions), `usage` (what nodes and pods use of their resources), `shared` (what all requests share: [`Server`], the request's context), `read`, `write`, `connect`
//! (streams to kubelets and pods), `subresources`, `reviews` (resources that are answered and not stored), `paths` (discovery,
//! OpenAPI, health, metrics), `front` (sockets and the filters that each request passes), `bootstrap` (the cluster's first objects),
//! `start` (the one file that knows all of them). Other crates define the meaning of kinds (`kelson-resources`), their storage
//! (`kelson-store`) and authentication and authorization (`kelson-auth`).
//!
//! Invariants: handlers read and write objects only through this path and the store; the catalog decides what is served, and no
//! match on a kind does; everything that a client can make grow has a named limit.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod aggregate;
mod bootstrap;
mod catalog;
mod config;
mod connect;
mod custom;
mod extend;
mod front;
mod paths;
mod read;
mod request;
mod reviews;
mod shared;
mod start;
mod subresources;
mod usage;
mod write;

pub use catalog::{Behaviour, Catalog, Conversion, Converter, DynamicSchema, ObjectSchema, RuntimeConfig, Served, Sub};
pub use config::{
    AuthorizationMode, Config, EndpointReconciler, KubeletConfig, KubeletTrust, ServiceAccountConfig, ServingConfig,
    StartError, TokenWebhook, Trusted, asks_for,
};
pub use request::route::RequestInfo;
pub use shared::Server;
pub use shared::readiness::ComponentCheck;
pub use start::{ApiServer, Running};
