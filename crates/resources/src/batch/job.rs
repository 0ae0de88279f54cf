//! Jobs: generated selectors, completion rules, updates, status.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_label;
use serde_json::{Value, json};

use super::job_selector::{self, check_generated, generate_selector};
use super::job_status::{self, condition};
use super::job_update::check_spec_update;
use super::policies;
use crate::apps::{name_warning, wide};
use crate::column::{AGE, CONTAINERS, Column, IMAGES, NAME, SELECTOR};
use crate::options::{Options, columns, texts};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Context, Strategy, base_create, field_text};
use crate::table::{age, between, name, time};
use crate::tree::{at_mut, default_to, default_zero, empty, ensure, flag, int, int0, present, set, text};

const INDEXED_PARALLELISM_MAX: i64 = 100_000;
const FAILED_INDEXES_MAX: i64 = 100_000;
const MANY_COMPLETIONS: i64 = 100_000;
const MANY_COMPLETIONS_PARALLELISM_MAX: i64 = 10_000;
const MANY_COMPLETIONS_FAILED_MAX: i64 = 10_000;
const MANAGED_BY_BYTES_MAX: usize = 63;

/// The strategy of jobs.
pub struct Jobs;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("Status", "State of the job."),
        Column::text("Completions", "Number of succeeded pods out of the desired completions."),
        Column::text("Duration", "Time from start to completion."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    fields: texts!["status.successful"],
    orphans_dependents: true,
    ..Options::of("batch", "jobs")
});

/// Sets the defaults of a job's spec, also in templates of cron jobs.
pub(super) fn default_spec(spec: &mut Value) {
    if !present(&spec["completions"]) && !present(&spec["parallelism"]) {
        default_to(spec, "completions", 1);
    }
    default_to(spec, "parallelism", 1);
    let backoff = if present(&spec["backoffLimitPerIndex"]) { i32::MAX } else { 6 };
    default_to(spec, "backoffLimit", backoff);
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    let replace = if present(&spec["podFailurePolicy"]) { "Failed" } else { "TerminatingOrFailed" };
    default_to(spec, "podReplacementPolicy", replace);
    default_to(spec, "manualSelector", false);
}

/// Sets the defaults that jobs and job templates share.
pub(super) fn default_template(spec: &mut Value) {
    if let Some(t) = ensure(spec, "template") {
        pod::default_template(t);
    }
    let rules = at_mut(spec, &["podFailurePolicy"]);
    for r in rules.into_iter().flat_map(|p| crate::tree::items_mut(p, "rules")) {
        for c in crate::tree::items_mut(r, "onPodConditions") {
            default_zero(c, "status", "True");
        }
    }
}

