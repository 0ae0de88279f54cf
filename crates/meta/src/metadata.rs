//! Validation of the metadata of objects of every kind (apimachinery `api/validation/objectmeta.go`).
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::tree::{entries, flag, items, text};
use crate::{is_label_value, is_qualified_name};

/// The maximum size of all annotations of an object, keys and values, in bytes.
pub const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
/// The maximum size of `managedFields[].manager` in bytes.
const MANAGER_BYTES_MAX: usize = 128;
/// The maximum size of `managedFields[].subresource` in bytes.
const SUBRESOURCE_BYTES_MAX: usize = 256;
/// Validates labels, annotations, owners and field managers by the rules that apply to new and changed objects.
pub fn common(meta: &Value, p: &Path<'_>, e: &mut Errors) {
    labels(&meta["labels"], &p.child("labels"), e);
    annotations(&meta["annotations"], &p.child("annotations"), e);
    owners(&meta["ownerReferences"], &p.child("ownerReferences"), e);
    managed_fields(&meta["managedFields"], &p.child("managedFields"), e);
}

/// Validates the keys and values of labels.
pub fn labels(labels: &Value, p: &Path<'_>, e: &mut Errors) {
    for (k, v) in entries(labels) {
        e.invalid_each(p, k, is_qualified_name(k));
        e.invalid_each(p, text(v), is_label_value(text(v)));
    }
}

/// Validates the keys and the total size of annotations.
pub fn annotations(annotations: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut total = 0;
    for (k, v) in entries(annotations) {
        if k.bytes().any(|c| c.is_ascii_uppercase()) {
            e.invalid_each(p, k, is_qualified_name(&k.to_lowercase()));
        } else {
            e.invalid_each(p, k, is_qualified_name(k));
        }
        total += k.len() + text(v).len();
    }
    if total > ANNOTATIONS_BYTES_MAX {
        e.too_long(p, ANNOTATIONS_BYTES_MAX);
    }
}

/// An owner reference that is printed in the order of its fields' declaration.
struct Owner<'a>(&'a Value);

impl Serialize for Owner<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const FIELDS: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
        let given = FIELDS.iter().filter_map(|field| Some((*field, self.0.get(*field)?)));
        serializer.collect_map(given)
    }
}

fn owners(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut controller: Option<String> = None;
    for r in items(list) {
        let (api_version, kind, name) = (text(&r["apiVersion"]), text(&r["kind"]), text(&r["name"]));
        // Upstream parses a version with two slashes as empty.
        let parts: Vec<&str> = api_version.split('/').collect();
        if parts.len() > 2 || parts.last().is_none_or(|version| version.is_empty()) {
            e.invalid(&p.child("apiVersion"), api_version, "version must not be empty");
        }
        for f in ["kind", "name", "uid"] {
            if text(&r[f]).is_empty() {
                e.invalid(&p.child(f), "", "must not be empty");
            }
        }
        if api_version == "v1" && kind == "Event" {
            e.invalid(p, Owner(r), "/v1, Kind=Event is disallowed from being an owner");
        }
        if flag(&r["controller"]) {
            let current = format!("{kind}/{name}");
            match &controller {
                Some(first) => e.invalid(
                    p,
                    items(list).iter().map(Owner).collect::<Vec<_>>(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {current}"
                    ),
                ),
                None => controller = Some(current),
            }
        }
    }
}

fn managed_fields(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, m) in items(list).iter().enumerate() {
        let p = p.index(i);
        let operation = text(&m["operation"]);
        if !matches!(operation, "Apply" | "Update") {
            e.invalid(&p.child("operation"), operation, "must be `Apply` or `Update`");
        }
        let kind = text(&m["fieldsType"]);
        if !kind.is_empty() && kind != "FieldsV1" {
            e.invalid(&p.child("fieldsType"), kind, "must be `FieldsV1`");
        }
        let manager = text(&m["manager"]);
        if manager.len() > MANAGER_BYTES_MAX {
            e.too_long(&p.child("manager"), MANAGER_BYTES_MAX);
        }
        if let Some((at, c)) = manager.char_indices().find(|(_, c)| c.is_control()) {
            let why = format!("invalid character U+{:04X} (at position {at})", c as u32);
            e.invalid(&p.child("manager"), manager, why);
        }
        if text(&m["subresource"]).len() > SUBRESOURCE_BYTES_MAX {
            e.too_long(&p.child("subresource"), SUBRESOURCE_BYTES_MAX);
        }
    }
}
