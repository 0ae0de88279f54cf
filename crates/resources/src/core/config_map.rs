//! ConfigMaps: keys, size, immutability.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_config_map_key;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::options::{Options, columns};
use crate::parts::{IDENTITY, Parts};
use crate::path::{Errors, Path};
use crate::strategy::Strategy;
use crate::table::{age, name};
use crate::tree::{entries, flag, len, same, text};

/// The maximum size of the data of a ConfigMap or Secret, in bytes.
pub(super) const DATA_BYTES_MAX: usize = 1024 * 1024;

/// The strategy of configmaps.
pub struct ConfigMaps;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![NAME, Column::text("Data", "Number of entries."), AGE],
    ..Options::of("", "configmaps")
});

impl Strategy for ConfigMaps {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let mut total = 0;
        let data = Path::new("data");
        for (k, v) in entries(&obj["data"]) {
            e.invalid_each(&data.key(k), k, is_config_map_key(k));
            if obj["binaryData"].get(k).is_some() {
                e.invalid(&data.key(k), k, "duplicate of key present in binaryData");
            }
            total += text(v).len();
        }
        let binary = Path::new("binaryData");
        for (k, v) in entries(&obj["binaryData"]) {
            e.invalid_each(&binary.key(k), k, is_config_map_key(k));
            total += decoded_len(text(v));
        }
        if total > DATA_BYTES_MAX {
            e.too_long(&Path::new("[]"), DATA_BYTES_MAX);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        check_immutable(new, old, &["data", "binaryData"], e);
        self.check(new, e);
    }
    fn row_parts(&self) -> Parts {
        Parts::Only(&[("metadata", IDENTITY), ("data", Parts::Names), ("binaryData", Parts::Names)])
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(len(&obj["data"]) + len(&obj["binaryData"])), age(obj, now)]
    }
}

/// Returns the number of bytes of padded base64.
pub(super) fn decoded_len(s: &str) -> usize {
    let padding = s.bytes().rev().take_while(|c| *c == b'=').count();
    (s.len() / 4 * 3).saturating_sub(padding)
}

/// Checks that an immutable object does not change.
pub(super) fn check_immutable(new: &Value, old: &Value, fields: &[&str], e: &mut Errors) {
    if !flag(&old["immutable"]) {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if !flag(&new["immutable"]) {
        e.forbidden(&Path::new("immutable"), why);
    }
    for f in fields {
        if !same(&new[*f], &old[*f]) {
            e.forbidden(&Path::new(f), why);
        }
    }
}
