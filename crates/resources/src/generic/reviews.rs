//! Kinds that are answered and never stored: reviews, bindings, component statuses.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kind::{Generic, asked};
use crate::column::{Column, NAME};
use crate::table::name;
use crate::tree::{items, text};

const COMPONENT: &[Column] = &[
    NAME,
    Column::text("Status", "Whether it is healthy."),
    Column::text("Message", "Health message of the component."),
    Column::text("Error", "Health error of the component."),
];

fn component_row(obj: &Value, _: Timestamp) -> Vec<Value> {
    let healthy = items(&obj["conditions"]).iter().find(|c| c["type"] == "Healthy");
    let said = |f: &str| healthy.map_or("", |c| text(&c[f]));
    let status = match said("status") {
        "True" => "Healthy",
        _ if healthy.is_some() => "Unhealthy",
        _ => "Unknown",
    };
    vec![name(obj), json!(status), json!(said("message")), json!(said("error"))]
}

/// Returns the kinds that are answered and never stored.
pub fn kinds() -> Vec<Generic> {
    vec![
        asked("", "componentstatuses").table(COMPONENT, component_row),
        asked("", "bindings"),
        asked("authentication.k8s.io", "selfsubjectreviews"),
        asked("authentication.k8s.io", "tokenreviews"),
        asked("authorization.k8s.io", "localsubjectaccessreviews"),
        asked("authorization.k8s.io", "selfsubjectaccessreviews"),
        asked("authorization.k8s.io", "selfsubjectrulesreviews"),
        asked("authorization.k8s.io", "subjectaccessreviews"),
    ]
}
