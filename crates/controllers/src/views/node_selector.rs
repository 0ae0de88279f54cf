//! `v1.NodeSelector`: terms over the labels and the name of nodes. Upstream `component-helpers/scheduling/corev1/nodeaffinity`.
use kelson_meta::{LabelRequirement, LabelSelectorRequirement, LabelSelectorSpec, null_default};
use serde::Deserialize;

use super::node::NodeView;

/// The one field that terms may name.
const NAME_FIELD: &str = "metadata.name";

/// One of its terms must match.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// The terms; without one nothing matches.
    #[serde(deserialize_with = "null_default")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// All requirements must hold; a term without any matches nothing.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Requirements on the node's labels; all must hold.
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
    /// Requirements on fields, of which there is one: `metadata.name`.
    #[serde(deserialize_with = "null_default")]
    pub match_fields: Vec<LabelSelectorRequirement>,
}

/// `None` where a requirement cannot be understood.
fn requirements(list: &[LabelSelectorRequirement]) -> Option<Vec<LabelRequirement>> {
    let spec = LabelSelectorSpec { match_expressions: list.to_vec(), ..LabelSelectorSpec::default() };
    spec.selector().ok().map(|s| s.requirements)
}

impl NodeSelector {
    /// Whether a node matches.
    pub fn matches(&self, node: &NodeView) -> bool {
        self.node_selector_terms.iter().any(|t| t.matches(node))
    }
}

impl NodeSelectorTerm {
    fn matches(&self, node: &NodeView) -> bool {
        if self.match_expressions.is_empty() && self.match_fields.is_empty() {
            return false;
        }
        let (Some(labels), Some(fields)) = (requirements(&self.match_expressions), requirements(&self.match_fields))
        else {
            return false;
        };
        labels.iter().all(|r| r.matches(node.metadata.labels.get(&r.key).map(String::as_str)))
            && fields.iter().all(|r| r.key == NAME_FIELD && r.matches(Some(&node.metadata.name)))
    }

    /// The node this term names, when it names exactly one by field.
    pub fn named_node(&self) -> Option<&str> {
        let by_name = self.match_fields.iter().find(|f| f.key == NAME_FIELD && f.operator == "In")?;
        match by_name.values.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terms_and_requirements() {
        let node: NodeView =
            serde_json::from_value(json!({"metadata": {"name": "a", "labels": {"disk": "ssd", "cores": "8"}}}))
                .unwrap();
        let by =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let rows = [
            (json!([]), false),
            (json!([{}]), false),
            (json!([{"matchExpressions": [by("disk", "In", &["ssd"])]}]), true),
            (
                json!([{"matchExpressions": [by("disk", "In", &["hdd"])]}, {"matchExpressions": [by("cores", "Gt", &["4"])]}]),
                true,
            ),
            (json!([{"matchExpressions": [by("disk", "In", &["ssd"]), by("gpu", "Exists", &[])]}]), false),
            (json!([{"matchExpressions": [by("disk", "Like", &["ssd"])]}]), false),
            (json!([{"matchFields": [by("metadata.name", "In", &["a"])]}]), true),
            (json!([{"matchFields": [by("metadata.name", "NotIn", &["a"])]}]), false),
            (json!([{"matchFields": [by("metadata.uid", "In", &["a"])]}]), false),
        ];
        for (terms, want) in rows {
            let selector: NodeSelector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
            assert_eq!(selector.matches(&node), want, "{terms}");
        }
    }
}
