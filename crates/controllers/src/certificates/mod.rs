//! Certificate signing requests: approving those of nodes (`approve`), signing what is approved (`sign`), clearing away
//! old ones (`clean`). What each signer accepts is known to `kelson-pki`. Upstream `pkg/controller/certificates`.
pub mod approve;
pub mod clean;
#[cfg(test)]
mod hostile;
pub mod serving_names;
pub mod sign;
