//! Server-side apply (KEP-555): who owns which field, and what an applied configuration changes.
//! `fields` has sets of field paths and their FieldsV1 form; `walk` compares, merges and prunes trees by schema;
//! `added` is the short way for creates;
//! `managed` reads and writes `metadata.managedFields`, `owned` is one entry's fields; `manager` ties them together for one write.
mod added;
mod fields;
mod managed;
mod manager;
mod owned;
mod walk;

pub use fields::{FieldSet, PathElement, Scalar};
pub use managed::{Managed, ManagerId, Operation, Owned, keep_times};
pub use manager::{ApplyError, Conflict, FieldManager, UPDATE_MANAGERS_MAX};
pub use owned::OwnedFields;
pub use walk::{Comparison, compare, field_set, merge, remove_fields};
