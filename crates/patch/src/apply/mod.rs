//! Server-side apply (KEP-555): who owns which field, and what an applied configuration changes.
//! `fields` has sets of field paths and their FieldsV1 form; `walk` says what a place is and prunes trees by schema,
//! `compare` and `merge` are what their names say;
//! `added` is the short way for creates, `conflict` what an apply is refused by; `changes` are a write's, and what they take from whom;
//! `managed` reads and writes `metadata.managedFields`, `owned` is one entry's fields; `manager` ties them together for one write,
//! `across` where entries name other versions, `scale` is the view that the subresource of this name has of the entries.
mod across;
mod added;
mod changes;
mod compare;
mod conflict;
mod fields;
mod fit;
mod managed;
mod manager;
mod merge;
mod owned;
pub mod scale;
mod walk;

pub use across::{Converting, Versions};
pub use compare::{Comparison, compare};
pub use conflict::{AcrossError, ApplyError, Conflict, ConvertError};
pub use fields::{FieldSet, PathElement, Scalar};
pub use fit::{Misfit, MisfitKind, Misfits};
pub use managed::{EntriesError, Managed, ManagerId, Operation, Owned, UPDATE_MANAGERS_MAX, keep_times};
pub use manager::FieldManager;
pub use merge::{MergeError, merge};
pub use owned::OwnedFields;
pub use walk::{ElementError, field_set, remove_fields};
