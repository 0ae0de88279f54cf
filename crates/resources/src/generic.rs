//! Kinds whose rules are few: metadata validation, status and generation handling, and what the row of functions adds.
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::strategy::{Column, Options, Strategy};
use crate::table::{AGE, NAME, NONE, UNSET, age, list_with_more, name, or_none};
use crate::tree::{at_mut, default_to, default_zero, ensure, int0, items, items_mut, object_mut, present, text};

/// A kind by its facts, its defaults and its row.
pub struct Generic {
    options: Options,
    default: fn(&mut Value),
    row: Option<fn(&Value, Timestamp) -> Vec<Value>>,
}

impl Strategy for Generic {
    fn options(&self) -> &Options {
        &self.options
    }
    fn default(&self, _version: &str, obj: &mut Value) {
        if self.options.has_status() && self.options.stored {
            ensure(obj, "status");
        }
        (self.default)(obj);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        match self.row {
            Some(row) => row(obj, now),
            None => vec![name(obj), crate::table::created(obj)],
        }
    }
}

const fn plain(options: Options) -> Generic {
    Generic { options, default: nothing, row: None }
}

impl Generic {
    const fn default(mut self, f: fn(&mut Value)) -> Self {
        self.default = f;
        self
    }
    const fn table(mut self, columns: &'static [Column], row: fn(&Value, Timestamp) -> Vec<Value>) -> Self {
        self.options.columns = columns;
        self.row = Some(row);
        self
    }
}

fn nothing(_: &mut Value) {}

fn webhook_defaults(obj: &mut Value) {
    let mutating = text(&obj["kind"]) == "MutatingWebhookConfiguration";
    for w in items_mut(obj, "webhooks") {
        default_to(w, "failurePolicy", "Fail");
        default_to(w, "timeoutSeconds", 10);
        match_defaults(w);
        if mutating {
            default_to(w, "reinvocationPolicy", "Never");
        }
        rules_defaults(w, "rules");
        if let Some(s) = at_mut(w, &["clientConfig", "service"]) {
            default_to(s, "port", 443);
        }
    }
}

fn match_defaults(m: &mut Value) {
    default_to(m, "matchPolicy", "Equivalent");
    default_to(m, "namespaceSelector", json!({}));
    default_to(m, "objectSelector", json!({}));
}

fn rules_defaults(m: &mut Value, list: &str) {
    for r in items_mut(m, list) {
        default_to(r, "scope", "*");
    }
}

fn policy_defaults(obj: &mut Value) {
    let Some(spec) = ensure(obj, "spec") else { return };
    default_to(spec, "failurePolicy", "Fail");
    if let Some(m) = object_mut(spec, "matchConstraints") {
        match_defaults(m);
        for list in ["resourceRules", "excludeResourceRules"] {
            rules_defaults(m, list);
        }
    }
}

fn binding_defaults(obj: &mut Value) {
    let Some(m) = at_mut(obj, &["spec", "matchResources"]).filter(|m| m.is_object()) else { return };
    match_defaults(m);
    for list in ["resourceRules", "excludeResourceRules"] {
        rules_defaults(m, list);
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

fn api_service_defaults(obj: &mut Value) {
    if let Some(s) = at_mut(obj, &["spec", "service"]) {
        default_to(s, "port", 443);
    }
}

fn request_defaults(devices: Option<&mut Value>) {
    for r in devices.into_iter().flat_map(|d| items_mut(d, "requests")) {
        // The one in v1beta1 is the request itself.
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

fn webhook_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(obj), json!(items(&obj["webhooks"]).len()), age(obj, now)]
}

fn policy_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, kind) = (&obj["spec"], &obj["spec"]["paramKind"]);
    let count = items(&spec["validations"]).len().max(items(&spec["mutations"]).len());
    let kind =
        if present(kind) { format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"])) } else { UNSET.to_owned() };
    vec![name(obj), json!(count), json!(kind), age(obj, now)]
}

fn policy_binding_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let p = &obj["spec"]["paramRef"];
    let shown = match (text(&p["namespace"]), text(&p["name"])) {
        (_, "") if present(&p["selector"]) => crate::table::selector(&p["selector"]),
        (_, "") => UNSET.to_owned(),
        ("", n) => format!("*/{n}"),
        (ns, n) => format!("{ns}/{n}"),
    };
    vec![name(obj), json!(text(&obj["spec"]["policyName"])), json!(shown), age(obj, now)]
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

fn age_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(obj), age(obj, now)]
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

