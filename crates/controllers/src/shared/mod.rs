//! Parts that several controllers use: context, informers, expectations, ownership, pods, discovery.
pub mod address_pool;
pub mod authorities;
pub mod config;
pub mod context;
pub mod discovery;
pub mod evictions;
pub mod expectations;
pub mod history;
pub mod informers;
pub mod manifest_set;
pub mod ownership;
pub mod pods;
pub mod refusals;
pub mod scale;
pub mod toleration;
