//! The plugins, one small file per concern. Each knows its rules and nothing of the others.
pub mod always;
pub mod certificates;
pub mod classes;
pub mod images;
pub mod limit_ranger;
pub mod namespaces;
pub mod node_restriction;
pub mod node_selector;
pub mod owner_references;
pub mod pod_security;
pub mod priority;
pub mod quota;
pub mod runtime_class;
pub mod service_account;
pub mod services;
pub mod storage;
pub mod tolerations;
