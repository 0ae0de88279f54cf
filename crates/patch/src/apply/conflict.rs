//! Why an apply is refused, in upstream's words.
use super::{
    fields::FieldSet,
    managed::{ManagerId, Operation},
};
use std::collections::BTreeMap;

/// One field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// `"kubectl" using apps/v1 at 2026-01-01T00:00:00Z`.
    pub manager: String,
    /// Path of the field, as in `.spec.replicas`.
    pub field: String,
}

/// Why an apply was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409 Conflict, a cause per field (`FieldManagerConflict`, message `conflict with …`).
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// 400 BadRequest, with the text for the client.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the type; upstream answers 500 with this text.
    #[error("{0}")]
    Invalid(String),
    /// 413 RequestEntityTooLarge: the object would take more memory or work than a document may.
    #[error("{0}")]
    TooLarge(String),
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

/// The fields of one manager, each as a conflict.
pub(super) fn in_words((id, fields): (&ManagerId, FieldSet)) -> impl Iterator<Item = Conflict> {
    let manager = describe(id);
    fields.paths().into_iter().map(move |field| Conflict { manager: manager.clone(), field })
}

/// How a conflict names a manager.
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
