//! Storage versions and their migration.
use jiff::Timestamp;
use kelson_meta::{is_dns1035_label, is_dns1123_subdomain};
use serde_json::{Value, json};

use super::kind::{Generic, plain};
use crate::column::{AGE, Column, NAME};
use crate::conditions;
use crate::metadata::immutable;
use crate::options::Options;
use crate::path::{Errors, Path};
use crate::table::{UNSET, age, list_with_more, name};
use crate::tree::{items, text};

/// Returns the kinds about storage versions.
pub fn kinds() -> Vec<Generic> {
    vec![
        plain(Options {
            allow_unconditional_update: false,
            ..Options::of("internal.apiserver.k8s.io", "storageversions")
        })
        .table(STORAGE_VERSIONS, storage_version_row),
        plain(Options {
            allow_unconditional_update: false,
            ..Options::of("storagemigration.k8s.io", "storageversionmigrations")
        })
        .table(MIGRATIONS, migration_row)
        .checked(migration)
        .checked_status(migration_status),
    ]
}

fn storage_version_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let status = &obj["status"];
    let all: Vec<String> = items(&status["storageVersions"])
        .iter()
        .map(|v| format!("{}={}", text(&v["apiServerID"]), text(&v["encodingVersion"])))
        .collect();
    let common = status["commonEncodingVersion"].as_str().unwrap_or(UNSET);
    vec![name(obj), json!(common), json!(list_with_more(&all, UNSET)), age(obj, now)]
}

/// Validates a migration (upstream `pkg/apis/storagemigration/validation`).
fn migration(new: &Value, old: Option<&Value>, e: &mut Errors) {
    let spec = Path::new("spec");
    let (at, of) = (spec.child("resource"), &new["spec"]["resource"]);
    let (group, resource) = (text(&of["group"]), text(&of["resource"]));
    if resource.is_empty() {
        e.required(&at.child("resource"), "resource is required to be set");
    } else if let Err(why) = is_dns1035_label(resource) {
        e.invalid(&at.child("resource"), resource, why.join(","));
    }
    if let (false, Err(why)) = (group.is_empty(), is_dns1123_subdomain(group)) {
        e.invalid(&at.child("group"), group, why.join(","));
    }
    if let Some(old) = old {
        immutable(&new["spec"], &old["spec"], &spec, e);
    }
}

fn migration_status(new: &Value, old: Option<&Value>, e: &mut Errors) {
    let status = Path::new("status");
    let (at, conditions) = (status.child("resourceVersion"), status.child("conditions"));
    let position = |object: &Value| text(&object["status"]["resourceVersion"]).to_owned();
    let (now, before) = (position(new), old.map(position).unwrap_or_default());
    if !now.is_empty() && (now.starts_with('0') || !now.bytes().all(|c| c.is_ascii_digit())) {
        e.invalid(&at, &now, format!("resource version is not well formed: {now}"));
    }
    conditions::check(&new["status"]["conditions"], &conditions, e);
    if !before.is_empty() && now != before {
        e.invalid(&at, &now, "field is immutable");
    }
    let has = |object: &Value, kind: &str| {
        items(&object["status"]["conditions"]).iter().any(|c| text(&c["type"]) == kind && text(&c["status"]) == "True")
    };
    let given = &new["status"]["conditions"];
    if has(new, "Succeeded") && has(new, "Failed") {
        e.invalid(&conditions, given, "Both success and failed conditions cannot be true at the same time");
    }
    for (kind, name) in [("Succeeded", "Success"), ("Failed", "Failed")] {
        if old.is_some_and(|old| has(old, kind)) && !has(new, kind) {
            e.invalid(&conditions, given, format!("{name} condition cannot be set to false once it is true"));
        }
    }
}

fn migration_row(obj: &Value, _now: Timestamp) -> Vec<Value> {
    let of = &obj["spec"]["resource"];
    let (group, resource) = (text(&of["group"]), text(&of["resource"]));
    let migrated = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let reported = items(&obj["status"]["conditions"])
        .iter()
        .rev()
        .find(|c| text(&c["status"]) == "True" && ["Running", "Failed", "Succeeded"].contains(&text(&c["type"])));
    vec![name(obj), json!(migrated), json!(reported.map_or("Unknown", |c| text(&c["type"])))]
}

const MIGRATIONS: &[Column] = &[
    NAME,
    Column::text("Resource", "Resource whose objects are migrated to the current storage version."),
    Column::text("Status", "Status of the migration."),
];

const STORAGE_VERSIONS: &[Column] = &[
    NAME,
    Column::text("CommonEncodingVersion", "Version all servers write."),
    Column::text("StorageVersions", "Version each server writes."),
    AGE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_name_a_resource_and_end_once() {
        let faults = |check: &dyn Fn(&mut Errors)| {
            let mut e = Errors::new();
            check(&mut e);
            let found = e.finish();
            if found.is_empty() { String::new() } else { found.to_string() }
        };
        let spec = |group: &str, resource: &str| json!({"spec": {"resource": {"group": group, "resource": resource}}});
        let rows = [
            (spec("", "configmaps"), None, ""),
            (spec("", ""), None, "spec.resource.resource: Required value: resource is required to be set"),
            (spec("", "A"), None, "spec.resource.resource: Invalid value: \"A\": a DNS-1035 label must consist of"),
            (
                spec("a_b", "things"),
                None,
                "spec.resource.group: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain must",
            ),
            (
                spec("", "b"),
                Some(spec("", "a")),
                "spec: Invalid value: {\"resource\":{\"group\":\"\",\"resource\":\"b\"}}: field is immutable",
            ),
        ];
        for (new, old, want) in rows {
            let found = faults(&|e| migration(&new, old.as_ref(), e));
            assert!(found.starts_with(want) && found.is_empty() == want.is_empty(), "{found}");
        }
        let status = |position: &str, kinds: &[(&str, &str)]| {
            let one = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status, "reason": "R", "lastTransitionTime": "t"});
            json!({"status": {"resourceVersion": position, "conditions": kinds.iter().map(one).collect::<Vec<_>>()}})
        };
        let rows = [
            (status("7", &[("Succeeded", "True")]), status("7", &[]), ""),
            (
                status("07", &[]),
                status("", &[]),
                "status.resourceVersion: Invalid value: \"07\": resource version is not well formed: 07",
            ),
            (status("8", &[]), status("7", &[]), "status.resourceVersion: Invalid value: \"8\": field is immutable"),
            (status("7", &[("Succeeded", "True"), ("Failed", "True")]), status("7", &[]), "Both success and failed"),
            (
                status("7", &[("Succeeded", "False")]),
                status("7", &[("Succeeded", "True")]),
                "Success condition cannot be set to false",
            ),
            (status("7", &[]), status("7", &[("Failed", "True")]), "Failed condition cannot be set to false"),
        ];
        for (new, old, want) in rows {
            let found = faults(&|e| migration_status(&new, Some(&old), e));
            assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{found}");
        }
    }

    #[test]
    fn a_migration_is_what_it_said_last() {
        let of = |conditions: Value| {
            let object = json!({"metadata": {"name": "m"}, "spec": {"resource": {"group": "g", "resource": "r"}},
                "status": {"conditions": conditions}});
            migration_row(&object, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(of(json!([])), [json!("m"), json!("r.g"), json!("Unknown")]);
        let both = json!([{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}]);
        assert_eq!(of(both)[2], "Succeeded");
    }
}
