//! Kelson cel: CEL as Kubernetes uses it.
