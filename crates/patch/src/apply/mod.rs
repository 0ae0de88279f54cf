//! Server-side apply (KEP-555): the ownership of fields, and the changes of an applied configuration. `fields` has sets
//! of field paths and their FieldsV1 form. `walk` classifies locations and prunes trees by schema. `compare` and
//! `merge` work on two trees. `added` is a shortcut for creates. `conflict` has the errors of an apply, and `changes`
//! the effect of a write on the owners of fields. `managed` reads and writes `metadata.managedFields`, and `owned`
//! holds the fields of one entry. `manager` performs the steps of one write, and `across` does it for entries of other
//! versions. `scale` converts entries for the `scale` subresource.
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
