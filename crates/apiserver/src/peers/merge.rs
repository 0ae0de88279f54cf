//! Aggregated discovery of several servers as one document. All servers merge the same lists in the same order, so that they return
//! the same document. Upstream: `apiserver/pkg/endpoints/discovery/aggregated/peer_aggregated_handler.go`.
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use kelson_meta::tree::items;
use serde_json::Value;

/// Merges the groups of servers. Where servers differ in a detail, the first one is right.
pub fn groups(lists: &[&[Value]]) -> Vec<Value> {
    merge(
        lists,
        |group| &group["metadata"]["name"],
        |group, other| merge_part(group, other, "versions", version_name, add_version),
    )
}

fn version_name(version: &Value) -> &Value {
    &version["version"]
}

fn add_version(version: &mut Value, other: &Value) {
    merge_part(version, other, "resources", |resource| &resource["resource"], add_resource);
}

/// Adds verbs and subresources. They are sorted if anything was added.
fn add_resource(resource: &mut Value, other: &Value) {
    let text = |verb: &Value| verb.as_str().unwrap_or_default().to_owned();
    let verbs = |resource: &Value| items(&resource["verbs"]).iter().map(text).collect::<BTreeSet<String>>();
    let (own, theirs) = (verbs(resource), verbs(other));
    if !theirs.is_subset(&own) {
        resource["verbs"] = own.union(&theirs).map(String::as_str).collect();
    }
    let subresources = |resource: &Value| -> BTreeMap<String, Value> {
        items(&resource["subresources"]).iter().map(|sub| (text(&sub["subresource"]), sub.clone())).collect()
    };
    let (mut own, theirs) = (subresources(resource), subresources(other));
    let before = own.len();
    for (name, sub) in theirs {
        own.entry(name).or_insert(sub);
    }
    if own.len() > before {
        resource["subresources"] = own.into_values().collect();
    }
}

/// Merges a list within two items.
fn merge_part(
    item: &mut Value,
    other: &Value,
    part: &str,
    name: fn(&Value) -> &Value,
    combine: fn(&mut Value, &Value),
) {
    if item[part] != other[part] {
        item[part] = merge(&[items(&item[part]), items(&other[part])], name, combine).into();
    }
}

/// Merges lists of items with names.
fn merge(lists: &[&[Value]], name: fn(&Value) -> &Value, combine: fn(&mut Value, &Value)) -> Vec<Value> {
    let name = |item: &Value| name(item).as_str().unwrap_or_default().to_owned();
    let names: Vec<Vec<String>> = lists.iter().map(|list| list.iter().map(name).collect()).collect();
    let mut merged = BTreeMap::new();
    for item in lists.iter().copied().flatten() {
        match merged.entry(name(item)) {
            Entry::Occupied(mut found) => combine(found.get_mut(), item),
            Entry::Vacant(place) => {
                place.insert(item.clone());
            }
        }
    }
    order(&names).iter().filter_map(|name| merged.remove(name)).collect()
}

/// The names of all lists, each after those that come before it in any list; otherwise in alphabetical order. If lists contradict each
/// other, all names are in alphabetical order.
fn order(lists: &[Vec<String>]) -> Vec<String> {
    let all: BTreeSet<&String> = lists.iter().flatten().collect();
    if let Some(list) = lists.iter().find(|list| list.len() == all.len()) {
        return list.clone();
    }
    let mut before: BTreeMap<&String, usize> = all.iter().map(|name| (*name, 0)).collect();
    let mut after: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
    for pair in lists.iter().flat_map(|list| list.windows(2)) {
        if after.entry(&pair[0]).or_default().insert(&pair[1]) {
            *before.entry(&pair[1]).or_default() += 1;
        }
    }
    let mut free: BTreeSet<&String> = before.iter().filter(|(_, n)| **n == 0).map(|(name, _)| *name).collect();
    let mut ordered = Vec::new();
    while let Some(next) = free.pop_first() {
        ordered.push(next.clone());
        for name in after.remove(next).unwrap_or_default() {
            let left = before.entry(name).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                free.insert(name);
            }
        }
    }
    if ordered.len() < all.len() { all.into_iter().cloned().collect() } else { ordered }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(name: &str, versions: &[(&str, &[(&str, &[&str])])]) -> Value {
        let resource = |(plural, verbs): &(&str, &[&str])| json!({"resource": plural, "verbs": verbs});
        let version = |(version, resources): &(&str, &[(&str, &[&str])])| json!({"version": version, "resources": resources.iter().map(resource).collect::<Value>()});
        json!({"metadata": {"name": name}, "versions": versions.iter().map(version).collect::<Value>()})
    }

    #[test]
    fn servers_that_agree_have_the_document_of_one() {
        let list = [group("b", &[("v1", &[("x", &["get"])])]), group("a", &[("v1", &[])])];
        assert_eq!(groups(&[&list, &list]), list);
    }

    #[test]
    fn groups_versions_resources_and_verbs_are_added() {
        let old = [group("apps", &[("v1", &[("a", &["list", "get"])])]), group("batch", &[("v1", &[])])];
        let new = [
            group("apps", &[("v2", &[("a", &["get"])]), ("v1", &[("a", &["watch"]), ("b", &["get"])])]),
            group("fresh", &[("v1alpha1", &[])]),
            group("batch", &[("v1", &[])]),
        ];
        let wanted = [
            group("apps", &[("v2", &[("a", &["get"])]), ("v1", &[("a", &["get", "list", "watch"]), ("b", &["get"])])]),
            group("fresh", &[("v1alpha1", &[])]),
            group("batch", &[("v1", &[])]),
        ];
        assert_eq!(groups(&[&old, &new]), wanted);
        let names = |groups: &[Value]| groups.iter().map(|g| g["metadata"]["name"].clone()).collect::<Vec<_>>();
        assert_eq!(names(&groups(&[&new, &old])), names(&wanted));
    }

    #[test]
    fn subresources_are_added() {
        let of = |names: &[&str]| {
            let subs: Value = names.iter().map(|name| json!({"subresource": name})).collect();
            let resource = json!({"resource": "a", "verbs": ["get"], "subresources": subs});
            [json!({"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": [resource]}]})]
        };
        assert_eq!(groups(&[&of(&["status", "scale"]), &of(&["log", "status"])]), of(&["log", "scale", "status"]));
    }

    #[test]
    fn names_keep_their_order_or_are_alphabetical() {
        let list = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (lists, wanted) in [
            (["a c", "b c"], "a b c"),
            (["b a", "b z"], "b a z"),
            (["b a", "a b"], "b a"),
            (["c b a", "d a c"], "a b c d"),
        ] {
            assert_eq!(order(&lists.map(list)), list(wanted), "{lists:?}");
        }
    }
}
