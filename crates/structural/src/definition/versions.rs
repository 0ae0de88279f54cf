//! Validates a version of a kind: its name and warning, subresources, columns, and selectable fields.
use std::collections::HashSet;
use std::sync::LazyLock;

use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{flag, items, present, text};
use regex::Regex;
use serde_json::Value;

use super::held;
use super::names::label;
use super::options::{Options, schema_of};
use super::schema::{self, DefinitionPlace};
use super::view::Spec;
use crate::Structural;
use crate::rules::{Brackets, field_path};
use crate::schema::Type;

/// The limit of selectable fields of a version.
pub(super) const SELECTABLE_FIELDS_MAX: usize = 8;
const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const WARNING_BYTES_MAX: usize = 256;

pub(super) fn check(
    spec: &Spec<'_>,
    version: &Value,
    structural: bool,
    options: &Options,
    path: &Path<'_>,
    e: &mut Errors,
) {
    let name = text(&version["name"]);
    label(name, &path.child("name"), e);
    deprecation(version, &path.child("deprecationWarning"), e);
    let place = DefinitionPlace {
        structural,
        status: present(&version["subresources"]["status"]),
        unchanged: options.unchanged.contains(name),
    };
    schema::check(&spec.schema_of(version)["openAPIV3Schema"], &place, options, &path.child("schema"), e);
    subresources(spec.subresources_of(version), &path.child("subresources"), e);
    columns(spec.columns_of(version), &path.child("additionalPrinterColumns"), e);
    if !items(spec.fields_of(version)).is_empty() {
        if present(&spec.schema_of(version)["openAPIV3Schema"]) {
            selectable(spec, Some(version), options, path, e);
        } else {
            let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
            e.invalid(&path.child("selectableFields"), "", why);
        }
    }
}

/// Validates rules for all versions together.
pub(super) fn check_all(spec: &Spec<'_>, p: &Path<'_>, e: &mut Errors) {
    let path = p.child("versions");
    let names: HashSet<&str> = spec.versions.iter().map(|v| text(&v["name"])).collect();
    if names.len() != spec.versions.len() {
        e.invalid(&path, held::versions(spec), "must contain unique version names");
    }
    if spec.versions.iter().filter(|v| flag(&v["storage"])).count() != 1 {
        e.invalid(&path, held::versions(spec), "must have exactly one version marked as storage version");
    }
    if let Some(first) = spec.versions.first().map(|v| text(&v["name"])).filter(|n| !n.is_empty()) {
        label(first, &p.child("version"), e);
    }
}

static PRINTABLE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{L}\p{M}\p{N}\p{P}\p{S} ]*$").ok());

fn deprecation(version: &Value, path: &Path<'_>, e: &mut Errors) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    if !flag(&version["deprecated"]) {
        return e.invalid(path, warning, "can only be set for deprecated versions");
    }
    if warning.len() > WARNING_BYTES_MAX {
        e.invalid(path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        e.invalid(path, warning, "must not be an empty string");
    }
    let printable = |c: &char| PRINTABLE.as_ref().is_none_or(|p| p.is_match(c.encode_utf8(&mut [0; 4])));
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| !printable(c)) {
        let why = format!("must only contain printable UTF-8 characters; non-printable character found at index {at}");
        e.invalid(path, warning, why);
    }
}

pub(super) fn subresources(tree: &Value, path: &Path<'_>, e: &mut Errors) {
    let scale = &tree["scale"];
    if !present(scale) {
        return;
    }
    let mut below = |key: &str, prefixes: &[&str], why: &str, required: bool| {
        let scale_path = path.child("scale");
        let at = scale_path.child(key);
        let written = text(&scale[key]);
        match () {
            () if written.is_empty() && required => e.required(&at, ""),
            () if written.is_empty() => {}
            () if !simple_path(written, &at, e) => {}
            () if prefixes.iter().any(|p| written.starts_with(p)) => {}
            () => e.invalid(&at, written, why),
        }
    };
    below("specReplicasPath", &[".spec."], "should be a json path under .spec", true);
    below("statusReplicasPath", &[".status."], "should be a json path under .status", true);
    let either = "should be a json path under either .spec or .status";
    below("labelSelectorPath", &[".spec.", ".status."], either, false);
}

/// Validates that a path consists of names with dots before them.
fn simple_path(written: &str, path: &Path<'_>, e: &mut Errors) -> bool {
    let simple = written.starts_with('.');
    if !simple {
        e.invalid(path, written, "must be a simple json path starting with .");
    }
    simple
}

pub(super) fn columns(list: &Value, path: &Path<'_>, e: &mut Errors) {
    for (i, column) in items(list).iter().enumerate() {
        let at = path.index(i);
        if text(&column["name"]).is_empty() {
            e.required(&at.child("name"), "");
        }
        let (ty, format) = (text(&column["type"]), text(&column["format"]));
        let one_of = |words: &[&str]| format!("must be one of {}", words.join(","));
        if ty.is_empty() {
            e.required(&at.child("type"), &one_of(COLUMN_TYPES));
        } else if !COLUMN_TYPES.contains(&ty) {
            e.invalid(&at.child("type"), ty, one_of(COLUMN_TYPES));
        }
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            e.invalid(&at.child("format"), format, one_of(COLUMN_FORMATS));
        }
        // Upstream reports this field with its name in Go.
        let json_path = at.child("JSONPath");
        match text(&column["jsonPath"]) {
            "" => e.required(&json_path, ""),
            written => {
                simple_path(written, &json_path, e);
            }
        }
    }
}

/// Validates the selectable fields of all versions together, or of one.
pub(super) fn selectable(spec: &Spec<'_>, version: Option<&Value>, options: &Options, path: &Path<'_>, e: &mut Errors) {
    let (fields, tree) = match version {
        Some(version) => (spec.fields_of(version), schema_of(version)),
        None => (spec.fields, &spec.schema["openAPIV3Schema"]),
    };
    let schema = match Structural::parse(tree) {
        Ok(schema) => schema,
        Err(why) => {
            let at = path.child("schema");
            return e.invalid(&at.child("openAPIV3Schema"), "", why.to_string());
        }
    };
    let list = path.child("selectableFields");
    let mut unique = HashSet::new();
    for (i, field) in items(fields).iter().enumerate() {
        let element = list.index(i);
        let at = element.child("jsonPath");
        let written = text(&field["jsonPath"]);
        if written.is_empty() {
            e.required(&at, "");
            continue;
        }
        let (found, node) = match field_path(written, schema.declared(), Brackets::Refused) {
            Ok(found) => found,
            Err(why) => {
                e.invalid(&at, written, format!("is an invalid path: {why}"));
                continue;
            }
        };
        let found = found.as_str().to_owned();
        if found.split(['.', '[']).next() == Some("metadata") {
            e.invalid(&at, written, "must not point to fields in metadata");
        }
        if !matches!(node.ty(), Type::String | Type::Boolean | Type::Integer) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            e.invalid(&at, written, why);
        }
        if !unique.insert(found) {
            e.duplicate(&at, written);
        }
    }
    let name = version.map_or("", |v| text(&v["name"]));
    if unique.len() > SELECTABLE_FIELDS_MAX && !options.many_fields.contains(name) {
        e.too_many(&list, unique.len(), SELECTABLE_FIELDS_MAX);
    }
}
