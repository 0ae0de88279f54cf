//! APIServices: the server that serves a group version. Groups of this server are available immediately. Upstream:
//! `kube-aggregator/pkg/registry/apiservice`, `pkg/apis/apiregistration/validation`.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_meta::{format_seconds, is_dns1035_label, is_dns1123_subdomain};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::names::NameRule;
use crate::options::{Observer, Options};
use crate::path::{Errors, Path};
use crate::strategy::{Context, Strategy};
use crate::table::{age, name};
use crate::tree::{at_mut, default_to, ensure, flag, items, present, set, text};

pub struct ApiServices;

static OPTIONS: std::sync::LazyLock<Options> = std::sync::LazyLock::new(|| Options {
    allow_unconditional_update: false,
    observer: Observer::Aggregation,
    columns: COLUMNS.into(),
    // The core group has no name: its APIService is `v1.`.
    name: NameRule::PathSegment,
    ..Options::of("apiregistration.k8s.io", "apiservices")
});

const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Service", "Service that answers."),
    Column::text("Available", "Whether the API service is available."),
    AGE,
];

/// The maximum of `versionPriority` and of `groupPriorityMinimum`.
const VERSION_PRIORITY_MAX: i64 = 1000;
const GROUP_PRIORITY_MAX: i64 = 20000;

impl Strategy for ApiServices {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
        if let Some(service) = at_mut(obj, &["spec", "service"]) {
            default_to(service, "port", 443);
        }
    }
    fn prepare_create(&self, cx: &Context<'_>, obj: &mut Value) {
        let status = if present(&obj["spec"]["service"]) {
            json!({})
        } else {
            json!({"conditions": [{
                "type": "Available", "status": "True", "reason": "Local",
                "message": "Local APIServices are always available",
                "lastTransitionTime": format_seconds(cx.now),
            }]})
        };
        set(obj, "status", status);
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let root = Path::new("spec");
        let spec = &obj["spec"];
        let (group, version) = (text(&spec["group"]), text(&spec["version"]));
        let wanted = format!("{version}.{group}");
        for field in ["generateName", "name"] {
            let given = text(&obj["metadata"][field]);
            if !given.is_empty() && given != wanted {
                let why = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
                e.invalid(&Path::new("metadata").child(field), given, why);
            }
        }
        if group.is_empty() && version != "v1" {
            e.required(&root.child("group"), "only v1 may have an empty group and it better be legacy kube");
        } else if !group.is_empty() {
            e.invalid_each(&root.child("group"), group, is_dns1123_subdomain(group));
        }
        e.invalid_each(&root.child("version"), version, is_dns1035_label(version));
        let limits = [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)];
        for (field, max) in limits {
            let given = spec[field].as_i64().unwrap_or(0);
            if given <= 0 || given > max {
                let why = format!("must be positive and less than {max}");
                e.invalid(&root.child(field), given, why);
            }
        }
        if !present(&spec["service"]) {
            if !text(&spec["caBundle"]).is_empty() {
                let why = "local APIServices may not have a caBundle";
                let bytes = STANDARD.decode(text(&spec["caBundle"])).map_or(0, |bundle| bundle.len());
                e.invalid(&root.child("caBundle"), format!("{bytes} bytes"), why);
            }
            if flag(&spec["insecureSkipTLSVerify"]) {
                let why = "local APIServices may not have insecureSkipTLSVerify";
                e.invalid(&root.child("insecureSkipTLSVerify"), true, why);
            }
            return;
        }
        let p = root.child("service");
        for field in ["namespace", "name"] {
            if text(&spec["service"][field]).is_empty() {
                e.required(&p.child(field), "");
            }
        }
        let port = spec["service"]["port"].as_i64().unwrap_or(0);
        if !(1..=65535).contains(&port) {
            e.invalid(&p.child("port"), port, "port is not valid: must be between 1 and 65535, inclusive");
        }
        if flag(&spec["insecureSkipTLSVerify"]) && !text(&spec["caBundle"]).is_empty() {
            e.invalid(&root.child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present");
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let status = Path::new("status");
        let list = status.child("conditions");
        for (i, condition) in items(&new["status"]["conditions"]).iter().enumerate() {
            let said = text(&condition["status"]);
            if !matches!(said, "True" | "False" | "Unknown") {
                e.not_supported(&list.index(i).child("status"), said, &["True", "False", "Unknown"]);
            }
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut obj = json!({"metadata": {"name": "v1.example.com"}, "spec": {"group": "example.com", "version": "v1",
            "groupPriorityMinimum": 2000, "versionPriority": 15,
            "service": {"namespace": "n", "name": "s", "port": 443}, "insecureSkipTLSVerify": true}});
        change(&mut obj);
        let mut e = Errors::new();
        ApiServices.check(&obj, &mut e);
        e.finish().0.into_iter().map(|f| f.path).collect()
    }

    #[test]
    fn faults_of_services() {
        assert!(faults(|_| {}).is_empty());
        assert_eq!(faults(|o| o["metadata"]["name"] = json!("v2.example.com")), ["metadata.name"]);
        assert_eq!(faults(|o| o["spec"]["versionPriority"] = json!(1001)), ["spec.versionPriority"]);
        assert_eq!(faults(|o| o["spec"]["caBundle"] = json!("YQ==")), ["spec.insecureSkipTLSVerify"]);
        assert_eq!(faults(|o| o["spec"]["service"] = json!(null)), ["spec.insecureSkipTLSVerify"]);
        assert_eq!(faults(|o| o["spec"]["service"]["name"] = json!("")), ["spec.service.name"]);
    }

    #[test]
    fn what_is_local_is_available() {
        let mut obj = json!({"metadata": {}, "spec": {}});
        ApiServices.prepare_create(&Context::at(Timestamp::UNIX_EPOCH), &mut obj);
        assert_eq!(obj["status"]["conditions"][0]["reason"], "Local");
    }
}
