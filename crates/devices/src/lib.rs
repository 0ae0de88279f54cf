//! Kelson devices: dynamic resource allocation. The crate reads resource claims, device classes and resource slices,
//! and decides which devices satisfy the claims of a pod on a node (KEP-4381 and later ones whose feature gates are
//! enabled by default in 1.36). It is pure: callers supply time and names, and write the results.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `names`, `taint`, `device_id` | names, taints and identifiers |
//! | `claim`, `class`, `slice` | what is read of each kind |
//! | `capacity`, `extended`, `selector`, `taken`, `inventory` | what a request takes of a shared device, claims for extended resources, expressions, what claims have, slices by node and pool |
//! | `pool` | slices of one generation, complete or not |
//! | `constraint` | constraints between the devices of a claim |
//! | `allocate/` | the search: takes one device after the other and returns it, within a bound |
//! | `readiness` | whether devices that must be prepared first are ready |
//!
//! Only this crate decides which devices a claim gets.

pub mod allocate;
mod capacity;
mod claim;
mod class;
mod constraint;
mod device_id;
mod extended;
mod inventory;
pub mod names;
mod pool;
mod readiness;
mod selector;
mod slice;
mod taint;
mod taken;

pub use claim::{
    Allocation, ClaimSpec, ClaimStatus, Consumer, DeviceConstraint, DeviceRequest, DeviceRequestSpec, DeviceStatus,
    Granted, ResourceClaimView,
};
pub use class::{DeviceClassSpec, DeviceClassView, by_extended_resource};
pub use device_id::DeviceId;
pub use extended::{ExtendedAsk, ExtendedClaim, is_extended};
pub use inventory::{Host, Inventory};
pub use readiness::{Readiness, readiness};
pub use selector::{SelectorError, Selectors};
pub use slice::{DeviceView, ResourceSliceView, Selected, SliceSpec};
pub use taint::{DeviceTaint, DeviceToleration};
pub use taken::DevicesInUse;
