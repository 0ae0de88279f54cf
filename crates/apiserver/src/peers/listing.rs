//! What a peer serves, from its aggregated discovery.
use std::collections::{HashMap, HashSet};

use kelson_meta::tree::{items, text};
use serde_json::{Value, json};

/// The resources of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerListing {
    /// Plural names by group and version.
    resources: HashMap<String, HashMap<String, HashSet<String>>>,
    /// The items of its discovery document of `/apis`.
    groups: Vec<Value>,
}

impl PeerListing {
    /// Reads the discovery documents of `/api` and `/apis`, without the group versions that are excluded.
    pub fn read(core: &Value, named: &Value, is_excluded: impl Fn(&str, &str) -> bool) -> Self {
        let mut listing = Self::default();
        listing.add_resources(items(&core["items"]), &is_excluded);
        listing.add_resources(items(&named["items"]), &is_excluded);
        let kept = |group: &Value| {
            let of = |version: &&Value| !is_excluded(name_of(group), text(&version["version"]));
            let versions: Vec<&Value> = items(&group["versions"]).iter().filter(of).collect();
            let mut kept = json!({"metadata": group["metadata"]});
            kept["versions"] = versions.iter().map(|version| (*version).clone()).collect();
            (!versions.is_empty()).then_some(kept)
        };
        listing.groups = items(&named["items"]).iter().filter_map(kept).collect();
        listing
    }

    fn add_resources(&mut self, groups: &[Value], is_excluded: impl Fn(&str, &str) -> bool) {
        for group in groups {
            for version in items(&group["versions"]) {
                let (name, of) = (name_of(group), text(&version["version"]));
                if is_excluded(name, of) {
                    continue;
                }
                let plurals =
                    items(&version["resources"]).iter().map(|resource| text(&resource["resource"]).to_owned());
                let versions = self.resources.entry(name.to_owned()).or_default();
                versions.entry(of.to_owned()).or_default().extend(plurals);
            }
        }
    }

    /// Whether the peer serves a resource.
    pub fn serves(&self, group: &str, version: &str, plural: &str) -> bool {
        let versions = self.resources.get(group);
        versions.and_then(|versions| versions.get(version)).is_some_and(|plurals| plurals.contains(plural))
    }

    /// The groups that it lists below `/apis`, as items of aggregated discovery.
    pub fn groups(&self) -> &[Value] {
        &self.groups
    }

    /// Whether a group version below `/apis` is excluded.
    pub fn has_excluded(&self, is_excluded: impl Fn(&str, &str) -> bool) -> bool {
        let version_of = |group: &Value, version: &Value| is_excluded(name_of(group), text(&version["version"]));
        self.groups.iter().any(|group| items(&group["versions"]).iter().any(|version| version_of(group, version)))
    }

    /// The same without the group versions that are excluded.
    pub fn without(&self, is_excluded: impl Fn(&str, &str) -> bool) -> Self {
        let named = json!({"items": self.groups});
        let mut listing = Self::read(&Value::Null, &named, &is_excluded);
        // Only the legacy group is not in the document.
        if let Some(core) = self.resources.get("") {
            listing.resources.insert(String::new(), core.clone());
        }
        listing
    }
}

fn name_of(group: &Value) -> &str {
    text(&group["metadata"]["name"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> PeerListing {
        let core = json!({"items": [{"metadata": {}, "versions": [
            {"version": "v1", "resources": [{"resource": "pods"}]}]}]});
        let named = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v2", "resources": [{"resource": "deployments"}]},
                {"version": "v1", "resources": [{"resource": "deployments"}]}]},
            {"metadata": {"name": "example.com"}, "versions": [
                {"version": "v1", "resources": [{"resource": "widgets"}]}]},
        ]});
        PeerListing::read(&core, &named, |_, _| false)
    }

    #[test]
    fn resources_are_found_by_group_and_version() {
        let listing = listing();
        for (group, version, plural, wanted) in [
            ("", "v1", "pods", true),
            ("apps", "v2", "deployments", true),
            ("apps", "v3", "deployments", false),
            ("apps", "v2", "pods", false),
            ("example.com", "v1", "widgets", true),
        ] {
            assert_eq!(listing.serves(group, version, plural), wanted, "{group}/{version}/{plural}");
        }
        assert_eq!(listing.groups().len(), 2, "the legacy group is not below /apis");
    }

    #[test]
    fn excluded_group_versions_are_neither_served_nor_listed() {
        let is_excluded = |group: &str, version: &str| group == "example.com" || version == "v2";
        assert!(listing().has_excluded(is_excluded));
        let listing = listing().without(is_excluded);
        assert!(!listing.has_excluded(is_excluded));
        assert!(!listing.serves("example.com", "v1", "widgets") && !listing.serves("apps", "v2", "deployments"));
        assert!(listing.serves("apps", "v1", "deployments") && listing.serves("", "v1", "pods"));
        let versions = json!([{"version": "v1", "resources": [{"resource": "deployments"}]}]);
        assert_eq!(listing.groups(), [json!({"metadata": {"name": "apps"}, "versions": versions})]);
    }
}
