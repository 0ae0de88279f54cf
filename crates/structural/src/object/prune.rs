//! Drops unknown fields, and records them if requested (upstream `pkg/apiserver/schema/pruning`).
use kelson_codec::STRICT_ERRORS_MAX;
use kelson_meta::path::Path;
use serde_json::Value;

use crate::schema::{Additional, Flags, Node};

/// The total size of paths above which findings are no longer recorded: a key of a megabyte is part of the path of each
/// field below it.
const NOTED_BYTES_MAX: usize = 256 * 1024;

/// The paths of unknown fields.
#[derive(Debug, Default)]
pub struct Unknown {
    asked: bool,
    paths: Vec<String>,
    bytes: usize,
}

impl Unknown {
    /// Makes an empty list. With `asked`, unknown fields are recorded.
    pub fn new(asked: bool) -> Self {
        Self { asked, ..Self::default() }
    }
    fn note(&mut self, path: &Path<'_>) {
        if self.asked && self.paths.len() < STRICT_ERRORS_MAX && self.bytes < NOTED_BYTES_MAX {
            let path = path.field().to_string();
            self.bytes += path.len();
            self.paths.push(path);
        }
    }
    /// Returns the sorted paths.
    pub fn sorted(mut self) -> Vec<String> {
        self.paths.sort();
        self.paths
    }
}

/// Reports whether a key of an embedded object is one of every object's fields, whatever the schema says.
pub(super) fn is_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

/// Drops fields that the schema does not declare. The fields of every object are kept in embedded objects.
pub fn prune(value: &mut Value, node: &Node, unknown: &mut Unknown) {
    drop_unknown(value, Some(node), &Path::new(""), unknown);
}

fn drop_unknown(value: &mut Value, node: Option<&Node>, path: &Path<'_>, unknown: &mut Unknown) {
    let Some(node) = node else { return drop_all(value, path, unknown) };
    if node.is(Flags::PRESERVE) {
        return keep(value, node, path, unknown);
    }
    match value {
        Value::Object(fields) => fields.retain(|key, value| {
            if node.is(Flags::EMBEDDED) && is_meta(key) {
                return true;
            }
            let below = path.child(key);
            let known = match (node.property(key), node.additional()) {
                (Some(property), _) => Some(&**property),
                (None, Additional::Schema(values)) => Some(&**values),
                (None, Additional::Yes | Additional::No) => None,
                (None, Additional::Unset) => {
                    unknown.note(&below);
                    return false;
                }
            };
            drop_unknown(value, known, &below, unknown);
            true
        }),
        Value::Array(list) => {
            for (i, element) in list.iter_mut().enumerate() {
                drop_unknown(element, node.items().map(|c| &**c), &path.index(i), unknown);
            }
        }
        _ => {}
    }
}

/// Drops all fields of objects in a part without a schema. Lists keep their scalars.
fn drop_all(value: &mut Value, path: &Path<'_>, unknown: &mut Unknown) {
    match value {
        Value::Object(fields) => {
            for key in fields.keys() {
                unknown.note(&path.child(key));
            }
            fields.clear();
        }
        Value::Array(list) => {
            for (i, element) in list.iter_mut().enumerate() {
                drop_all(element, &path.index(i), unknown);
            }
        }
        _ => {}
    }
}

/// Keeps everything, and prunes again below fields that the schema describes.
fn keep(value: &mut Value, node: &Node, path: &Path<'_>, unknown: &mut Unknown) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                if node.is(Flags::EMBEDDED) && is_meta(key) {
                    continue;
                }
                let below = path.child(key);
                match (node.property(key), node.additional()) {
                    (Some(property), _) => drop_unknown(value, Some(property), &below, unknown),
                    (None, Additional::Schema(values)) => drop_unknown(value, Some(values), &below, unknown),
                    (None, Additional::Yes | Additional::No) => drop_unknown(value, None, &below, unknown),
                    (None, Additional::Unset) => {}
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = node.items() else { return };
            for (i, element) in list.iter_mut().enumerate() {
                keep(element, items, &path.index(i), unknown);
            }
        }
        _ => {}
    }
}
