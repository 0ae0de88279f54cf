//! What extends the API: API services, storage versions and their migration.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kind::{Generic, plain};
use crate::column::{AGE, Column, NAME};
use crate::options::{Observer, Options};
use crate::table::{UNSET, age, list_with_more, name};
use crate::tree::{at_mut, default_to, items, present, text};

/// Kinds by which a cluster's API is extended.
pub fn kinds() -> Vec<Generic> {
    vec![
        plain(Options {
            allow_unconditional_update: false,
            observer: Observer::Aggregation,
            ..Options::of("apiregistration.k8s.io", "apiservices")
        })
        .default(api_service_defaults)
        .table(API_SERVICES, api_service_row),
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

fn api_service_defaults(obj: &mut Value) {
    if let Some(s) = at_mut(obj, &["spec", "service"]) {
        default_to(s, "port", 443);
    }
}

fn api_service_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let s = &obj["spec"]["service"];
    let service =
        if present(s) { format!("{}/{}", text(&s["namespace"]), text(&s["name"])) } else { "Local".to_owned() };
    let available = items(&obj["status"]["conditions"]).iter().find(|c| text(&c["type"]) == "Available");
    let shown = match available {
        Some(c) if text(&c["status"]) == "True" => "True".to_owned(),
        Some(c) => format!("{} ({})", text(&c["status"]), text(&c["reason"])),
        None => "Unknown".to_owned(),
    };
    vec![name(obj), json!(service), json!(shown), age(obj, now)]
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

const API_SERVICES: &[Column] =
    &[NAME, Column::text("Service", "Service that answers."), Column::text("Available", "Whether it does."), AGE];

const STORAGE_VERSIONS: &[Column] = &[
    NAME,
    Column::text("CommonEncodingVersion", "Version all servers write."),
    Column::text("StorageVersions", "Version each server writes."),
    AGE,
];
