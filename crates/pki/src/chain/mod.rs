//! Chain: whether certificates lead to a trusted one, as Go's `x509.Verify` decides it, since that is what the components of
//! Kubernetes do. Trusted certificates are checked like all others of a chain: an authority that has expired, or that may not sign, is
//! not accepted as an issuer. A leaf that is itself trusted needs no issuer.
mod certificate;
mod fault;
mod names;
mod verify;

pub use certificate::Usage;
pub use fault::ChainFault;
pub use verify::Pool;
