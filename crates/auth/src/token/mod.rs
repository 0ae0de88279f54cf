//! Service account tokens: issuing them for TokenRequest, verifying them, and publishing the keys to verify them with.
mod discovery;
mod issue;
mod jwt;
pub mod uses;
mod verify;

pub use discovery::{jwks, openid_configuration};
pub use issue::{IssuerOptions, MintedToken, TokenIssuer, TokenTerms};
#[cfg(test)]
pub(crate) use jwt::fixed as fixed_signature;
pub use verify::{ServiceAccountTokens, VerifierOptions};

use serde::{Deserialize, Serialize};

/// The default of `--service-account-issuer`.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The lifetime that kubelets request for projected volumes, in seconds; such tokens are valid for a year and cause
/// warnings after this time (upstream's safe roll-out of time-bound tokens).
pub const WARN_ONLY_SECONDS: i64 = 3607;
/// The lifetime of those tokens in seconds.
pub const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;
/// The issuer of tokens in secrets of type `kubernetes.io/service-account-token`.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// Name and UID of a bound object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Bound {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The `kubernetes.io` claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KubernetesClaims {
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Bound>,
    pub serviceaccount: Bound,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
