//! Certificate signing requests: approval of those of nodes (`approve`), signing of approved ones (`sign`), deletion of
//! old ones (`clean`). `kelson-pki` has the rules of each signer. Upstream `pkg/controller/certificates`.
pub mod approve;
pub mod clean;
#[cfg(test)]
mod hostile;
pub mod serving_names;
pub mod sign;
