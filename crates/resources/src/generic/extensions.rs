//! What extends the API: storage versions and their migration.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kind::{Generic, plain};
use crate::column::{AGE, Column, NAME};
use crate::options::Options;
use crate::table::{UNSET, age, list_with_more, name};
use crate::tree::{items, text};

/// Kinds by which a cluster's API is extended.
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
        }),
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

const STORAGE_VERSIONS: &[Column] = &[
    NAME,
    Column::text("CommonEncodingVersion", "Version all servers write."),
    Column::text("StorageVersions", "Version each server writes."),
    AGE,
];
