//! Kelson volumes: claims, volumes and storage classes, and the choice of a volume for a claim. It is pure: the binder
//! and the scheduler use the same functions, so that their decisions agree.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `names` | annotations, and names of provisioners |
//! | `claim`, `volume`, `class` | what is read of each kind |
//! | `matching` | which volume suits a claim |

mod claim;
mod class;
mod matching;
pub mod names;
mod volume;

pub use claim::{ClaimSpec, ClaimStatus, ClaimView, ModifyVolume, Needs};
pub use class::{StorageClassView, default_class};
pub use matching::{ClaimRequirements, best, is_bound_to, mismatch, modes_differ, rank};
pub use volume::{Amounts, ClaimReference, CsiSource, PathSource, VolumeSpec, VolumeStatus, VolumeView};
