//! What a set of manifests asks for: which objects, in which order, which of them are pruned. Pure.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::shared::manifest_set::{ManifestFile, ManifestSet, MissingField};

/// The field manager of everything that is applied, and the source of its events.
pub const MANAGER: &str = "kelson-manifests";
/// Says whether an object is deleted when no manifest has it any more: `"true"` or `"false"`.
pub const PRUNE: &str = "manifests.kelson.dev/prune";

/// An object by its names, whatever its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ManifestKey {
    pub group: String,
    pub kind: String,
    /// The namespace in the manifest; empty if it has none.
    pub namespace: String,
    pub name: String,
}

impl ManifestKey {
    /// The names of an object.
    ///
    /// # Errors
    /// A name is missing.
    pub fn of(object: &Value) -> Result<Self, MissingField> {
        let text = |value: &Value, field: &'static str| {
            let text = value.as_str().filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or(MissingField(field))
        };
        let version = text(&object["apiVersion"], "apiVersion")?;
        Ok(Self {
            group: version.split_once('/').map(|(group, _)| group.to_owned()).unwrap_or_default(),
            kind: text(&object["kind"], "kind")?,
            namespace: object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
            name: text(&object["metadata"]["name"], "metadata.name")?,
        })
    }

    /// Returns the kind in the form of manifest sets: `Deployment.apps`, `ConfigMap`.
    pub fn group_kind(&self) -> String {
        if self.group.is_empty() { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }
}

impl std::fmt::Display for ManifestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{slash}{}", self.group_kind(), self.namespace, self.name)
    }
}

/// When an object is applied: others are in namespaces, or are of kinds that definitions make.
fn phase(object: &Value) -> u8 {
    let group = object["apiVersion"].as_str().unwrap_or_default().split('/').next().unwrap_or_default();
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("v1", "Namespace") => 0,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => 1,
        _ => 2,
    }
}

/// The objects of files in the order in which they are applied, each with the name of its file: namespaces, then definitions of kinds,
/// then the others; within these by file, and as they are in it.
pub fn in_order<'s>(files: impl Iterator<Item = &'s ManifestFile>) -> Vec<(&'s str, Arc<Value>)> {
    let objects =
        files.flat_map(|file| file.objects.iter().flatten().map(move |object| (file.name.as_str(), object.clone())));
    let mut all: Vec<(&str, Arc<Value>)> = objects.collect();
    all.sort_by_key(|(_, object)| phase(object));
    all
}

/// Whether an object is deleted when no manifest has it any more.
pub fn is_pruned(object: &Value, by_default: bool) -> bool {
    match object["metadata"]["annotations"][PRUNE].as_str() {
        Some("true") => true,
        Some("false") => false,
        _ => by_default,
    }
}

/// The objects that the manifests have, and which kinds of them are pruned.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DesiredObjects {
    /// Every object that a manifest has.
    pub objects: BTreeSet<ManifestKey>,
    /// Kinds of those that are pruned, as `GROUP_KIND`.
    pub group_kinds: BTreeSet<String>,
    /// Namespaces of those.
    pub namespaces: BTreeSet<String>,
    /// Whether every object is known: where not, nothing may be deleted.
    pub is_whole: bool,
}

/// Returns the objects that a set keeps.
pub fn kept(set: &ManifestSet) -> DesiredObjects {
    let mut kept = DesiredObjects { is_whole: set.complete, ..DesiredObjects::default() };
    for file in &set.files {
        kept.is_whole &= file.objects.is_ok();
        for object in file.objects.iter().flatten() {
            let Ok(key) = ManifestKey::of(object) else {
                kept.is_whole = false;
                continue;
            };
            if is_pruned(object, set.prunes) {
                kept.group_kinds.insert(key.group_kind());
                kept.namespaces.insert(if key.namespace.is_empty() {
                    "default".to_owned()
                } else {
                    key.namespace.clone()
                });
            }
            kept.objects.insert(key);
        }
    }
    kept
}

impl DesiredObjects {
    /// Whether a manifest has the object. One that names no namespace is in `default`, or in none.
    pub fn has(&self, key: &ManifestKey) -> bool {
        let without = || ManifestKey { namespace: String::new(), ..key.clone() };
        self.objects.contains(key) || key.namespace == "default" && self.objects.contains(&without())
    }
}

