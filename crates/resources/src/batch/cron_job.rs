//! CronJobs.
use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kelson_meta::CronSchedule;
use serde_json::{Value, json};

use super::job;
use crate::apps::name_warning;
use crate::column::{AGE, CONTAINERS, Column, IMAGES, NAME, SELECTOR};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{NONE, age, containers, name, or_none, selector, since};
use crate::tree::{default_to, default_zero, ensure, flag, items, present, text};

/// The maximum length of a name: eleven characters are added for the jobs' names, which have at most 63.
const NAME_BYTES_MAX: usize = 52;

/// The strategy of cronjobs.
pub struct CronJobs;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("Schedule", "When jobs start, in cron format."),
        Column::text("Timezone", "Time zone of the schedule."),
        Column::boolean("Suspend", "Whether no further jobs start."),
        Column::integer("Active", "Number of running jobs."),
        Column::text("Last Schedule", "Time since a job was started."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    ..Options::of("batch", "cronjobs")
});

impl Strategy for CronJobs {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
        let Some(spec) = ensure(obj, "spec") else { return };
        default_zero(spec, "concurrencyPolicy", "Allow");
        default_to(spec, "suspend", false);
        default_to(spec, "successfulJobsHistoryLimit", 3);
        default_to(spec, "failedJobsHistoryLimit", 1);
        let Some(t) = ensure(spec, "jobTemplate") else { return };
        ensure(t, "metadata");
        // The job's own defaults are applied when the job is created; only those of the pod template are set here.
        if let Some(s) = ensure(t, "spec") {
            job::default_template(s);
        }
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        check_spec(&obj["spec"], &Value::Null, e);
        let n = text(&obj["metadata"]["name"]);
        if n.len() > NAME_BYTES_MAX {
            let meta = Path::new("metadata");
            e.invalid(&meta.child("name"), n, "must be no more than 52 characters");
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        check_spec(&new["spec"], &old["spec"], e);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = name_warning(new, old, "Pod names and hostnames");
        if text(&new["spec"]["schedule"]).contains("TZ") {
            out.push("CRON_TZ or TZ used in spec.schedule is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
        }
        out.extend(job::spec_warnings(
            "spec.jobTemplate.spec.",
            &new["spec"]["jobTemplate"]["spec"],
            old.map(|o| &o["spec"]["jobTemplate"]["spec"]),
        ));
        out
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let template = &spec["jobTemplate"]["spec"];
        let (names, images) = containers(&template["template"]["spec"]);
        let last = &status["lastScheduleTime"];
        let suspend = match spec["suspend"].as_bool() {
            Some(true) => "True",
            Some(false) => "False",
            None => crate::table::UNSET,
        };
        vec![
            name(obj),
            json!(text(&spec["schedule"])),
            or_none(text(&spec["timeZone"])),
            json!(suspend),
            json!(items(&status["active"]).len()),
            json!(if present(last) { since(last, now) } else { NONE.to_owned() }),
            age(obj, now),
            names,
            images,
            json!(selector(&template["selector"])),
        ]
    }
}

fn check_spec(spec: &Value, old: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    let schedule = text(&spec["schedule"]);
    let at = p.child("schedule");
    if schedule.is_empty() {
        e.required(&at, "");
    } else {
        if let Err(why) = CronSchedule::parse(schedule) {
            e.invalid(&at, schedule, why);
        }
        if schedule.contains("TZ") {
            if !text(&old["schedule"]).contains("TZ") {
                e.invalid(&at, schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
            } else if present(&spec["timeZone"]) {
                e.invalid(&at, schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
            }
        }
    }
    rules::not_negative(&spec["startingDeadlineSeconds"], &p.child("startingDeadlineSeconds"), e);
    if old.is_null() || old["timeZone"] != spec["timeZone"] {
        time_zone(&spec["timeZone"], &p.child("timeZone"), e);
    }
    rules::one_of(&spec["concurrencyPolicy"], &p.child("concurrencyPolicy"), &["Allow", "Forbid", "Replace"], e);
    let (template, t) = (&spec["jobTemplate"]["spec"], p.child("jobTemplate"));
    let t = t.child("spec");
    job::check_spec(template, &t, e);
    if present(&template["selector"]) {
        e.invalid(&t.child("selector"), &template["selector"], "`selector` will be auto-generated");
    }
    if flag(&template["manualSelector"]) {
        e.not_supported(&t.child("manualSelector"), true, &["nil", "false"]);
    }
    for f in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        rules::not_negative(&spec[f], &p.child(f), e);
    }
}

fn time_zone(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let Some(zone) = v.as_str() else { return };
    if zone.is_empty() {
        return e.invalid(p, zone, "timeZone must be nil or non-empty string");
    }
    if zone.eq_ignore_ascii_case("local") {
        e.invalid(p, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
    }
    // Names are case-sensitive.
    if TimeZone::get(zone).ok().and_then(|known| known.iana_name().map(|name| name != zone)) != Some(false) {
        e.invalid(p, zone, format!("unknown time zone {zone}"));
    }
}
