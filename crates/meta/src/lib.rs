//! Kelson meta: the basic types that all layers share.
//!
//! `Status` (the API's error), names of groups, versions and kinds, object metadata, selectors, quantities, field
//! errors, name rules, cron schedules, helpers for JSON trees, URL queries and the clock. It has no sockets, no schema
//! and no policy of a component.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `field` | errors that name a field |
//! | `status` | `Status`, the API's error |
//! | `path` | paths to fields, for errors and patches |
//! | `url` | queries of URLs |
//! | `duration` | durations in Go's format |
//! | `cron` | cron schedules |
//!
//! The other files (names, selectors, quantities, trees, time, backoff) do not import each other. Code that two crates
//! need, such as access to a member of a tree, is here or in the lowest crate that both use.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod backoff;
mod clock;
mod cron;
mod duration;
mod field;
pub mod gates;
mod gvk;
mod intern;
mod json;
pub mod metadata;
mod names;
mod node_selector;
mod null;
mod object;
pub mod path;
mod quantity;
mod selector;
mod selector_text;
mod status;
pub mod tree;
pub mod url;
pub mod version;

pub use backoff::Backoff;
pub use clock::{Clock, SystemClock, format_micro, format_seconds};
pub use cron::CronSchedule;
pub use duration::{DurationError, parse_duration, parse_nanos};
pub use field::{FieldError, FieldErrorKind, FieldErrors, FieldPath, too_long_detail, too_many_detail};
pub use gvk::{GroupKind, GroupResource, GroupVersion, Gvk, Gvr};
pub use intern::{Intern, Interned, Interner, LabelMap};
pub use json::{from_json, from_tree};
pub use names::{
    generate_name, is_config_map_key, is_dns1035_label, is_dns1123_label, is_dns1123_subdomain, is_label_value,
    is_path_segment_name, is_qualified_name, random_suffix,
};
pub use node_selector::{NodeSelector, NodeSelectorTerm};
pub use null::null_default;
pub use object::{ObjectKey, ObjectMeta, OwnerReference};
pub use quantity::{Quantity, QuantityError, QuantityFormat};
pub use selector::{
    FieldRequirement, FieldSelector, LabelRequirement, LabelSelector, LabelSelectorRequirement, LabelSelectorSpec,
    Operator, SelectorError,
};
pub use status::{Reason, Status, StatusCause, StatusDetails};