/// Files whose objects must be applied: those that changed since they were applied, and those of which an object failed.
pub fn pending<'s>(set: &'s ManifestSet, applied: &BTreeMap<String, [u8; 32]>) -> Vec<&'s ManifestFile> {
    let is_pending =
        |file: &&ManifestFile| !file.skipped && file.objects.is_ok() && applied.get(&file.name) != Some(&file.digest);
    set.files.iter().filter(is_pending).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::manifest_set::ManifestError;
    use serde_json::json;

    fn object(version: &str, kind: &str, name: &str) -> Arc<Value> {
        Arc::new(json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}}))
    }

    fn file(name: &str, objects: &[Arc<Value>]) -> ManifestFile {
        ManifestFile { name: name.to_owned(), digest: [1; 32], skipped: false, objects: Ok(objects.to_vec()) }
    }

    fn set(files: Vec<ManifestFile>) -> ManifestSet {
        ManifestSet { files, complete: true, prunes: false }
    }

    #[test]
    fn namespaces_and_definitions_come_first() {
        let files = [
            file("a", &[object("example.com/v1", "Widget", "w"), object("v1", "Namespace", "n1")]),
            file(
                "b",
                &[
                    object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "widgets"),
                    object("example.com/v1", "Namespace", "other"),
                    object("v1", "Namespace", "n2"),
                ],
            ),
        ];
        let names: Vec<String> = in_order(files.iter())
            .iter()
            .map(|(file, object)| format!("{file}:{}", object["metadata"]["name"].as_str().unwrap()))
            .collect();
        assert_eq!(names, ["a:n1", "b:n2", "b:widgets", "a:w", "b:other"]);
    }

    #[test]
    fn names_of_objects() {
        let key = |value: Value| ManifestKey::of(&value).map(|key| key.to_string());
        let named = |version: &str, namespace: Value| {
            key(json!({"apiVersion": version, "kind": "K", "metadata": {"name": "o", "namespace": namespace}}))
        };
        assert_eq!(named("v1", json!("n")).unwrap(), "K n/o");
        assert_eq!(named("apps/v1", Value::Null).unwrap(), "K.apps o");
        assert_eq!(key(json!({"kind": "K"})).unwrap_err().to_string(), "apiVersion: expected a string");
        assert_eq!(key(json!({"apiVersion": "v1", "kind": "K"})).unwrap_err(), MissingField("metadata.name"));
    }

    #[test]
    fn what_is_pruned_and_what_is_kept() {
        let with = |value: &str| json!({"metadata": {"annotations": {PRUNE: value}}});
        assert!(is_pruned(&with("true"), false) && !is_pruned(&with("false"), true));
        assert!(!is_pruned(&json!({}), false) && is_pruned(&json!({}), true) && is_pruned(&with("maybe"), true));
        let mut all = set(vec![file("a", &[object("v1", "ConfigMap", "c")])]);
        assert_eq!(kept(&all).group_kinds.len(), 0);
        all.prunes = true;
        let found = kept(&all);
        assert_eq!(found.group_kinds, BTreeSet::from(["ConfigMap".to_owned()]));
        let mut key = ManifestKey::of(&all.files[0].objects.as_ref().unwrap()[0]).unwrap();
        assert!(found.has(&key));
        key.namespace = "default".into();
        assert!(found.has(&key));
        key.namespace = "other".into();
        assert!(!found.has(&key));
        assert!(found.is_whole);
        all.complete = false;
        assert!(!kept(&all).is_whole, "a directory could not be read");
        all.complete = true;
        all.files.push(ManifestFile {
            objects: Err(ManifestError::Syntax("no YAML".into())),
            skipped: true,
            ..file("b", &[])
        });
        assert!(!kept(&all).is_whole, "a skipped file could not be read");
        assert_eq!(kept(&all).objects.len(), 1);
    }

    #[test]
    fn files_are_applied_when_they_change() {
        let mut all = set(vec![file("a", &[]), file("b", &[]), file("c", &[]), file("d", &[])]);
        all.files[2].skipped = true;
        all.files[3].objects = Err(ManifestError::Syntax("no YAML".into()));
        let names = |applied: &BTreeMap<String, [u8; 32]>| {
            pending(&all, applied).iter().map(|file| file.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&BTreeMap::new()), ["a", "b"]);
        assert_eq!(names(&BTreeMap::from([("a".into(), [1; 32]), ("b".into(), [2; 32])])), ["b"]);
    }
}