impl Strategy for Jobs {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
        let Some(spec) = ensure(obj, "spec") else { return };
        default_spec(spec);
        default_template(spec);
        let labels = spec["template"]["metadata"]["labels"].clone();
        if !empty(&labels)
            && let Some(m) = ensure(obj, "metadata")
            && empty(&m["labels"])
        {
            set(m, "labels", labels);
        }
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        if !flag(&obj["spec"]["manualSelector"]) {
            generate_selector(obj);
        }
        let labels = obj["spec"]["template"]["metadata"]["labels"].clone();
        // Defaults copy the template's labels to an unlabelled job, and the template's labels were added only now.
        // Invalid labels are reported for the template.
        let is_label = |v: &Value| kelson_meta::is_label_value(text(v)).is_ok();
        if labels.as_object().is_some_and(|all| all.values().all(is_label))
            && let Some(meta) = ensure(obj, "metadata").filter(|m| empty(&m["labels"]))
        {
            set(meta, "labels", labels);
        }
        base_create(self, obj);
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        check_generated(obj, true, e);
        check_job(obj, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        check_generated(new, job_selector::is_prefixed(old), e);
        check_job(new, e);
        check_spec_update(new, old, e);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        crate::strategy::base_status_update(new, old);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        job_status::check(new, old, e);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = name_warning(new, old, "Pod names and hostnames");
        out.extend(spec_warnings("spec.", &new["spec"], old.map(|o| &o["spec"])));
        out
    }
    fn field_value(&self, obj: &Value, field: &str) -> String {
        // A status without the count means zero.
        match field {
            "status.successful" => int0(&obj["status"]["succeeded"]).to_string(),
            _ => field_text(obj, field),
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let done = int0(&status["succeeded"]);
        let completions = match (int(&spec["completions"]), int0(&spec["parallelism"])) {
            (Some(n), _) => format!("{done}/{n}"),
            (None, p) if p > 1 => format!("{done}/1 of {p}"),
            _ => format!("{done}/1"),
        };
        let duration = time(&status["startTime"])
            .map_or_else(String::new, |start| between(start, time(&status["completionTime"]).unwrap_or(now)));
        let [names, images, selector] = wide(spec);
        vec![name(obj), json!(state(obj)), json!(completions), json!(duration), age(obj, now), names, images, selector]
    }
    fn row_conditions(&self, obj: &Value) -> Vec<Value> {
        let (reason, message) = match state(obj) {
            "Complete" => ("Succeeded", "The job has completed successfully."),
            "Failed" => ("Failed", "The job failed."),
            _ => return Vec::new(),
        };
        vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
    }
}

/// Returns warnings about a job's spec at `at`, which ends in a dot.
pub(super) fn spec_warnings(at: &str, spec: &Value, old: Option<&Value>) -> Vec<String> {
    let mut out = Vec::new();
    let (completions, parallelism) = (int0(&spec["completions"]), int0(&spec["parallelism"]));
    if text(&spec["completionMode"]) == "Indexed" && completions > MANY_COMPLETIONS && parallelism > 10_000 {
        out.push(
            "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail".to_owned(),
        );
    }
    out.extend(pod::template_warnings_at(&format!("{at}template."), &spec["template"], old.map(|o| &o["template"])));
    out
}

fn state(obj: &Value) -> &'static str {
    if condition(obj, "Complete") {
        "Complete"
    } else if condition(obj, "Failed") {
        "Failed"
    } else if present(&obj["metadata"]["deletionTimestamp"]) {
        "Terminating"
    } else if condition(obj, "Suspended") {
        "Suspended"
    } else if condition(obj, "FailureTarget") {
        "FailureTarget"
    } else if condition(obj, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn check_job(obj: &Value, e: &mut Errors) {
    let (spec, p) = (&obj["spec"], Path::new("spec"));
    check_spec(spec, &p, e);
    let (selector, before) = (&spec["selector"], e.len());
    if present(selector) {
        rules::label_selector(selector, &p.child("selector"), e);
    } else {
        e.required(&p.child("selector"), "");
    }
    let labels = &spec["template"]["metadata"]["labels"];
    // An invalid selector is not compared; a missing one matches nothing.
    if !present(selector) || (e.len() == before && !rules::selector_matches(selector, labels)) {
        let t = p.child("template");
        let meta = t.child("metadata");
        e.invalid(&meta.child("labels"), labels, "`selector` does not match template `labels`");
    }
    if text(&spec["completionMode"]) == "Indexed"
        && let Some(n) = int(&spec["completions"])
        && n > 0
    {
        let job = text(&obj["metadata"]["name"]);
        let host = format!("{job}-{}", n - 1);
        if is_dns1123_label(&host).is_err() {
            let meta = Path::new("metadata");
            let why = format!("will not able to create pod with invalid DNS label: {host}");
            e.invalid(&meta.child("name"), job, why);
        }
    }
}

/// Validates a job's spec without its selector; also for cron jobs.
pub(super) fn check_spec(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    for f in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        rules::not_negative(&spec[f], &p.child(f), e);
    }
    if present(&spec["maxFailedIndexes"]) && !present(&spec["backoffLimitPerIndex"]) {
        e.required(&p.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    if let Some(m) = spec["managedBy"].as_str() {
        let at = p.child("managedBy");
        rules::domain_prefixed_path(m, &at, e);
        if m.len() > MANAGED_BY_BYTES_MAX {
            e.too_long(&at, MANAGED_BY_BYTES_MAX);
        }
    }
    check_mode(spec, p, e);
    policies::check(spec, p, e);
    pod::check_template(&spec["template"], &p.child("template"), e);
    let template = p.child("template");
    let pod_spec = template.child("spec");
    let at = pod_spec.child("restartPolicy");
    match text(&spec["template"]["spec"]["restartPolicy"]) {
        "" | "Always" => e.required(&at, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if present(&spec["podFailurePolicy"]) => {
            e.invalid(&at, "OnFailure", "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        other => e.not_supported(&at, other, &["OnFailure", "Never"]),
    }
}

fn check_mode(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    rules::optional_one_of(&spec["completionMode"], &p.child("completionMode"), &["NonIndexed", "Indexed"], e);
    let (completions, parallelism, failed) =
        (int(&spec["completions"]), int(&spec["parallelism"]), int(&spec["maxFailedIndexes"]));
    if text(&spec["completionMode"]) != "Indexed" {
        for f in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if present(&spec[f]) {
                e.invalid(&p.child(f), &spec[f], "requires indexed completion mode");
            }
        }
        return;
    }
    let Some(completions) = completions else {
        return e.required(&p.child("completions"), "when completion mode is Indexed");
    };
    let (at_parallelism, at_failed) = (p.child("parallelism"), p.child("maxFailedIndexes"));
    if let Some(n) = parallelism.filter(|n| *n > INDEXED_PARALLELISM_MAX) {
        let why = format!("must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed");
        e.invalid(&at_parallelism, n, why);
    }
    if let Some(n) = failed.filter(|n| *n > completions) {
        e.invalid(&at_failed, n, "must be less than or equal to completions");
    }
    if let Some(n) = failed.filter(|n| *n > FAILED_INDEXES_MAX) {
        e.invalid(&at_failed, n, format!("must be less than or equal to {FAILED_INDEXES_MAX}"));
    }
    if completions > MANY_COMPLETIONS && present(&spec["backoffLimitPerIndex"]) {
        if failed.is_none() {
            let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            e.required(&at_failed, &why);
        }
        let over = |n: i64, max: i64| {
            (n > max).then(|| {
                format!("must be less than or equal to {max} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index")
            })
        };
        if let Some((n, why)) = parallelism.and_then(|n| Some((n, over(n, MANY_COMPLETIONS_PARALLELISM_MAX)?))) {
            e.invalid(&at_parallelism, n, why);
        }
        if let Some((n, why)) = failed.and_then(|n| Some((n, over(n, MANY_COMPLETIONS_FAILED_MAX)?))) {
            e.invalid(&at_failed, n, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec: Value) -> Value {
        let mut j =
            json!({"metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "1"}, "spec": spec});
        Jobs.set_defaults("v1", &mut j);
        Jobs.prepare_create(&Context::at(Timestamp::UNIX_EPOCH), &mut j);
        j
    }

    #[test]
    fn creation() {
        let containers = json!([{"name": "c", "image": "i"}]);
        let j = job(json!({"template": {"spec": {"restartPolicy": "Never", "containers": containers}}}));
        assert_eq!(j["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}));
        assert_eq!((&j["spec"]["completions"], &j["spec"]["backoffLimit"]), (&json!(1), &json!(6)));
        assert_eq!(Jobs.validate_create(&j).to_string(), "[]");
        let j = job(json!({"template": {"spec": {"containers": containers}}}));
        assert_eq!(
            Jobs.validate_create(&j).to_string(),
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
        );
    }

    #[test]
    fn template_is_immutable() {
        let old =
            job(json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}));
        let mut new = old.clone();
        new["spec"]["parallelism"] = json!(3);
        assert_eq!(Jobs.validate_update(&new, &old).to_string(), "[]");
        new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("j");
        assert!(Jobs.validate_update(&new, &old).to_string().ends_with("field is immutable"));
    }
}
