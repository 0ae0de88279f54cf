//! Events, under both groups: core/v1 is the stored form, events.k8s.io/v1 has stricter rules (KEP-383).
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{FieldErrors, Gvk, is_dns1123_subdomain, is_qualified_name};
use serde_json::{Value, json};

use crate::column::{Column, NAME};
use crate::metadata::{self, immutable};
use crate::options::{Durability, Options, texts};
use crate::path::{Errors, Path};
use crate::strategy::{Strategy, field_text};
use crate::table::since;
use crate::tree::{default_to, empty, ensure, int0, present, same, text};

const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "Time since the last occurrence."),
    Column::text("Type", "Normal or Warning."),
    Column::text("Reason", "Short machine-readable reason."),
    Column::text("Object", "Object the event is about."),
    Column::text("Subobject", "Part of the object.").wide(),
    Column::text("Source", "Component that reported the event.").wide(),
    Column::text("Message", "What happened."),
    Column::text("First Seen", "Time since the first occurrence.").wide(),
    Column::text("Count", "Number of occurrences.").wide(),
    NAME.wide(),
];
const INSTANCE_BYTES_MAX: usize = 128;
const ACTION_BYTES_MAX: usize = 128;
const REASON_BYTES_MAX: usize = 128;
const NOTE_BYTES_MAX: usize = 1024;

/// The strategy of events in either group.
pub struct Events {
    /// Whether it is that of events.k8s.io.
    pub strict: bool,
}

static LEGACY: LazyLock<Options> = LazyLock::new(|| Options {
    fields: texts![
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    ..base("")
});
static STRICT: LazyLock<Options> = LazyLock::new(|| Options {
    // The same fields by the newer group's names, in the same order: both groups share one store.
    fields: texts![
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "source",
        "type",
    ],
    ..base("events.k8s.io")
});

fn base(group: &'static str) -> Options {
    Options {
        allow_create_on_update: true,
        columns: COLUMNS.into(),
        durability: Durability::Relaxed,
        expires: true,
        // Both groups share one store: the stored form is core/v1.
        storage: Gvk::new("", "v1", "Event"),
        ..Options::of(group, "events")
    }
}

impl Strategy for Events {
    fn options(&self) -> &Options {
        if self.strict { &STRICT } else { &LEGACY }
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        // Fields that the published types always contain.
        if self.strict {
            if let Some(o) = obj.as_object_mut() {
                o.entry("eventTime").or_insert(Value::Null);
            }
            return;
        }
        ensure(obj, "involvedObject");
        ensure(obj, "source");
        default_to(obj, "reportingComponent", "");
        default_to(obj, "reportingInstance", "");
        for f in ["eventTime", "firstTimestamp", "lastTimestamp"] {
            if let Some(o) = obj.as_object_mut() {
                o.entry(f).or_insert(Value::Null);
            }
        }
    }
    fn validate_create(&self, obj: &Value) -> FieldErrors {
        let mut e = Errors::new();
        self.legacy(obj, &mut e);
        if self.strict {
            metadata::check(self.options(), &obj["metadata"], &mut e);
            strict_create(obj, &mut e);
        }
        e.finish()
    }
    fn validate_update(&self, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), "", new, old, &mut e);
        self.legacy(new, &mut e);
        if self.strict {
            if !same(&new["series"], &old["series"]) {
                series(new, &mut e);
            }
            for (f, shown) in [
                ("involvedObject", "involvedObject"),
                ("reason", "reason"),
                ("message", "message"),
                ("source", "source"),
                ("firstTimestamp", "firstTimestamp"),
                ("lastTimestamp", "lastTimestamp"),
                ("count", "count"),
                ("type", "type"),
                ("eventTime", "eventTime"),
                ("action", "action"),
                ("related", "related"),
                ("reportingComponent", "reportingController"),
                ("reportingInstance", "reportingInstance"),
            ] {
                immutable(&new[f], &old[f], &Path::new(shown), &mut e);
            }
        }
        e.finish()
    }
    fn field_value(&self, obj: &Value, field: &str) -> String {
        match field {
            "source" => {
                let component = text(&obj["source"]["component"]);
                (if component.is_empty() { text(&obj["reportingComponent"]) } else { component }).to_owned()
            }
            "reportingController" => field_text(obj, "reportingComponent"),
            _ => match field.strip_prefix("regarding.") {
                Some(rest) => field_text(&obj["involvedObject"], rest),
                None => field_text(obj, field),
            },
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let first = if empty(&obj["firstTimestamp"]) { &obj["eventTime"] } else { &obj["firstTimestamp"] };
        let first = since(first, now);
        let (mut last, mut count) = (
            if empty(&obj["lastTimestamp"]) { first.clone() } else { since(&obj["lastTimestamp"], now) },
            int0(&obj["count"]),
        );
        if present(&obj["series"]) {
            last = since(&obj["series"]["lastObservedTime"], now);
            count = int0(&obj["series"]["count"]);
        } else if count == 0 {
            count = 1;
        }
        let about = &obj["involvedObject"];
        let kind = text(&about["kind"]).to_lowercase();
        let target = match text(&about["name"]) {
            "" => kind,
            n => format!("{kind}/{n}"),
        };
        vec![
            json!(last),
            json!(text(&obj["type"])),
            json!(text(&obj["reason"])),
            json!(target),
            json!(text(&about["fieldPath"])),
            json!(source(obj)),
            json!(text(&obj["message"]).trim()),
            json!(first),
            json!(count),
            obj["metadata"]["name"].clone(),
        ]
    }
}

