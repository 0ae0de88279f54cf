//! Scopes, which restrict the objects that a quota counts.
use kelson_meta::tree::{items, text};
use kelson_meta::{LabelSelectorRequirement, LabelSelectorSpec};
use serde_json::Value;

use crate::evaluator::Evaluator;
use crate::{claims, pods};

/// A requirement on one scope. A plain scope is a requirement with the operator `Exists`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The scope, such as `Terminating` or `PriorityClass`.
    pub scope: String,
    /// The operator: `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values for the operator; empty for `Exists`.
    pub values: Vec<String>,
}

impl Requirement {
    /// Reads a list of `ScopedResourceSelectorRequirement`.
    pub fn read_all(list: &Value) -> Vec<Self> {
        let read = |r: &Value| Self {
            scope: text(&r["scopeName"]).to_owned(),
            operator: text(&r["operator"]).to_owned(),
            values: items(&r["values"]).iter().map(|v| text(v).to_owned()).collect(),
        };
        items(list).iter().map(read).collect()
    }

    /// Creates the requirement that a scope exists.
    pub fn exists(scope: &str) -> Self {
        Self { scope: scope.to_owned(), operator: "Exists".to_owned(), values: Vec::new() }
    }

    /// Returns whether one of the names satisfies the requirement. Without names, the requirement is checked for an
    /// absent value.
    fn matches_names<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let requirement = LabelSelectorRequirement {
            key: self.scope.clone(),
            operator: self.operator.clone(),
            values: self.values.clone(),
        };
        let spec = LabelSelectorSpec { match_expressions: vec![requirement], ..LabelSelectorSpec::default() };
        let Ok(selector) = spec.selector() else { return false };
        let mut names = names.into_iter().filter(|n| !n.is_empty()).peekable();
        if names.peek().is_none() {
            return selector.matches_with(|_| None);
        }
        names.any(|name| selector.matches_with(|_| Some(name)))
    }

    /// Returns whether an object matches the scope. Kinds without scopes match none.
    pub fn matches(&self, evaluator: &Evaluator, object: &Value) -> bool {
        match (evaluator, self.scope.as_str()) {
            (Evaluator::Pods(_), "Terminating") => pods::is_terminating(object),
            (Evaluator::Pods(_), "NotTerminating") => !pods::is_terminating(object),
            (Evaluator::Pods(level), "BestEffort") => pods::is_best_effort(object, *level),
            (Evaluator::Pods(level), "NotBestEffort") => !pods::is_best_effort(object, *level),
            (Evaluator::Pods(_), "CrossNamespacePodAffinity") => pods::looks_across_namespaces(object),
            (Evaluator::Pods(_), "PriorityClass") => self.matches_names([text(&object["spec"]["priorityClassName"])]),
            (Evaluator::Claims, "VolumeAttributesClass") => self.matches_names(claims::attribute_classes(object)),
            _ => false,
        }
    }

    /// Formats the requirement for messages: `{PriorityClass In [high]}`.
    pub fn words(&self) -> String {
        format!("{{{} {} [{}]}}", self.scope, self.operator, self.values.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::PodLevel;

    #[test]
    fn which_objects_are_in_a_scope() {
        let with = |spec: Value| json!({"spec": spec});
        let needs = |operator: &str, values: &[&str]| Requirement {
            scope: "PriorityClass".into(),
            operator: operator.into(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        };
        let plain = Requirement::exists;
        let cpu = json!([{"resources": {"requests": {"cpu": "1"}}}]);
        let across = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"podAffinityTerm": {"namespaceSelector": {}}}]}});
        let rows = [
            (plain("Terminating"), with(json!({"activeDeadlineSeconds": 5})), true),
            (plain("Terminating"), with(json!({})), false),
            (plain("NotTerminating"), with(json!({})), true),
            (plain("BestEffort"), with(json!({"containers": [{}]})), true),
            (plain("BestEffort"), with(json!({"containers": cpu})), false),
            (plain("NotBestEffort"), with(json!({"initContainers": cpu})), true),
            (plain("CrossNamespacePodAffinity"), with(json!({"affinity": across})), true),
            (plain("CrossNamespacePodAffinity"), with(json!({})), false),
            (plain("PriorityClass"), with(json!({"priorityClassName": "high"})), true),
            (plain("PriorityClass"), with(json!({})), false),
            (needs("In", &["high"]), with(json!({"priorityClassName": "high"})), true),
            (needs("In", &["high"]), with(json!({"priorityClassName": "low"})), false),
            (needs("NotIn", &["high"]), with(json!({})), true),
            (needs("DoesNotExist", &[]), with(json!({})), true),
            (plain("VolumeAttributesClass"), with(json!({})), false),
        ];
        for (requirement, pod, want) in rows {
            assert_eq!(requirement.matches(&Evaluator::Pods(PodLevel::Counted), &pod), want, "{requirement:?} {pod}");
        }
        let claim = json!({"status": {"currentVolumeAttributesClassName": "gold"}});
        assert!(plain("VolumeAttributesClass").matches(&Evaluator::Claims, &claim));
        assert!(!plain("Terminating").matches(&Evaluator::Services, &claim));
        assert_eq!(needs("In", &["a", "b"]).words(), "{PriorityClass In [a b]}");
    }
}
