//! Kelson dns: cluster DNS from informers.