fn source(obj: &Value) -> String {
    let join = |a: &str, b: &str| if b.is_empty() { a.to_owned() } else { format!("{a}, {b}") };
    let component = text(&obj["source"]["component"]);
    if component.is_empty() {
        join(text(&obj["reportingComponent"]), text(&obj["reportingInstance"]))
    } else {
        join(component, text(&obj["source"]["host"]))
    }
}

impl Events {
    /// Validates the rules of both groups (`legacyValidateEvent`).
    fn legacy(&self, obj: &Value, e: &mut Errors) {
        let namespace = text(&obj["metadata"]["namespace"]);
        let about = text(&obj["involvedObject"]["namespace"]);
        let root = Path::new("involvedObject");
        let mismatch = |e: &mut Errors| {
            e.invalid(&root.child("namespace"), about, "does not match event.namespace");
        };
        if empty(&obj["eventTime"]) {
            let ok = if about.is_empty() { matches!(namespace, "" | "default") } else { namespace == about };
            if !ok {
                mismatch(e);
            }
        } else {
            if about.is_empty() && !matches!(namespace, "default" | "kube-system") {
                mismatch(e);
            }
            self.reporting(obj, e);
        }
        e.invalid_each(&Path::new("namespace"), namespace, is_dns1123_subdomain(namespace));
    }

    fn reporting(&self, obj: &Value, e: &mut Errors) {
        let controller = text(&obj["reportingComponent"]);
        let p = Path::new(if self.strict { "reportingController" } else { "reportingComponent" });
        if controller.is_empty() {
            e.required(&p, "");
        }
        e.invalid_each(&p, controller, is_qualified_name(controller));
        for (f, max, must) in [
            ("reportingInstance", INSTANCE_BYTES_MAX, true),
            ("action", ACTION_BYTES_MAX, true),
            ("reason", REASON_BYTES_MAX, true),
            ("message", NOTE_BYTES_MAX, false),
        ] {
            let v = text(&obj[f]);
            if must && v.is_empty() {
                e.required(&Path::new(f), "");
            }
            if v.len() > max {
                e.invalid(&Path::new(f), "", format!("can have at most {max} characters"));
            }
        }
    }
}

fn strict_create(obj: &Value, e: &mut Errors) {
    series(obj, e);
    if empty(&obj["eventTime"]) {
        e.required(&Path::new("eventTime"), "");
    }
    let kind = text(&obj["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        e.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
    }
    for f in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let v = &obj[f];
        if !empty(v) && !(f == "source" && empty(&v["component"]) && empty(&v["host"])) {
            e.invalid(&Path::new(f), "", "needs to be unset");
        }
    }
}

fn series(obj: &Value, e: &mut Errors) {
    if present(&obj["series"]) {
        if int0(&obj["series"]["count"]) < 2 {
            e.invalid(&Path::new("series.count"), "", "should be at least 2");
        }
        if empty(&obj["series"]["lastObservedTime"]) {
            e.required(&Path::new("series.lastObservedTime"), "");
        }
    }
}
