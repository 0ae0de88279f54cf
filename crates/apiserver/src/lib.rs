//! The API server of Kelson: it takes a request from the bytes that arrive to the bytes of the response. A request passes the
//! filters in `front` (identify, audit, authorize, flow control), then `front::dispatch` finds its handler, which reads or writes
//! objects through the store and encodes the response. [`ApiServer::start`] builds a server from a [`Config`] and returns
//! [`Running`]. Components of the same process send requests through [`Running::in_process`]: they take the same path, without
//! sockets.
//!
//! Invariants: handlers read and write objects only through this path and the store. The catalog decides what is served, and no
//! match on a kind does. Everything that a client can make grow has a named limit.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds | may touch |
//! |---|---|---|
//! | `catalog/` | what is served: names, behaviour, schema, conversion, stored records as trees | the schema table, `resources`, records; nothing of a request |
//! | `request/` | one request as data: path, query, accepted form, body, selectors, the bytes of a response, where it ends | facts of the catalog; not the server |
//! | `config` | the server's configuration | types only |
//! | `custom/` | custom resource definitions: their contents, names, status, schemas, conversion, and the registrar | the catalog, records of the store; no request |
//! | `aggregate/` | group versions that other servers serve: APIServices, and how such a server is reached | `request/routes`; sockets to those servers |
//! | `peers/` | other API servers on the same storage: what they serve, and requests that this server forwards to them | `aggregate/forward`, `request/routes`; sockets to those servers |
//! | `usage/` | resource usage of nodes and pods: reports of kubelets, two samples of each, the kinds of `metrics.k8s.io` | the catalog; nothing of a request |
//! | `shared/` | the parts of the server, each in a file, and the context of one request | the store, `auth`, `admission` as parts; no handler |
//! | `read/` | get, list, watch, tables, frames | reads of the store |
//! | `write/` | one file for each step (decode, prepare, admit, fields, commit, retry) and for each verb | the store's commit, through `commit` only |
//! | `connect/` | logs, exec, port-forward, proxy | sockets to kubelets and pods |
//! | `subresources/` | scale, binding, eviction, token | `read`, `write`, `connect` |
//! | `reviews/` | resources that are answered and not stored | `auth` |
//! | `paths/` | discovery, OpenAPI, health, metrics | the catalog, readiness, the registry |
//! | `front/` | sockets, and the filters in order: identify, audit, authorize, flow, dispatch | everything above; no kind |
//! | `bootstrap/` | the first objects of the cluster, created through the whole path; the `kubernetes` service, whose endpoints name the servers that are alive (`kubernetes`) | `front` |
//! | `extend/` | what the server does for those who extend the API: definitions that other servers on the same storage made (`others`), the clean-up of definitions, APIServices of group versions, availability of other servers, what other servers on the same storage serve, objects of priority and fairness | `write`; the server's client, of `bootstrap` |
//! | `start` | builds all of it and ends it | everything |
//!
//! What is known only at run time has fixed interfaces. A kind is a `Served` in the catalog with an `ObjectSchema` (decode,
//! normalize, shape, OpenAPI) and a `Conversion`, which may wait and takes many objects at once. A group version may end at a
//! `RemoteHandler` (`request/routes.rs`). `kelson-audit` receives each stage of a request as its policy wants it, with the
//! results of authorization and admission. A `Flow` (`shared/flow.rs`) decides when requests run: `shared/fairness` by objects
//! of the API (`kelson-flowcontrol`), or fixed limits. What distinguishes kinds (durability, expiry, the response to a delete,
//! allocations, who may grant) is a field of `resources::Options`. Other crates define the meaning of kinds
//! (`kelson-resources`), their storage (`kelson-store`), and authentication and authorization (`kelson-auth`).
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
mod peers;
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
    AuthorizationMode, Config, EndpointReconciler, JoinHandler, KubeletConfig, KubeletTrust, ServiceAccountConfig,
    ServingConfig, StartError, TokenWebhook, Trusted, asks_for,
};
pub use request::route::RequestInfo;
pub use shared::Server;
pub use shared::identity::IssuersError;
pub use shared::readiness::ComponentCheck;
pub use start::{ApiServer, Running};
