//! `flowcontrol.apiserver.k8s.io`: flow schemas and priority levels.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::flow_rules;
use super::kind::{Generic, plain};
use crate::column::{AGE, Column, NAME};
use crate::options::Options;
use crate::path::{Errors, Path};
use crate::rules;
use crate::table::{NONE, age, name, or_none};
use crate::tree::{at_mut, default_to, default_zero, ensure, int0, items, object_mut, present, text};
const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// Returns flow schemas and priority levels.
pub fn kinds() -> Vec<Generic> {
    vec![
        plain(Options { generation: true, ..Options::of(GROUP, "flowschemas") })
            .default(flow_schema_defaults)
            .checked(flow_rules::flow_schema)
            .checked_status(condition_types)
            .table(FLOW_SCHEMAS, flow_schema_row),
        plain(Options { generation: true, ..Options::of(GROUP, "prioritylevelconfigurations") })
            .default(priority_level_defaults)
            .checked(flow_rules::priority_level)
            .checked_status(condition_types)
            .table(PRIORITY_LEVELS, priority_level_row),
    ]
}

/// Checks that the types of conditions are unique.
fn condition_types(new: &Value, _old: Option<&Value>, e: &mut Errors) {
    let status = Path::new("status");
    let list = status.child("conditions");
    rules::unique(&new["status"]["conditions"], "type", &list, e);
    for (i, condition) in items(&new["status"]["conditions"]).iter().enumerate() {
        rules::required(&condition["type"], &list.index(i).child("type"), e);
    }
}

fn flow_schema_defaults(obj: &mut Value) {
    if let Some(spec) = ensure(obj, "spec") {
        default_zero(spec, "matchingPrecedence", 1000);
    }
}

fn priority_level_defaults(obj: &mut Value) {
    let Some(spec) = ensure(obj, "spec") else { return };
    for (kind, shares) in [("exempt", 0), ("limited", 30)] {
        let Some(x) = object_mut(spec, kind) else { continue };
        default_to(x, "nominalConcurrencyShares", shares);
        default_to(x, "lendablePercent", 0);
        if let Some(q) = at_mut(x, &["limitResponse", "queuing"]) {
            default_zero(q, "handSize", 8);
            default_zero(q, "queues", 64);
            default_zero(q, "queueLengthLimit", 50);
        }
    }
}

fn flow_schema_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &obj["spec"];
    let dangling = items(&obj["status"]["conditions"]).iter().find(|c| text(&c["type"]) == "Dangling");
    vec![
        name(obj),
        json!(text(&spec["priorityLevelConfiguration"]["name"])),
        json!(int0(&spec["matchingPrecedence"])),
        or_none(text(&spec["distinguisherMethod"]["type"])),
        age(obj, now),
        json!(dangling.map_or("?", |c| text(&c["status"]))),
    ]
}

fn priority_level_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let limited = &obj["spec"]["limited"];
    let cell = |v: &Value| if present(v) { v.clone() } else { json!(NONE) };
    let q = &limited["limitResponse"]["queuing"];
    vec![
        name(obj),
        json!(text(&obj["spec"]["type"])),
        cell(&limited["nominalConcurrencyShares"]),
        cell(&q["queues"]),
        cell(&q["handSize"]),
        cell(&q["queueLengthLimit"]),
        age(obj, now),
    ]
}

const FLOW_SCHEMAS: &[Column] = &[
    NAME,
    Column::text("PriorityLevel", "Priority level of the requests."),
    Column::text("MatchingPrecedence", "Order among schemas."),
    Column::text("DistinguisherMethod", "How requests are divided into flows."),
    AGE,
    Column::text("MissingPL", "Whether the level is missing."),
];

const PRIORITY_LEVELS: &[Column] = &[
    NAME,
    Column::text("Type", "Exempt or limited."),
    Column::text("NominalConcurrencyShares", "Share of the server's seats."),
    Column::text("Queues", "Number of queues."),
    Column::text("HandSize", "Queues a flow may use."),
    Column::text("QueueLengthLimit", "Requests one queue holds."),
    AGE,
];
