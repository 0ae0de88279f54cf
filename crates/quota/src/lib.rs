//! Kelson quota: the usage of objects, the quotas that count them, and whether a change fits. It is pure: admission
//! uses it to charge quotas, and the quota controller to count usage. Upstream: `pkg/quota/v1`,
//! `apiserver/pkg/admission/plugin/resourcequota`.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `amounts` | sums of quantities |
//! | `pods`, `extended`, `claims`, `services` | what one object uses |
//! | `evaluator` | which objects are counted, by resource |
//! | `scope` | scopes and scope selectors |
//! | `quota` | what a ResourceQuota declares |
//! | `check` | whether a write still fits |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod amounts;
mod check;
mod claims;
mod evaluator;
mod extended;
mod pods;
mod quota;
mod scope;
mod services;

pub use amounts::Amounts;
pub use check::{Change, Charge, Limited, Refusal, check};
pub use evaluator::{Evaluator, Operation};
pub use extended::ExtendedResources;
pub use pods::{PodLevel, is_best_effort, wanted};
pub use quota::Quota;
pub use scope::Requirement;
