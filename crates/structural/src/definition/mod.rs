//! Validation of CustomResourceDefinitions (upstream `pkg/apis/apiextensions/validation`, `.../v1/defaults.go`). The
//! caller validates the metadata except for the name.
mod conversion;
mod costs;
mod defaults;
mod held;
mod keywords;
mod names;
mod options;
mod patterns;
mod ratchet;
mod schema;
mod schema_lists;
mod schema_rules;
mod spec;
mod structural;
mod versions;
mod view;
mod warnings;

use kelson_meta::FieldErrors;
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{default_to, default_zero, flag, items, items_mut, len, present, text};
use serde_json::{Value, json};

use self::options::Options;

pub use warnings::warnings;

/// Sets the defaults of a definition: `singular`, `listKind`, no conversion, the port of a webhook's service, and the
/// stored version.
pub fn default(definition: &mut Value) {
    let kind = text(&definition["spec"]["names"]["kind"]).to_owned();
    if let Some(spec) = definition.get_mut("spec").filter(|s| s.is_object()) {
        if let Some(names) = spec.get_mut("names").filter(|n| n.is_object()) {
            default_zero(names, "singular", kind.to_lowercase());
            if !kind.is_empty() {
                default_zero(names, "listKind", format!("{kind}List"));
            }
        }
        default_to(spec, "conversion", json!({"strategy": "None"}));
        let service = spec.pointer_mut("/conversion/webhook/clientConfig/service").filter(|s| s.is_object());
        if let Some(service) = service {
            default_to(service, "port", 443);
        }
    }
    if len(&definition["status"]["storedVersions"]) == 0 {
        store_version(definition);
    }
}

/// Adds the storage version to the stored versions, unless it is there. Called for every write of a definition.
pub fn store_version(definition: &mut Value) {
    let storage = items(&definition["spec"]["versions"]).iter().find(|v| flag(&v["storage"]));
    let Some(name) = storage.map(|v| v["name"].clone()).filter(present) else { return };
    let Some(object) = definition.as_object_mut() else { return };
    let status = object.entry("status").or_insert_with(|| json!({}));
    default_to(status, "storedVersions", json!([]));
    if items_mut(status, "storedVersions").all(|v| *v != name)
        && let Some(stored) = status.get_mut("storedVersions").and_then(Value::as_array_mut)
    {
        stored.push(name);
    }
}

/// Returns the errors of a new definition.
pub fn validate_create(definition: &Value) -> FieldErrors {
    let mut e = Errors::new();
    let spec = &definition["spec"];
    let wanted = format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"]));
    for key in ["generateName", "name"] {
        let name = text(&definition["metadata"][key]);
        if name != wanted && !name.is_empty() {
            e.invalid(&Path::new("metadata").child(key), name, "must be spec.names.plural+\".\"+spec.group");
        }
    }
    spec::check(spec, &Options::of_create(), &mut e);
    common(definition, None, &mut e);
    e.finish()
}

/// Returns the errors of a changed definition. Errors of the old one that must stay are ignored, as upstream.
pub fn validate_update(new: &Value, old: &Value) -> FieldErrors {
    let mut e = Errors::new();
    let options = ratchet::of_update(new, old);
    let (spec, before) = (&new["spec"], &old["spec"]);
    spec::check(spec, &options, &mut e);
    let p = Path::new("spec");
    let mut same = |path: &Path<'_>, new: &Value, old: &Value| {
        if text(new) != text(old) {
            e.invalid(path, new, "field is immutable");
        }
    };
    let names = p.child("names");
    if options.immutable_names {
        same(&p.child("scope"), &spec["scope"], &before["scope"]);
        same(&names.child("kind"), &spec["names"]["kind"], &before["names"]["kind"]);
    }
    same(&p.child("group"), &spec["group"], &before["group"]);
    same(&names.child("plural"), &spec["names"]["plural"], &before["names"]["plural"]);
    common(new, Some(old), &mut e);
    e.finish()
}

/// Returns the errors of a changed `status`.
pub fn validate_status_update(new: &Value) -> FieldErrors {
    let mut e = Errors::new();
    names::check(&new["status"]["acceptedNames"], &Path::new("status").child("acceptedNames"), &mut e);
    e.finish()
}

fn common(new: &Value, old: Option<&Value>, e: &mut Errors) {
    let status = Path::new("status");
    names::check(&new["status"]["acceptedNames"], &status.child("acceptedNames"), e);
    stored_versions(new, &status.child("storedVersions"), e);
    names::approval(new, old, e);
    let preserves = |d: &Value| flag(&d["spec"]["preserveUnknownFields"]);
    if preserves(new) && !old.is_some_and(preserves) {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        e.invalid(&Path::new("spec").child("preserveUnknownFields"), true, why);
    }
}

fn stored_versions(definition: &Value, path: &Path<'_>, e: &mut Errors) {
    let stored = &definition["status"]["storedVersions"];
    if len(stored) == 0 {
        return e.invalid(path, stored, "must have at least one stored version");
    }
    let versions = items(&definition["spec"]["versions"]);
    for (i, version) in versions.iter().enumerate().filter(|(_, v)| flag(&v["storage"])) {
        let name = text(&version["name"]);
        // A name refers to the first version with it.
        let again = versions[..i].iter().any(|v| text(&v["name"]) == name);
        if again || !items(stored).iter().any(|s| text(s) == name) {
            e.invalid(path, stored, format!("must have the storage version {name}"));
        }
    }
    for (i, name) in items(stored).iter().map(text).enumerate() {
        let later = items(stored)[i + 1..].iter().any(|s| text(s) == name);
        if !later && !versions.iter().any(|v| text(&v["name"]) == name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            e.invalid(&path.index(i), name, why);
        }
    }
}