fn storage_version_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let status = &obj["status"];
    let all: Vec<String> = items(&status["storageVersions"])
        .iter()
        .map(|v| format!("{}={}", text(&v["apiServerID"]), text(&v["encodingVersion"])))
        .collect();
    let common = status["commonEncodingVersion"].as_str().unwrap_or(UNSET);
    vec![name(obj), json!(common), json!(list_with_more(&all, UNSET)), age(obj, now)]
}

const fn t(name: &'static str, description: &'static str) -> Column {
    Column::text(name, description)
}
const WEBHOOKS: &[Column] = &[NAME, Column::integer("Webhooks", "Webhooks that are called."), AGE];
const VALIDATIONS: &[Column] = &[
    NAME,
    Column::integer("Validations", "Expressions that must hold."),
    t("ParamKind", "Kind of the parameters."),
    AGE,
];
const MUTATIONS: &[Column] =
    &[NAME, Column::integer("Mutations", "Changes that are made."), t("ParamKind", "Kind of the parameters."), AGE];
const POLICY_BINDINGS: &[Column] =
    &[NAME, t("PolicyName", "Policy that is bound."), t("ParamRef", "Parameters it is bound to."), AGE];
const FLOW_SCHEMAS: &[Column] = &[
    NAME,
    t("PriorityLevel", "Level the requests get."),
    t("MatchingPrecedence", "Order among schemas."),
    t("DistinguisherMethod", "How flows are told apart."),
    AGE,
    t("MissingPL", "Whether the level is missing."),
];
const PRIORITY_LEVELS: &[Column] = &[
    NAME,
    t("Type", "Exempt or limited."),
    t("NominalConcurrencyShares", "Share of the server's seats."),
    t("Queues", "Number of queues."),
    t("HandSize", "Queues a flow may use."),
    t("QueueLengthLimit", "Requests one queue holds."),
    AGE,
];
const API_SERVICES: &[Column] = &[NAME, t("Service", "Service that answers."), t("Available", "Whether it does."), AGE];
const CLAIMS: &[Column] = &[NAME, t("State", "Allocation and reservation."), AGE];
const SLICES: &[Column] = &[
    NAME,
    t("Node", "Node of the devices."),
    t("Driver", "Driver of the devices."),
    t("Pool", "Pool they are in."),
    AGE,
];
const STORAGE_VERSIONS: &[Column] = &[
    NAME,
    t("CommonEncodingVersion", "Version all servers write."),
    t("StorageVersions", "Version each server writes."),
    AGE,
];

const STATUS: &[&str] = &["status"];
const API_EXTENSIONS: &[&str] = &["api-extensions"];
const ADMISSION: &str = "admissionregistration.k8s.io";
const RESOURCE: &str = "resource.k8s.io";

