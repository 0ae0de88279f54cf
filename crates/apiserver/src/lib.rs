//! Kelson apiserver: the way of a request from bytes to bytes.
//!
//! The rooms, from the bottom up; a file imports from its own room and from those above it in this list, never below:
//! `catalog` (what is served), `request` (one request as data), `config` (what the server is told), `custom` (kinds that users
//! define), `shared` (what all
//! requests share), `read`, `write`, `connect` (streams to kubelets and pods), `subresources`, `reviews` (resources that
//! are answered and not stored), `paths` (discovery, OpenAPI, health, metrics), `front` (sockets and the filters that each
//! request passes), `bootstrap` (the cluster's first objects), `start` (the one file that knows all of them). What a kind
//! means is `kelson-resources`', how it is kept `kelson-store`'s, who may do what `kelson-auth`'s.
//!
//! Invariants: no handler reads or writes objects but through this path and the store; no match on kinds decides whether
//! something is served (the catalog does); everything a client can make grow has a named limit.
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
