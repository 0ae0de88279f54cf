//! Tolerations, node selectors and pod affinity terms in their matching form.
use std::collections::BTreeMap;

use kelson_meta::{LabelRequirement, LabelSelector, LabelSelectorSpec, Operator};

use super::node::{Taint, TaintEffect};
use super::raw::{RawPodTerm, RawToleration};

/// The scheduling-relevant fields of `v1.Toleration`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// The key; empty together with `exists` matches every key.
    pub key: Box<str>,
    /// Operator `Exists`: matches any value.
    pub exists: bool,
    /// The value for the operator `Equal`.
    pub value: Box<str>,
    /// The effect; `None` matches every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    pub(super) fn decode(raw: RawToleration) -> Option<Self> {
        let exists = match raw.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => false,
            "Exists" => true,
            // Lt and Gt are behind an alpha gate; a toleration with an unknown operator tolerates nothing.
            _ => return None,
        };
        let effect = match raw.effect.as_deref().unwrap_or_default() {
            "" => None,
            e => Some(TaintEffect::parse(e)?),
        };
        let text = |s: Option<String>| s.unwrap_or_default().into_boxed_str();
        Some(Self { key: text(raw.key), exists, value: text(raw.value), effect })
    }

    /// Reports whether this taint is tolerated (`v1.Toleration.ToleratesTaint`).
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|e| e == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && (self.exists || (!self.key.is_empty() || taint.key.is_empty()) && self.value == taint.value)
    }
}

/// `v1.PodAffinityTerm`: which pods count, and the node label they are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodTerm {
    pub selector: LabelSelector,
    /// Namespaces by name, sorted.
    pub namespaces: Vec<Box<str>>,
    /// Selects namespaces by label.
    pub namespace_selector: Option<LabelSelector>,
    /// The node label whose values are the domains.
    pub topology_key: Box<str>,
}

/// Reads an optional selector: an absent or invalid one matches nothing.
pub(super) fn selector_of(spec: Option<&LabelSelectorSpec>) -> LabelSelector {
    spec.and_then(|s| s.selector().ok()).unwrap_or_else(LabelSelector::nothing)
}

/// Adds `key In [value]` (or `NotIn`) for each of the pod's own labels named by `keys`.
pub(super) fn merge_keys(
    selector: &mut LabelSelector,
    keys: &[String],
    own: &BTreeMap<String, String>,
    operator: Operator,
) {
    for key in keys {
        if let Some(value) = own.get(key) {
            let r = LabelRequirement { key: key.clone(), operator, values: vec![value.clone()] };
            // The API server merges these on creation already; they must not be added twice.
            if !selector.requirements.contains(&r) {
                selector.requirements.push(r);
            }
        }
    }
}

impl PodTerm {
    pub(super) fn decode(raw: &RawPodTerm, namespace: &str, own: &BTreeMap<String, String>) -> Self {
        let mut selector = selector_of(raw.label_selector.as_ref());
        merge_keys(&mut selector, &raw.match_label_keys, own, Operator::In);
        merge_keys(&mut selector, &raw.mismatch_label_keys, own, Operator::NotIn);
        let mut namespaces: Vec<Box<str>> = raw.namespaces.iter().map(|n| n.as_str().into()).collect();
        if namespaces.is_empty() && raw.namespace_selector.is_none() {
            namespaces.push(namespace.into());
        }
        namespaces.sort_unstable();
        let namespace_selector = raw.namespace_selector.as_ref().map(|s| selector_of(Some(s)));
        Self { selector, namespaces, namespace_selector, topology_key: raw.topology_key.as_str().into() }
    }

    /// Reports whether a pod with these labels in this namespace matches.
    pub fn matches(
        &self,
        namespace: &str,
        namespace_labels: &BTreeMap<String, String>,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        (self.namespaces.iter().any(|n| **n == *namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| s.matches(namespace_labels)))
            && self.selector.matches(labels)
    }
}
