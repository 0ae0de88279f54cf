//! Kinds that are asked and answered, never stored: reviews, bindings, component statuses.
use super::kind::{Generic, asked};

/// Kinds that are answered and never stored.
pub fn kinds() -> Vec<Generic> {
    vec![
        asked("", "componentstatuses"),
        asked("", "bindings"),
        asked("authentication.k8s.io", "selfsubjectreviews"),
        asked("authentication.k8s.io", "tokenreviews"),
        asked("authorization.k8s.io", "localsubjectaccessreviews"),
        asked("authorization.k8s.io", "selfsubjectaccessreviews"),
        asked("authorization.k8s.io", "selfsubjectrulesreviews"),
        asked("authorization.k8s.io", "subjectaccessreviews"),
    ]
}
