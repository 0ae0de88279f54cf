//! Verifies certificate chains with the rules of Go's `x509.Verify`, which the components of Kubernetes use. Trusted
//! certificates are checked like all others of a chain: a CA that has expired, or that may not sign, is not accepted as
//! an issuer. A leaf that is itself trusted needs no issuer.
mod certificate;
mod fault;
mod names;
mod verify;

pub use certificate::Usage;
pub use fault::ChainFault;
pub use verify::Pool;
