//! `resource.k8s.io`: dynamic resource allocation.
use jiff::Timestamp;
use kelson_meta::format_seconds;
use serde_json::{Value, json};

use super::device_claims::{claim, device_class, template};
use super::device_slices::{slice, taint_rule};
use super::device_status::{claim_status, drop_deallocated};
use super::kind::{Generic, plain};

use crate::column::{AGE, Column, NAME};
use crate::options::{Options, texts};
use crate::strategy::Context;
use crate::table::{age, name};
use crate::tree::{at_mut, default_to, default_zero, items, items_mut, object_mut, present, remove, set, text};
const GROUP: &str = "resource.k8s.io";

/// Returns claims, classes, slices and taint rules.
pub fn kinds() -> Vec<Generic> {
    vec![
        plain(Options { generation: true, ..device("deviceclasses") }).checked(device_class).name_and_age(),
        plain(device("resourceclaims"))
            .default(claim_defaults)
            .checked(claim)
            .prepared_status(drop_deallocated)
            .checked_status(claim_status)
            .table(CLAIMS, claim_row),
        plain(device("resourceclaimtemplates")).default(claim_template_defaults).checked(template).name_and_age(),
        plain(Options { generation: true, fields: texts!["spec.driver", "spec.nodeName"], ..device("resourceslices") })
            .checked(slice)
            .prepared(date_slice)
            .table(SLICES, slice_row),
        plain(Options { generation: true, ..device("devicetaintrules") }).prepared(date_rule).checked(taint_rule),
        plain(Options { allow_unconditional_update: false, ..device("resourcepoolstatusrequests") })
            .prepared(without_status),
    ]
}

/// Returns the options of a kind whose deletes return the object.
fn device(plural: &'static str) -> Options {
    Options { delete_returns_object: true, ..Options::of(GROUP, plural) }
}

fn request_defaults(devices: Option<&mut Value>) {
    for r in devices.into_iter().flat_map(|d| items_mut(d, "requests")) {
        // In v1beta1 the request itself has these fields.
        if present(&r["deviceClassName"]) {
            exact_defaults(r);
        }
        if let Some(e) = object_mut(r, "exactly") {
            exact_defaults(e);
        }
        for s in items_mut(r, "firstAvailable") {
            exact_defaults(s);
        }
    }
}

fn exact_defaults(r: &mut Value) {
    default_zero(r, "allocationMode", "ExactCount");
    for toleration in items_mut(r, "tolerations") {
        default_zero(toleration, "operator", "Equal");
    }
    if text(&r["allocationMode"]) == "ExactCount" {
        default_zero(r, "count", 1);
    }
}

fn claim_defaults(obj: &mut Value) {
    request_defaults(at_mut(obj, &["spec", "devices"]));
}

fn claim_template_defaults(obj: &mut Value) {
    request_defaults(at_mut(obj, &["spec", "spec", "devices"]));
}

/// Sets the time of a taint without one.
fn date(taint: &mut Value, now: Timestamp) {
    default_to(taint, "timeAdded", format_seconds(now));
}

fn date_slice(cx: &Context<'_>, obj: &mut Value, _old: Option<&Value>) {
    let devices = obj.get_mut("spec").into_iter().flat_map(|spec| items_mut(spec, "devices"));
    devices.flat_map(|device| items_mut(device, "taints")).for_each(|taint| date(taint, cx.now));
}

fn date_rule(cx: &Context<'_>, obj: &mut Value, old: Option<&Value>) {
    let Some(taint) = at_mut(obj, &["spec", "taint"]).filter(|taint| taint.is_object()) else { return };
    date(taint, cx.now);
    // With another effect it is another taint.
    let before = old.map(|old| &old["spec"]["taint"]);
    if before.is_some_and(|old| old["effect"] != taint["effect"] && old["timeAdded"] == taint["timeAdded"]) {
        set(taint, "timeAdded", format_seconds(cx.now));
    }
}

fn without_status(_cx: &Context<'_>, obj: &mut Value, old: Option<&Value>) {
    if old.is_none() {
        remove(obj, "status");
    }
}

fn claim_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let deleted = present(&obj["metadata"]["deletionTimestamp"]);
    let status = &obj["status"];
    let mut states = Vec::new();
    if deleted {
        states.push("deleted");
    }
    if present(&status["allocation"]) {
        states.push("allocated");
        if !items(&status["reservedFor"]).is_empty() {
            states.push("reserved");
        }
    } else if !deleted {
        states.push("pending");
    }
    vec![name(obj), json!(states.join(",")), age(obj, now)]
}

fn slice_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &obj["spec"];
    let cell = |v: &Value| json!(text(v));
    vec![name(obj), cell(&spec["nodeName"]), cell(&spec["driver"]), cell(&spec["pool"]["name"]), age(obj, now)]
}

const CLAIMS: &[Column] = &[NAME, Column::text("State", "Allocation and reservation."), AGE];

const SLICES: &[Column] = &[
    NAME,
    Column::text("Node", "Node of the devices."),
    Column::text("Driver", "Driver of the devices."),
    Column::text("Pool", "Pool they are in."),
    AGE,
];
