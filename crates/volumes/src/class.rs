//! The fields of `storage.k8s.io/v1` StorageClass that binding uses, and the choice of the default class.
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{LabelRequirement, ObjectMeta, Operator, null_default};
use serde::{Deserialize, Deserializer};

use crate::names;

/// Both spellings of the annotation of the default class.
const DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// A StorageClass of `storage.k8s.io/v1`: the provisioner of volumes and their common properties.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClassView {
    /// The metadata of the class.
    pub metadata: ObjectMeta,
    /// The provisioner of the volumes.
    pub provisioner: String,
    /// The reclaim policy of the class's volumes. `None` means `Delete`.
    pub reclaim_policy: Option<String>,
    /// The binding mode: `Immediate`, which is the default, or `WaitForFirstConsumer`.
    pub volume_binding_mode: Option<String>,
    /// The mount options of the volumes.
    #[serde(deserialize_with = "null_default")]
    pub mount_options: Vec<String>,
    /// Whether claims of the class may be expanded.
    pub allow_volume_expansion: Option<bool>,
    /// The topologies in which volumes can be provisioned; empty means all.
    #[serde(deserialize_with = "topologies")]
    pub allowed_topologies: Vec<Vec<LabelRequirement>>,
}
slim_object!(StorageClassView, ResourceType::cluster("storage.k8s.io", "v1", "storageclasses", "StorageClass"));

fn topologies<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Vec<LabelRequirement>>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Term {
        #[serde(deserialize_with = "null_default")]
        match_label_expressions: Vec<Requirement>,
    }
    #[derive(Deserialize)]
    struct Requirement {
        key: String,
        values: Vec<String>,
    }
    let terms = Option::<Vec<Term>>::deserialize(d)?.unwrap_or_default();
    let one = |r: Requirement| LabelRequirement { key: r.key, operator: Operator::In, values: r.values };
    Ok(terms.into_iter().map(|t| t.match_label_expressions.into_iter().map(one).collect()).collect())
}

impl StorageClassView {
    /// Returns whether claims of the class wait until the scheduler has chosen a node for their first consumer.
    pub fn waits_for_consumer(&self) -> bool {
        self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
    }

    /// Returns whether the class has a provisioner.
    pub fn is_provisioned(&self) -> bool {
        !self.provisioner.is_empty() && self.provisioner != names::NO_PROVISIONER
    }

    /// Returns whether volumes can be provisioned for a node. `label` returns the node's labels.
    pub fn allows<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.allowed_topologies.is_empty()
            || self.allowed_topologies.iter().any(|t| !t.is_empty() && t.iter().all(|r| r.matches(label(&r.key))))
    }

    fn is_default(&self) -> bool {
        DEFAULT.iter().any(|a| self.metadata.annotations.get(*a).is_some_and(|v| v == "true"))
    }
}

/// Returns the default class: the newest one with the annotation, and of equally old ones the first by name.
pub fn default_class<'a>(classes: impl IntoIterator<Item = &'a StorageClassView>) -> Option<&'a StorageClassView> {
    classes.into_iter().filter(|c| c.is_default()).min_by(|a, b| {
        let (a, b) = (&a.metadata, &b.metadata);
        b.creation_timestamp.cmp(&a.creation_timestamp).then_with(|| a.name.cmp(&b.name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, created: &str, default: &str) -> StorageClassView {
        serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": created,
            "annotations": {"storageclass.kubernetes.io/is-default-class": default}}, "provisioner": "p"}))
        .expect("class")
    }

    #[test]
    fn the_youngest_default_is_taken() {
        let (old, young) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let rows: [(&[(&str, &str, &str)], Option<&str>); 4] = [
            (&[("a", old, "false")], None),
            (&[("a", old, "true"), ("b", young, "false")], Some("a")),
            (&[("a", old, "true"), ("b", young, "true")], Some("b")),
            (&[("c", young, "true"), ("b", young, "true")], Some("b")),
        ];
        for (classes, want) in rows {
            let all: Vec<_> = classes.iter().map(|(n, t, d)| class(n, t, d)).collect();
            assert_eq!(default_class(&all).map(|c| c.metadata.name.as_str()), want, "{classes:?}");
        }
    }

    #[test]
    fn topologies_of_a_class() {
        let mut c = class("a", "", "");
        assert!(c.allows(|_| None), "without any, all nodes do");
        c = serde_json::from_value(json!({"provisioner": "p", "allowedTopologies": [{"matchLabelExpressions":
            [{"key": "zone", "values": ["x", "y"]}]}]}))
        .expect("class");
        for (zone, want) in [(Some("x"), true), (Some("z"), false), (None, false)] {
            assert_eq!(c.allows(|k| zone.filter(|_| k == "zone")), want, "{zone:?}");
        }
    }
}
