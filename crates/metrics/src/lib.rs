//! Metrics of a component: one [`Registry`] holds its counters and histograms, reads what is cheaper to look up than to
//! count ([`Registry::on_scrape`]), and writes all of it in Prometheus' classic text format.
//!
//! Counters come from the `prometheus` crate; this crate adds what every component of a cluster shows (its process, its
//! tasks, its build) and families that are made while they are asked for ([`Families`]).
//!
//! Label values must come from a bounded set: fixed words, resource names of the catalog, names from the node's
//! configuration. What a client can choose freely does not become a label.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `families` | metric families that are made during a scrape |
//! | `process` | metrics of the process |
//! | `registry` | the registry of a component |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod families;
mod process;
mod registry;

pub use families::{Families, Family};
pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, exponential_buckets,
};
pub use registry::Registry;

/// `Content-Type` of what [`Registry::text`] and [`Families::text`] give.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
