//! From which nodes a volume can be reached: `v1.NodeSelector` over labels, the name by field.
use kelson_meta::{LabelRequirement, LabelSelectorRequirement, LabelSelectorSpec, null_default};
use serde::{Deserialize, Deserializer};

/// The one field that terms may name.
const NAME_FIELD: &str = "metadata.name";

/// `v1.NodeSelector`, ready to be compared: one of its terms must match, and without one nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTerms(Vec<Term>);

/// All of it must hold; `None` is a term that matches nothing, because it is empty or cannot be understood.
type Term = Option<(Vec<LabelRequirement>, Vec<LabelRequirement>)>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Form {
    #[serde(deserialize_with = "null_default")]
    node_selector_terms: Vec<TermForm>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TermForm {
    #[serde(deserialize_with = "null_default")]
    match_expressions: Vec<LabelSelectorRequirement>,
    #[serde(deserialize_with = "null_default")]
    match_fields: Vec<LabelSelectorRequirement>,
}

fn requirements(list: Vec<LabelSelectorRequirement>) -> Option<Vec<LabelRequirement>> {
    let spec = LabelSelectorSpec { match_expressions: list, ..LabelSelectorSpec::default() };
    spec.selector().ok().map(|s| s.requirements)
}

impl TermForm {
    fn ready(self) -> Term {
        if self.match_expressions.is_empty() && self.match_fields.is_empty() {
            return None;
        }
        let fields = requirements(self.match_fields)?;
        if fields.iter().any(|r| r.key != NAME_FIELD) {
            return None;
        }
        Some((requirements(self.match_expressions)?, fields))
    }
}

impl<'de> Deserialize<'de> for NodeTerms {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Self(Form::deserialize(d)?.node_selector_terms.into_iter().map(TermForm::ready).collect()))
    }
}

impl NodeTerms {
    /// Whether a node of this name matches, whose labels `label` looks up.
    pub fn matches<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().flatten().any(|(labels, fields)| {
            labels.iter().all(|r| r.matches(label(&r.key))) && fields.iter().all(|r| r.matches(Some(name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn terms_and_requirements() {
        let labels: BTreeMap<&str, &str> = [("disk", "ssd"), ("cores", "8")].into();
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
            let parsed: NodeTerms = serde_json::from_value(json!({"nodeSelectorTerms": terms})).expect("terms");
            assert_eq!(parsed.matches("a", |k| labels.get(k).copied()), want, "{terms}");
        }
    }
}
