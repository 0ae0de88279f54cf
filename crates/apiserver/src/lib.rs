//! Kelson apiserver: the way of a request from bytes to bytes.
//!
//! The modules are named for the steps and read in this order: `listen` (sockets, TLS, HTTP), `route`, `handle`
//! (authenticate, limit in flight, authorize), `dispatch`, then for a write `decode`, `create` / `update` / `patch` /
//! `delete` (convert, default, validate), `admit`, `commit`, `encode`; for a read `list` and `watch`. What a kind means
//! is `kelson-resources`', how it is kept `kelson-store`'s, who may do what `kelson-auth`'s.
//!
//! Invariants: no handler reads or writes objects but through this path and the store; no match on kinds decides whether
//! something is served (the catalog does); everything a client can make grow has a named limit.

mod admit;
mod assemble;
mod backend_tls;
mod binding;
mod body;
mod bootstrap;
mod catalog;
mod commit;
mod config;
mod connect;
mod context;
mod create;
mod decode;
mod delete;
mod discovery;
mod dispatch;
mod encode;
mod eviction;
mod fields;
mod frames;
mod handle;
mod health;
mod inprocess;
mod kubelet;
mod links;
mod list;
mod listen;
mod metrics;
mod negotiate;
mod nonresource;
mod objects;
mod openapi;
mod patch;
mod proxy;
mod query;
mod route;
mod scale;
mod selectors;
mod server;
mod services;
mod stream;
mod subresource;
mod token;
mod update;
mod version;
mod version_param;
mod virtuals;
mod watch;
mod websocket;

pub use catalog::{Behaviour, Catalog, Served, Sub};
pub use config::{AuthorizationMode, Config, KubeletConfig, ServiceAccountConfig, ServingConfig, StartError};
pub use server::{ApiServer, Running, Server};
