//! The errors of an apply, with upstream's messages.
use super::{
    fields::FieldSet,
    fit::Misfits,
    managed::{EntriesError, ManagerId, Operation},
};
use kelson_codec::Exceeded;
use std::collections::BTreeMap;

/// One field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The manager's description, such as `"kubectl" using apps/v1 at 2026-01-01T00:00:00Z`.
    pub manager: String,
    /// The path of the field, such as `.spec.replicas`.
    pub field: String,
}

/// The reason why an apply was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409 Conflict with one cause per field (`FieldManagerConflict`, message `conflict with …`).
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// 400 BadRequest: the configuration has another version or kind.
    #[error("invalid object type: {}{version}, Kind={kind}", if .version.contains('/') { "" } else { "/" })]
    OtherType {
        /// The configuration's `apiVersion`.
        version: String,
        /// The configuration's kind.
        kind: String,
    },
    /// 400 BadRequest: the configuration contains `managedFields`.
    #[error("metadata.managedFields must be nil")]
    NamesOwners,
    /// The entries of the live object cannot be read. Upstream answers 500 with this message for all remaining variants
    /// but the last two.
    #[error("failed to decode managed fields: {0}")]
    Entries(#[from] EntriesError),
    /// The configuration does not fit the schema of its type.
    #[error("failed to create typed patch object ({object}; {kind}): {misfits}")]
    Unfit {
        /// `namespace/name` of the object.
        object: String,
        /// Group, version and kind, as Go prints them.
        kind: String,
        /// The values that do not match the schema.
        misfits: Misfits,
    },
    /// The fields that this manager no longer applies could not be removed in the version of their apply.
    #[error("failed to prune fields: {0}")]
    Prune(ConvertError),
    /// The object cannot be compared in a version that entries name.
    #[error(transparent)]
    Across(#[from] AcrossError),
    /// 413 RequestEntityTooLarge: the merged object exceeds the limits of a document.
    #[error(transparent)]
    TooLarge(Exceeded),
    /// 413 RequestEntityTooLarge: the merged object exceeds the limit that it shares with the other two.
    #[error("the apply takes more than {0} bytes of memory for the configuration and the object before and after it")]
    TooLargeTogether(usize),
}

/// The reason why an object cannot be converted to another version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// One of the versions is not served.
    #[error("{from} and {to} are not both served")]
    NotServed {
        /// The version that the object is in.
        from: String,
        /// The requested version.
        to: String,
    },
    /// The conversion returned no object.
    #[error("the conversion gave no object")]
    NoObject,
    /// The conversion failed with this message.
    #[error("{0}")]
    Failed(String),
}

/// The reason why two states of an object cannot be compared in another version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcrossError {
    /// The state before the write cannot be converted.
    #[error("failed to convert old object: {0}")]
    Old(ConvertError),
    /// The state after the write cannot be converted.
    #[error("failed to convert new object: {0}")]
    New(ConvertError),
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.field);
    }
    let mut managers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for conflict in conflicts {
        managers.entry(&conflict.manager).or_default().push(&conflict.field);
    }
    let mut lines = Vec::new();
    for (manager, fields) in managers {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(fields.iter().map(|f| format!("- {f}")));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Makes a conflict of each of a manager's fields.
pub(super) fn in_words((id, fields): (&ManagerId, FieldSet)) -> impl Iterator<Item = Conflict> {
    let manager = describe(id);
    fields.paths().into_iter().map(move |field| Conflict { manager: manager.clone(), field })
}

/// Formats a manager for the message of a conflict.
fn describe(id: &ManagerId) -> String {
    let mut out = format!("{:?}", id.manager);
    if !id.subresource.is_empty() {
        out.push_str(&format!(" with subresource {:?}", id.subresource));
    }
    if id.operation == Operation::Update {
        out.push_str(&format!(" using {}", id.api_version));
    }
    out
}
