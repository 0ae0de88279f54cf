//! Selectors in the form of upstream's messages.
use kelson_meta::{LabelSelectorRequirement, LabelSelectorSpec};

/// Returns a selector as Go prints it, which upstream's messages contain.
pub fn go_form(selector: &LabelSelectorSpec) -> String {
    let labels: String = selector.match_labels.iter().map(|(k, v)| format!("{k}: {v},")).collect();
    let requirement = |r: &LabelSelectorRequirement| {
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},", r.key, r.operator, r.values.join(" "))
    };
    let expressions: String = selector.match_expressions.iter().map(requirement).collect();
    let expressions = format!("[]LabelSelectorRequirement{{{expressions}}}");
    format!("&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:{expressions},}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_expressions() {
        let values = vec!["x".to_owned(), "y".to_owned()];
        let requirement = LabelSelectorRequirement { key: "b".into(), operator: "In".into(), values };
        let mut selector = LabelSelectorSpec { match_expressions: vec![requirement], ..LabelSelectorSpec::default() };
        selector.match_labels.insert("app".into(), "web".into());
        let expected = "&LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:\
            []LabelSelectorRequirement{LabelSelectorRequirement{Key:b,Operator:In,Values:[x y],},},}";
        assert_eq!(go_form(&selector), expected);
    }
}
