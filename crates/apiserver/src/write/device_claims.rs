//! Device claims: permissions that a write of a ResourceClaim or its template needs besides its verb. Admin access requires a label on
//! the namespace (KEP-5018). Each part of a claim's status requires a permission (KEP-4817,
//! `DRAResourceClaimGranularStatusAuthorization`; upstream `pkg/registry/resource/utils.go`).
use std::collections::{BTreeMap, BTreeSet};

use kelson_auth::{Attributes, UserInfo, user};
use kelson_meta::tree::{items, same, text};
use kelson_meta::{FieldErrors, FieldPath};
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;
use crate::write::permission;

const GROUP: &str = "resource.k8s.io";
const ADMIN_NAMESPACE: &str = "resource.kubernetes.io/admin-access";
const GRANULAR: &str = "DRAResourceClaimGranularStatusAuthorization";
/// Verb prefixes of `resourceclaims/driver`: for a service account on the node of the devices, and for any other user.
const ASSOCIATED: &str = "associated-node:";
const ARBITRARY: &str = "arbitrary-node:";

/// The errors of a new claim or template.
pub fn check_create(cx: &RequestContext, served: &Served, object: &Value) -> FieldErrors {
    let spec = match (served.gr.group.as_str(), served.gr.resource.as_str()) {
        (GROUP, "resourceclaims") => &object["spec"],
        (GROUP, "resourceclaimtemplates") => &object["spec"]["spec"],
        _ => return FieldErrors::new(),
    };
    let asked =
        items(&spec["devices"]["requests"]).iter().position(|request| request["exactly"]["adminAccess"] == true);
    let path = FieldPath::new("spec").child("devices").child("requests");
    asked.map(|i| admin(cx, &path.index(i))).unwrap_or_default()
}

/// The errors of a changed status.
pub async fn check_status_update(
    cx: &RequestContext,
    served: &Served,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> FieldErrors {
    if (served.gr.group.as_str(), served.gr.resource.as_str(), subresource) != (GROUP, "resourceclaims", "status") {
        return FieldErrors::new();
    }
    let (new, old) = (&new["status"], &old["status"]);
    let mut errors = FieldErrors::new();
    let admin_result = |status: &Value| {
        items(&status["allocation"]["devices"]["results"]).iter().position(|result| result["adminAccess"] == true)
    };
    if let (Some(i), None) = (admin_result(new), admin_result(old)) {
        let path = FieldPath::new("status").child("allocation").child("devices").child("results");
        errors.extend(admin(cx, &path.index(i)));
    }
    let gates = &cx.server.config.feature_gates;
    if gates.enabled(GRANULAR) {
        errors.extend(binding(cx, new, old).await);
        if gates.enabled("DRAResourceClaimDeviceStatus") && new["allocation"].is_object() {
            errors.extend(drivers(cx, new, old).await);
        }
    }
    errors
}

/// Checks that the namespace has the label for admin access.
fn admin(cx: &RequestContext, at: &FieldPath) -> FieldErrors {
    let namespace = cx.server.objects.tree("", "namespaces", "", &cx.info.namespace);
    let label = namespace.as_ref().map_or("", |namespace| text(&namespace["metadata"]["labels"][ADMIN_NAMESPACE]));
    let mut errors = FieldErrors::new();
    if label != "true" {
        let why =
            format!("admin access to devices requires the `{ADMIN_NAMESPACE}: true` label on the containing namespace");
        errors.forbidden(&at.child("adminAccess"), why);
    }
    errors
}

/// Changing `status.allocation` or `status.reservedFor` requires permission for `resourceclaims/binding` of all claims.
async fn binding(cx: &RequestContext, new: &Value, old: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if same(&new["allocation"], &old["allocation"]) && same(&new["reservedFor"], &old["reservedFor"]) {
        return errors;
    }
    let asked = permission::request_attributes(cx);
    let attributes = Attributes { subresource: "binding", namespace: "", name: "", ..asked };
    if let Some(why) = permission::refusal(cx, &attributes).await {
        let verb = asked.verb;
        let why = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
             verb=\"{verb}\" permission: {why}"
        );
        errors.forbidden(&FieldPath::new("status").child("allocation"), why);
    }
    errors
}

