//! Tolerations, node selectors and pod affinity terms in their matching form.
use std::collections::BTreeMap;

use kelson_meta::{LabelRequirement, LabelSelector, LabelSelectorRequirement, LabelSelectorSpec, Operator};

use super::node::{Taint, TaintEffect};
use super::raw::{RawNodeTerm, RawPodTerm, RawToleration};

/// Longest list of node names taken from `matchFields`; beyond it all nodes are looked at.
const FIELD_NAMES_MAX: usize = 1024;

/// `v1.Toleration`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Empty with `exists` matches every key.
    pub key: Box<str>,
    /// Operator `Exists`: any value.
    pub exists: bool,
    /// The value for `Equal`.
    pub value: Box<str>,
    /// `None` matches every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    pub(super) fn decode(raw: RawToleration) -> Option<Self> {
        let exists = match raw.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => false,
            "Exists" => true,
            // Lt and Gt are behind an alpha gate; a toleration nobody understands tolerates nothing.
            _ => return None,
        };
        let effect = match raw.effect.as_deref().unwrap_or_default() {
            "" => None,
            e => Some(TaintEffect::parse(e)?),
        };
        let text = |s: Option<String>| s.unwrap_or_default().into_boxed_str();
        Some(Self { key: text(raw.key), exists, value: text(raw.value), effect })
    }

    /// Whether this taint is tolerated (`v1.Toleration.ToleratesTaint`).
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|e| e == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && (self.exists || (!self.key.is_empty() || taint.key.is_empty()) && self.value == taint.value)
    }
}

/// One term of a node selector: all of its requirements must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSelectorTerm {
    labels: Vec<LabelRequirement>,
    /// Requirements on `metadata.name`.
    names: Vec<LabelRequirement>,
    /// Cannot be understood, or is empty: matches nothing.
    nothing: bool,
}

fn requirement(r: &LabelSelectorRequirement) -> Option<LabelRequirement> {
    let operator = match r.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        _ => return None,
    };
    Some(LabelRequirement { key: r.key.clone(), operator, values: r.values.clone() })
}

impl NodeSelectorTerm {
    pub(super) fn decode(raw: &RawNodeTerm) -> Self {
        let labels: Option<Vec<_>> = raw.match_expressions.iter().map(requirement).collect();
        let names: Option<Vec<_>> =
            raw.match_fields.iter().map(|r| requirement(r).filter(|r| r.key == "metadata.name")).collect();
        let nothing =
            labels.is_none() || names.is_none() || (raw.match_expressions.is_empty() && raw.match_fields.is_empty());
        Self { labels: labels.unwrap_or_default(), names: names.unwrap_or_default(), nothing }
    }

    /// Whether a node of this name and these labels matches.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        !self.nothing
            && self.labels.iter().all(|r| r.matches(labels.get(&r.key).map(String::as_str)))
            && self.names.iter().all(|r| r.matches(Some(name)))
    }

    /// The names this term allows, when it says so by `metadata.name In […]`.
    fn allowed_names(&self) -> Option<Vec<&str>> {
        let mut allowed: Option<Vec<&str>> = None;
        for r in self.names.iter().filter(|r| r.operator == Operator::In) {
            let these = r.values.iter().map(String::as_str);
            allowed = Some(match allowed {
                None => these.collect(),
                Some(before) => these.filter(|n| before.contains(n)).collect(),
            });
        }
        allowed
    }
}

/// `v1.NodeSelector`: one of its terms must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSelector(pub Vec<NodeSelectorTerm>);

impl NodeSelector {
    /// Whether a node of this name and these labels matches.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().any(|t| t.matches(name, labels))
    }

    /// The only nodes that can match, when every term names its nodes by field. Sorted, without repetition.
    pub fn allowed_names(&self) -> Option<Vec<Box<str>>> {
        if self.0.is_empty() {
            return None;
        }
        let mut all = Vec::new();
        for term in &self.0 {
            all.extend(term.allowed_names()?);
        }
        if all.len() > FIELD_NAMES_MAX {
            return None;
        }
        all.sort_unstable();
        all.dedup();
        Some(all.into_iter().map(Box::from).collect())
    }
}

/// `v1.PodAffinityTerm`: which pods count, and over which node label they are gathered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodTerm {
    pub selector: LabelSelector,
    /// Namespaces by name, sorted.
    pub namespaces: Vec<Box<str>>,
    /// Namespaces by label.
    pub namespace_selector: Option<LabelSelector>,
    /// The node label whose values are the domains.
    pub topology_key: Box<str>,
}

/// A selector from its optional wire form: absent or unreadable matches nothing.
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
            // The API server merges these on creation already; once is enough.
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

    /// Whether a pod with these labels in this namespace is meant.
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
