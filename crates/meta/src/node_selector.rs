//! `v1.NodeSelector` in a form for matching: terms over the labels and the name of nodes. Upstream:
//! `component-helpers/scheduling/corev1/nodeaffinity`.
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::null::null_default;
use crate::selector::{LabelRequirement, LabelSelectorRequirement, Operator};

/// The only field that terms may use.
const NAME_FIELD: &str = "metadata.name";
/// The maximum number of node names taken from `matchFields`. With more names, all nodes are checked.
const FIELD_NAMES_MAX: usize = 1024;

/// A node selector. A node matches if one of the terms matches; without terms, no node matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSelector(pub Vec<NodeSelectorTerm>);

/// A term of a node selector. All of its requirements must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSelectorTerm {
    labels: Vec<LabelRequirement>,
    /// The requirements on `metadata.name`.
    names: Vec<LabelRequirement>,
    /// Whether the term is empty or invalid. Such a term matches no node.
    nothing: bool,
}

/// The default is the empty term, which matches no node.
impl Default for NodeSelectorTerm {
    fn default() -> Self {
        Self::new(&[], &[])
    }
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
    /// Creates a term from `matchExpressions` and `matchFields`.
    pub fn new(expressions: &[LabelSelectorRequirement], fields: &[LabelSelectorRequirement]) -> Self {
        let labels: Option<Vec<_>> = expressions.iter().map(requirement).collect();
        let names: Option<Vec<_>> = fields.iter().map(|r| requirement(r).filter(|r| r.key == NAME_FIELD)).collect();
        let nothing = labels.is_none() || names.is_none() || (expressions.is_empty() && fields.is_empty());
        Self { labels: labels.unwrap_or_default(), names: names.unwrap_or_default(), nothing }
    }

    /// Returns whether a node with this name matches. `label` looks up its labels.
    pub fn matches_with<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing
            && self.labels.iter().all(|r| r.matches(label(&r.key)))
            && self.names.iter().all(|r| r.matches(Some(name)))
    }

    /// Returns whether a node with this name and these labels matches.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(name, |key| labels.get(key).map(String::as_str))
    }

    /// Returns the node names that the term allows by `metadata.name In […]`, if it has such a requirement.
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

impl NodeSelector {
    /// Returns whether a node with this name matches. `label` looks up its labels.
    pub fn matches_with<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().any(|t| t.matches_with(name, &label))
    }

    /// Returns whether a node with this name and these labels matches.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().any(|t| t.matches(name, labels))
    }

    /// Returns the only node names that can match, if every term restricts the name. The list is sorted and has no
    /// duplicates.
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

    /// Returns the node of the first term that names exactly one node, as in pods of daemon sets.
    pub fn named_node(&self) -> Option<&str> {
        self.0.iter().find_map(|term| {
            let by_name = term.names.iter().find(|r| r.operator == Operator::In)?;
            match by_name.values.as_slice() {
                [one] => Some(one.as_str()),
                _ => None,
            }
        })
    }
}

impl<'de> Deserialize<'de> for NodeSelectorTerm {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct TermForm {
            #[serde(deserialize_with = "null_default")]
            match_expressions: Vec<LabelSelectorRequirement>,
            #[serde(deserialize_with = "null_default")]
            match_fields: Vec<LabelSelectorRequirement>,
        }
        let form = TermForm::deserialize(d)?;
        Ok(Self::new(&form.match_expressions, &form.match_fields))
    }
}

impl<'de> Deserialize<'de> for NodeSelector {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct SelectorForm {
            #[serde(deserialize_with = "null_default")]
            node_selector_terms: Vec<NodeSelectorTerm>,
        }
        Ok(Self(SelectorForm::deserialize(d)?.node_selector_terms))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn by(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"key": key, "operator": operator, "values": values})
    }

    fn selector(terms: &Value) -> NodeSelector {
        serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap()
    }

    #[test]
    fn terms_and_requirements() {
        let labels: BTreeMap<String, String> =
            [("disk", "ssd"), ("cores", "8")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (terms, want) in [
            (json!(null), false),
            (json!([]), false),
            (json!([{}]), false),
            (json!([{"matchExpressions": [by("disk", "In", &["ssd"])], "matchFields": null}]), true),
            (
                json!([{"matchExpressions": [by("disk", "In", &["hdd"])]}, {"matchExpressions": [by("cores", "Gt", &["4"])]}]),
                true,
            ),
            (json!([{"matchExpressions": [by("cores", "Lt", &["8"])]}]), false),
            (json!([{"matchExpressions": [by("disk", "In", &["ssd"]), by("gpu", "Exists", &[])]}]), false),
            (json!([{"matchExpressions": [by("disk", "Like", &["ssd"])]}]), false),
            (json!([{"matchFields": [by("metadata.name", "In", &["a"])]}]), true),
            (json!([{"matchFields": [by("metadata.name", "NotIn", &["a"])]}]), false),
            (json!([{"matchFields": [by("metadata.uid", "In", &["a"])]}]), false),
        ] {
            assert_eq!(selector(&terms).matches("a", &labels), want, "{terms}");
        }
    }

    #[test]
    fn names_by_field() {
        let field = |values: &[&str]| json!({"matchFields": [by("metadata.name", "In", values)]});
        let allowed = |terms: Value| selector(&terms).allowed_names().map(|n| n.join(","));
        assert_eq!(allowed(json!([field(&["b", "a"]), field(&["b"])])).as_deref(), Some("a,b"));
        assert_eq!(allowed(json!([field(&["a"]), {"matchExpressions": [by("x", "Exists", &[])]}])), None);
        assert_eq!(allowed(json!([])), None);
        assert_eq!(selector(&json!([field(&["a", "b"]), field(&["c"])])).named_node(), Some("c"));
        assert_eq!(selector(&json!([field(&["a", "b"])])).named_node(), None);
    }
}