/// Changing a driver's entries in `status.devices` requires permission for `resourceclaims/driver` of that name.
async fn drivers(cx: &RequestContext, new: &Value, old: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let changed = changed_drivers(&new["devices"], &old["devices"]);
    if changed.is_empty() {
        return errors;
    }
    let asked = permission::request_attributes(cx);
    let on_its_node = is_on_node(&cx.user, node_of(&new["allocation"]["nodeSelector"]));
    let prefixes: &[&str] = if on_its_node { &[ASSOCIATED, ARBITRARY] } else { &[ARBITRARY] };
    let verbs: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{}", asked.verb)).collect();
    for driver in changed {
        let mut first = None;
        for verb in &verbs {
            let attributes = Attributes { verb, subresource: "driver", name: driver, ..asked };
            let refused = permission::refusal(cx, &attributes).await;
            let allowed = refused.is_none();
            first = if allowed { None } else { first.or(refused) };
            if allowed {
                break;
            }
        }
        if let Some(why) = first {
            let verbs = verbs.join(" ");
            let why = format!(
                "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{verbs}]\" permission: {why}"
            );
            errors.forbidden(&FieldPath::new("status").child("devices"), why);
        }
    }
    errors
}

/// The drivers with an added, changed or removed entry.
fn changed_drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let key = |device: &'a Value| ["driver", "pool", "device", "shareID"].map(|field| text(&device[field]));
    let mut before: BTreeMap<_, &Value> = items(old).iter().map(|device| (key(device), device)).collect();
    let mut drivers = BTreeSet::new();
    for device in items(new) {
        if !before.remove(&key(device)).is_some_and(|old| same(old, device)) {
            drivers.insert(text(&device["driver"]));
        }
    }
    drivers.extend(before.into_keys().map(|[driver, ..]| driver));
    drivers
}

/// The node that a selector matches by name; empty if it may match several.
fn node_of(selector: &Value) -> &str {
    let [term] = items(&selector["nodeSelectorTerms"]) else { return "" };
    let ([field], []) = (items(&term["matchFields"]), items(&term["matchExpressions"])) else { return "" };
    match (text(&field["key"]), text(&field["operator"]), items(&field["values"])) {
        ("metadata.name", "In", [name]) => text(name),
        _ => "",
    }
}

/// Whether a user is a service account whose token belongs to a pod on this node.
fn is_on_node(account: &UserInfo, node: &str) -> bool {
    !node.is_empty()
        && user::split_service_account(&account.name).is_some()
        && account.extra_one(user::NODE_NAME) == Some(node)
        && kelson_meta::is_dns1123_subdomain(node).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn drivers_with_a_changed_entry() {
        let device = |driver: &str, device: &str, data: &str| json!({"driver": driver, "pool": "p", "device": device, "data": data});
        let old = json!([device("a", "1", "x"), device("b", "1", "x"), device("c", "1", "x")]);
        for (new, wanted) in [
            (old.clone(), vec![]),
            (json!([device("c", "1", "x"), device("b", "1", "x"), device("a", "1", "x")]), vec![]),
            (json!([device("a", "1", "y"), device("b", "1", "x"), device("c", "1", "x")]), vec!["a"]),
            (json!([device("a", "2", "x"), device("b", "1", "x"), device("c", "1", "x")]), vec!["a"]),
            (json!([device("a", "1", "x")]), vec!["b", "c"]),
            (Value::Null, vec!["a", "b", "c"]),
        ] {
            assert_eq!(changed_drivers(&new, &old).into_iter().collect::<Vec<_>>(), wanted, "{new}");
        }
    }

    #[test]
    fn only_a_selector_of_a_single_node_names_one() {
        let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        let mut both = term.clone();
        both["matchExpressions"] = json!([{"key": "zone", "operator": "Exists"}]);
        let two = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]});
        let other = json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]});
        for (terms, wanted) in [
            (vec![&term], "n1"),
            (vec![&term, &term], ""),
            (vec![&both], ""),
            (vec![&two], ""),
            (vec![&other], ""),
            (vec![], ""),
        ] {
            assert_eq!(node_of(&json!({"nodeSelectorTerms": terms})), wanted, "{terms:?}");
        }
    }
}
