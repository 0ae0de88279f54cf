//! Kelson cel: CEL as Kubernetes uses it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
