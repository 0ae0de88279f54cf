//! The conditions of a terminating namespace. Pure. Upstream
//! `pkg/controller/namespace/deletion/status_condition_utils.go`.
use std::collections::BTreeMap;

use crate::views::condition::{self, Condition};

/// The result of one pass over the content.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Group versions whose discovery failed, with the error.
    pub discovery: Vec<(String, String)>,
    /// Errors of deletions of content.
    pub errors: Vec<String>,
    /// The number of remaining objects by `resource.group`.
    pub remaining: BTreeMap<String, usize>,
    /// The number of remaining objects by finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

/// Updates `conditions`. Conditions of earlier errors are reset when the error is resolved.
pub fn apply(conditions: &mut Vec<Condition>, o: &Outcome, now: &str) {
    for (kind, problem, [bad, good, fine]) in rows(o) {
        let new = match problem {
            Some(message) => Condition::new(kind, "True", bad, message, now),
            None => Condition::new(kind, "False", good, fine, now),
        };
        match condition::find(conditions, kind) {
            Some(old) if old.status == new.status && old.reason == new.reason && old.message == new.message => {}
            Some(_) => {
                if let Some(slot) = conditions.iter_mut().find(|c| c.r#type == kind) {
                    *slot = new;
                }
            }
            None => conditions.push(new),
        }
    }
}

/// Each condition: its type, what is wrong where something is, and the reasons when something is and when nothing is, with
/// the message of the latter.
fn rows(o: &Outcome) -> [(&'static str, Option<String>, [&'static str; 3]); 5] {
    let discovery = (!o.discovery.is_empty()).then(|| {
        let each: Vec<String> = o.discovery.iter().map(|(gv, e)| format!("{gv}: {e}")).collect();
        let n = o.discovery.len();
        format!(
            "Discovery failed for some groups, {n} failing: unable to retrieve the complete list of server APIs: {}",
            each.join(", ")
        )
    });
    let content = (!o.errors.is_empty()).then(|| {
        let mut all = o.errors.clone();
        all.sort();
        format!("Failed to delete all resource types, {} remaining: {}", all.len(), all.join(", "))
    });
    let list = |m: &BTreeMap<String, usize>, say: fn(&String, &usize) -> String| {
        (!m.is_empty()).then(|| m.iter().map(|(k, n)| say(k, n)).collect::<Vec<_>>().join(", "))
    };
    let remaining = list(&o.remaining, |k, n| format!("{k} has {n} resource instances"))
        .map(|l| format!("Some resources are remaining: {l}"));
    let finalizers = list(&o.finalizers, |k, n| format!("{k} in {n} resource instances"))
        .map(|l| format!("Some content in the namespace has finalizers remaining: {l}"));
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            discovery,
            ["DiscoveryFailed", "ResourcesDiscovered", "All resources successfully discovered"],
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ["GroupVersionParsingFailed", "ParsedGroupVersions", "All legacy kube types successfully parsed"],
        ),
        (
            "NamespaceDeletionContentFailure",
            content,
            [
                "ContentDeletionFailed",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ],
        ),
        (
            "NamespaceContentRemaining",
            remaining,
            ["SomeResourcesRemain", "ContentRemoved", "All content successfully removed"],
        ),
        (
            "NamespaceFinalizersRemaining",
            finalizers,
            ["SomeFinalizersRemain", "ContentHasNoFinalizers", "All content-preserving finalizers finished"],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad() {
        let mut all = vec![];
        apply(&mut all, &Outcome::default(), "t1");
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|c| c.status == "False"));
        let bad = Outcome {
            discovery: vec![("x/v1".into(), "down".into())],
            errors: vec!["b".into(), "a".into()],
            remaining: BTreeMap::from([("pods.".into(), 2)]),
            finalizers: BTreeMap::from([("example.com/hold".into(), 1)]),
        };
        apply(&mut all, &bad, "t2");
        let message = |k: &str| condition::find(&all, k).unwrap().message.clone();
        assert_eq!(
            message("NamespaceContentRemaining"),
            "Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            message("NamespaceDeletionContentFailure"),
            "Failed to delete all resource types, 2 remaining: a, b"
        );
        assert_eq!(
            message("NamespaceFinalizersRemaining"),
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        );
        let before = all.clone();
        apply(&mut all, &bad, "t3");
        assert_eq!(all, before, "nothing new, nothing written");
    }
}