/// All such kinds.
pub static KINDS: &[Generic] = &[
    plain(Options {
        short_names: &["cs"],
        stored: false,
        ..Options::cluster("", "componentstatuses", "ComponentStatus")
    }),
    plain(Options { stored: false, ..Options::namespaced("", "bindings", "Binding") }),
    plain(Options {
        categories: API_EXTENSIONS,
        subresources: STATUS,
        ..Options::cluster("apiregistration.k8s.io", "apiservices", "APIService")
    })
    .default(api_service_defaults)
    .table(API_SERVICES, api_service_row),
    plain(Options {
        short_names: &["crd", "crds"],
        categories: API_EXTENSIONS,
        subresources: STATUS,
        generation: true,
        ..Options::cluster("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition")
    }),
    plain(Options {
        stored: false,
        ..Options::cluster("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview")
    }),
    plain(Options { stored: false, ..Options::cluster("authentication.k8s.io", "tokenreviews", "TokenReview") }),
    plain(Options {
        stored: false,
        ..Options::namespaced("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview")
    }),
    plain(Options {
        stored: false,
        ..Options::cluster("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
    }),
    plain(Options {
        stored: false,
        ..Options::cluster("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
    }),
    plain(Options {
        stored: false,
        ..Options::cluster("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview")
    }),
    plain(Options {
        versions: &["v1", "v1beta1", "v1alpha1"],
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "mutatingadmissionpolicies", "MutatingAdmissionPolicy")
    })
    .default(policy_defaults)
    .table(MUTATIONS, policy_row),
    plain(Options {
        versions: &["v1", "v1beta1", "v1alpha1"],
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding")
    })
    .default(binding_defaults)
    .table(POLICY_BINDINGS, policy_binding_row),
    plain(Options {
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
    })
    .default(webhook_defaults)
    .table(WEBHOOKS, webhook_row),
    plain(Options {
        categories: API_EXTENSIONS,
        subresources: STATUS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy")
    })
    .default(policy_defaults)
    .table(VALIDATIONS, policy_row),
    plain(Options {
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding")
    })
    .default(binding_defaults)
    .table(POLICY_BINDINGS, policy_binding_row),
    plain(Options {
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
    })
    .default(webhook_defaults)
    .table(WEBHOOKS, webhook_row),
    plain(Options {
        versions: &["v1alpha2"],
        storage: ("scheduling.k8s.io", "v1alpha2"),
        subresources: STATUS,
        ..Options::namespaced("scheduling.k8s.io", "podgroups", "PodGroup")
    }),
    plain(Options {
        versions: &["v1alpha2"],
        storage: ("scheduling.k8s.io", "v1alpha2"),
        ..Options::namespaced("scheduling.k8s.io", "workloads", "Workload")
    })
    .table(crate::table::NAME_AGE, age_row),
    plain(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        generation: true,
        ..Options::cluster(RESOURCE, "deviceclasses", "DeviceClass")
    })
    .table(crate::table::NAME_AGE, age_row),
    plain(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        subresources: STATUS,
        ..Options::namespaced(RESOURCE, "resourceclaims", "ResourceClaim")
    })
    .default(claim_defaults)
    .table(CLAIMS, claim_row),
    plain(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        ..Options::namespaced(RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
    })
    .default(claim_template_defaults)
    .table(crate::table::NAME_AGE, age_row),
    plain(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        generation: true,
        ..Options::cluster(RESOURCE, "resourceslices", "ResourceSlice")
    })
    .table(SLICES, slice_row),
    plain(Options {
        versions: &["v1beta2", "v1alpha3"],
        storage: (RESOURCE, "v1beta2"),
        subresources: STATUS,
        generation: true,
        ..Options::cluster(RESOURCE, "devicetaintrules", "DeviceTaintRule")
    }),
    plain(Options {
        versions: &["v1alpha3"],
        storage: (RESOURCE, "v1alpha3"),
        subresources: STATUS,
        allow_unconditional_update: false,
        ..Options::cluster(RESOURCE, "resourcepoolstatusrequests", "ResourcePoolStatusRequest")
    }),
    plain(Options {
        subresources: STATUS,
        generation: true,
        ..Options::cluster("flowcontrol.apiserver.k8s.io", "flowschemas", "FlowSchema")
    })
    .default(flow_schema_defaults)
    .table(FLOW_SCHEMAS, flow_schema_row),
    plain(Options {
        subresources: STATUS,
        generation: true,
        ..Options::cluster("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", "PriorityLevelConfiguration")
    })
    .default(priority_level_defaults)
    .table(PRIORITY_LEVELS, priority_level_row),
    plain(Options {
        versions: &["v1alpha1"],
        storage: ("internal.apiserver.k8s.io", "v1alpha1"),
        subresources: STATUS,
        allow_unconditional_update: false,
        ..Options::cluster("internal.apiserver.k8s.io", "storageversions", "StorageVersion")
    })
    .table(STORAGE_VERSIONS, storage_version_row),
    plain(Options {
        versions: &["v1beta1"],
        storage: ("storagemigration.k8s.io", "v1beta1"),
        subresources: STATUS,
        allow_unconditional_update: false,
        ..Options::cluster("storagemigration.k8s.io", "storageversionmigrations", "StorageVersionMigration")
    }),
];
