//! PodDisruptionBudgets (policy), PriorityClasses (scheduling.k8s.io) and RuntimeClasses (node.k8s.io).
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_label;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::conditions;
use crate::metadata::immutable;
use crate::names::NameRule;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Context, Strategy};
use crate::table::{age, name};
use crate::tree::{default_to, ensure, flag, int0, items, present, restore, same, text};

/// The strategy of poddisruptionbudgets.
pub struct PodDisruptionBudgets;

const COUNTS: &[&str] = &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];

static BUDGETS: LazyLock<Options> = LazyLock::new(|| Options {
    // Upstream validates the metadata of budgets only as that of any object.
    name: NameRule::Any,
    generation: true,
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::text("Min Available", "Number or percentage of pods that must stay available."),
        Column::text("Max Unavailable", "Number or percentage of pods that may be unavailable."),
        Column::integer("Allowed Disruptions", "Number of pods that may be disrupted now."),
        AGE,
    ],
    ..Options::of("policy", "poddisruptionbudgets")
});

/// The spec in upstream's error format: the fields of Go's struct, without JSON names.
#[derive(serde::Serialize)]
#[serde(rename_all = "PascalCase")]
struct BothSet<'a> {
    min_available: &'a Value,
    selector: &'a Value,
    max_unavailable: &'a Value,
    unhealthy_pod_eviction_policy: &'a Value,
}

impl Strategy for PodDisruptionBudgets {
    fn options(&self) -> &Options {
        &BUDGETS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "spec");
        if let Some(s) = ensure(obj, "status") {
            for c in COUNTS {
                default_to(s, c, 0);
            }
        }
    }
    fn initial_status(&self) -> Value {
        COUNTS.iter().map(|c| ((*c).to_owned(), json!(0))).collect::<serde_json::Map<_, _>>().into()
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        if present(&spec["minAvailable"]) && present(&spec["maxUnavailable"]) {
            let shown = BothSet {
                min_available: &spec["minAvailable"],
                selector: &spec["selector"],
                max_unavailable: &spec["maxUnavailable"],
                unhealthy_pod_eviction_policy: &spec["unhealthyPodEvictionPolicy"],
            };
            e.invalid(&p, shown, "minAvailable and maxUnavailable cannot be both set");
        }
        for f in ["minAvailable", "maxUnavailable"] {
            rules::count_or_percent(&spec[f], &p.child(f), e);
            rules::not_over_100_percent(&spec[f], &p.child(f), e);
        }
        rules::label_selector(&spec["selector"], &p.child("selector"), e);
        rules::optional_one_of(
            &spec["unhealthyPodEvictionPolicy"],
            &p.child("unhealthyPodEvictionPolicy"),
            &["AlwaysAllow", "IfHealthyBudget"],
            e,
        );
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let p = Path::new("status");
        conditions::check(&new["status"]["conditions"], &p.child("conditions"), e);
        for c in COUNTS {
            rules::not_negative(&new["status"][*c], &p.child(c), e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let shown = |f: &str| match &obj["spec"][f] {
            Value::String(s) => json!(s),
            Value::Number(n) => json!(n.to_string()),
            _ => json!("N/A"),
        };
        vec![
            name(obj),
            shown("minAvailable"),
            shown("maxUnavailable"),
            json!(int0(&obj["status"]["disruptionsAllowed"])),
            age(obj, now),
        ]
    }
}

/// The strategy of priorityclasses.
pub struct PriorityClasses;

/// The maximum value for user-defined classes.
const USER_PRIORITY_MAX: i64 = 1_000_000_000;
const SYSTEM_CLASSES: &[(&str, i64)] =
    &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

static PRIORITIES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::integer("Value", "Priority of the pods."),
        Column::boolean("Global-Default", "Whether pods without a class get it."),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods of lower priority are evicted."),
    ],
    ..Options::of("scheduling.k8s.io", "priorityclasses")
});

impl Strategy for PriorityClasses {
    fn options(&self) -> &Options {
        &PRIORITIES
    }
    /// Changes of a class do not increase its generation.
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        if let Some(meta) = new.get_mut("metadata") {
            restore(meta, &old["metadata"], "generation");
        }
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        default_to(obj, "value", 0);
        default_to(obj, "preemptionPolicy", "PreemptLowerPriority");
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (n, value) = (text(&obj["metadata"]["name"]), int0(&obj["value"]));
        if n.starts_with("system-") {
            let known = SYSTEM_CLASSES.iter().any(|(k, v)| *k == n && *v == value && !flag(&obj["globalDefault"]));
            if !known {
                let meta = Path::new("metadata");
                e.forbidden(
                    &meta.child("name"),
                    "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class".replace("{name}", n),
                );
            }
        } else if value > USER_PRIORITY_MAX {
            let why = format!("maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}");
            e.forbidden(&Path::new("value"), why);
        }
        if present(&obj["preemptionPolicy"]) {
            let policies = &["PreemptLowerPriority", "Never"];
            rules::one_of(&obj["preemptionPolicy"], &Path::new("preemptionPolicy"), policies, e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        if int0(&new["value"]) != int0(&old["value"]) {
            e.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        immutable(&new["preemptionPolicy"], &old["preemptionPolicy"], &Path::new("preemptionPolicy"), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(obj),
            json!(int0(&obj["value"])),
            json!(flag(&obj["globalDefault"])),
            age(obj, now),
            json!(text(&obj["preemptionPolicy"])),
        ]
    }
}

/// The strategy of runtimeclasses.
pub struct RuntimeClasses;

static RUNTIMES: LazyLock<Options> = LazyLock::new(|| Options {
    allow_create_on_update: true,
    allow_unconditional_update: false,
    columns: columns![NAME, Column::text("Handler", "Handler of the container runtime."), AGE],
    ..Options::of("node.k8s.io", "runtimeclasses")
});

impl Strategy for RuntimeClasses {
    fn options(&self) -> &Options {
        &RUNTIMES
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (handler, at) = (text(&obj["handler"]), Path::new("handler"));
        if rules::required(&obj["handler"], &at, e) {
            e.invalid_each(&at, handler, is_dns1123_label(handler));
        }
        let p = Path::new("scheduling");
        crate::metadata::labels(&obj["scheduling"]["nodeSelector"], &p.child("nodeSelector"), e);
        let list = p.child("tolerations");
        let tolerations = items(&obj["scheduling"]["tolerations"]);
        pod::tolerations(&obj["scheduling"]["tolerations"], &list, e);
        let key = |t: &Value| ["key", "operator", "value", "effect"].map(|f| text(&t[f]).to_owned());
        for (i, t) in tolerations.iter().enumerate() {
            if tolerations[..i].iter().any(|before| key(before) == key(t)) {
                e.duplicate(&list.index(i), t);
            }
        }
        if present(&obj["overhead"]) {
            // The overhead is validated like the limits of a container.
            let limits = json!({"limits": obj["overhead"]["podFixed"]});
            pod::container_requirements(&limits, &Path::new("overhead"), e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        if !same(&new["handler"], &old["handler"]) {
            e.invalid(&Path::new("handler"), &new["handler"], "field is immutable");
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(text(&obj["handler"])), age(obj, now)]
    }
}
