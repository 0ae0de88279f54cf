//! PodSecurity: pods keep to the level their namespace's labels demand; what would break it elsewhere is warned of.
mod checks;

use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};
use serde_json::Value;

pub use checks::{Level, faults};

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, strings, text};

const PREFIX: &str = "pod-security.kubernetes.io/";
const MODES: [&str; 3] = ["enforce", "audit", "warn"];

/// Level and version name of one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Demand {
    level: Level,
    version: String,
}

impl Demand {
    fn violated(&self, metadata: &Value, spec: &Value) -> Option<String> {
        let faults = faults(self.level, metadata, spec);
        let (level, version) = (self.level.as_str(), &self.version);
        (!faults.is_empty()).then(|| format!("violate PodSecurity \"{level}:{version}\": {}", faults.join(", ")))
    }
}

/// See the module.
pub struct PodSecurity {
    objects: Arc<dyn Objects>,
    defaults: [Demand; 3],
    exempt_users: Vec<String>,
    exempt_namespaces: Vec<String>,
    exempt_runtime_classes: Vec<String>,
}

fn is_version(v: &str) -> bool {
    v == "latest" || v.strip_prefix("v1.").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

impl PodSecurity {
    /// With a `PodSecurityConfiguration`, if there is one.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        let demand = |mode: &str| -> Result<Demand, String> {
            let level = match text(configuration, &["defaults", mode]) {
                "" => Level::Privileged,
                l => Level::parse(l).ok_or_else(|| format!("defaults.{mode}: Invalid value: {l:?}"))?,
            };
            let key = format!("{mode}-version");
            let version = match text(configuration, &["defaults", &key]) {
                "" => "latest",
                v if is_version(v) => v,
                v => return Err(format!("defaults.{key}: Invalid value: {v:?}")),
            };
            Ok(Demand { level, version: version.to_owned() })
        };
        let names = |field: &str| -> Vec<String> {
            let all = list(configuration, &["exemptions", field]);
            all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Ok(Self {
            objects: d.objects.clone(),
            defaults: [demand("enforce")?, demand("audit")?, demand("warn")?],
            exempt_users: names("usernames"),
            exempt_namespaces: names("namespaces"),
            exempt_runtime_classes: names("runtimeClasses"),
        })
    }

    /// What enforce, audit and warn demand in a namespace. A label nobody can read demands the most.
    fn demands(&self, namespace: &Value) -> [Demand; 3] {
        let mut out = self.defaults.clone();
        for (demand, mode) in out.iter_mut().zip(MODES) {
            let label = |key: String| text(namespace, &["metadata", "labels", &key]);
            match label(format!("{PREFIX}{mode}")) {
                "" => {}
                l => demand.level = Level::parse(l).unwrap_or(Level::Restricted),
            }
            match label(format!("{PREFIX}{mode}-version")) {
                "" => {}
                v => v.clone_into(&mut demand.version),
            }
        }
        out
    }

    fn check_pod(
        &self,
        a: &Attributes<'_>,
        metadata: &Value,
        spec: &Value,
        enforce: bool,
        notes: &mut Notes,
    ) -> Result<(), Status> {
        let class = text(spec, &["runtimeClassName"]);
        let exempt = |list: &[String], name: &str| list.iter().any(|e| e == name);
        if exempt(&self.exempt_namespaces, a.namespace)
            || exempt(&self.exempt_users, &a.user.name)
            || (!class.is_empty() && exempt(&self.exempt_runtime_classes, class))
        {
            return Ok(());
        }
        let namespace = self.objects.tree("", "namespaces", "", a.namespace).unwrap_or_default();
        let [enforced, audited, warned] = self.demands(&namespace);
        if enforce {
            let policy = format!("{}:{}", enforced.level.as_str(), enforced.version);
            notes.annotate(format!("{PREFIX}enforce-policy"), policy);
            if let Some(why) = enforced.violated(metadata, spec) {
                return Err(a.forbidden(&why.replacen("violate", "violates", 1)));
            }
        }
        if let Some(why) = audited.violated(metadata, spec) {
            notes.annotate(format!("{PREFIX}audit-violations"), format!("would {why}"));
        }
        if let Some(why) = warned.violated(metadata, spec) {
            notes.warn(format!("would {why}"));
        }
        Ok(())
    }
}

/// Pod metadata and spec within an object that makes pods.
fn template<'a>(a: &'a Attributes<'_>) -> Option<&'a Value> {
    let path: &[&str] = match (a.resource.group.as_str(), a.resource.resource.as_str()) {
        ("", "podtemplates") => &["template"],
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &["spec", "template"],
        ("batch", "cronjobs") => &["spec", "jobTemplate", "spec", "template"],
        _ => return None,
    };
    let template = at(a.new_object(), path);
    (a.subresource.is_empty() && !template.is_null()).then_some(template)
}

/// Whether an update changes anything the checks look at: new images and what is otherwise mutable cannot.
fn significant(old: &Value, new: &Value) -> bool {
    const FREE: [&str; 4] = ["tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "nodeName"];
    let same_spec = match (at(old, &["spec"]), at(new, &["spec"])) {
        (Value::Object(old), Value::Object(new)) => {
            let checked = |(key, _): &(&String, &Value)| !FREE.contains(&key.as_str());
            old.iter().filter(checked).eq(new.iter().filter(checked))
        }
        (old, new) => old == new,
    };
    let profiles = |(key, _): &(&str, &str)| key.contains("apparmor") || key.contains("seccomp");
    let annotations = |pod| strings(pod, &["metadata", "annotations"]).filter(profiles);
    !same_spec || !annotations(old).eq(annotations(new))
}

/// Labels must say something that is understood.
fn check_labels(a: &Attributes<'_>) -> Result<(), Status> {
    let mut faults = FieldErrors::new();
    let labels = FieldPath::new("metadata").child("labels");
    for mode in MODES {
        let version = format!("{PREFIX}{mode}-version");
        for (key, is_version_key) in [(format!("{PREFIX}{mode}"), false), (version, true)] {
            let value = text(a.new_object(), &["metadata", "labels", &key]);
            // An unreadable label that was there before does not stand in the way of other changes.
            let present = !at(a.new_object(), &["metadata", "labels", &key]).is_null();
            if !present || value == text(a.stored(), &["metadata", "labels", &key]) {
                continue;
            }
            if is_version_key && !is_version(value) {
                faults.invalid(&labels.key(&key), value, "must be \"latest\" or \"v1.x\"");
            } else if !is_version_key && Level::parse(value).is_none() {
                faults.invalid(&labels.key(&key), value, "must be one of privileged, baseline, restricted");
            }
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind { group: String::new(), kind: "Namespace".into() }, a.object_name(), &faults))
}

impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        if a.is_main("", "namespaces") {
            return check_labels(a);
        }
        if let Some(template) = template(a) {
            return self.check_pod(a, at(template, &["metadata"]), at(template, &["spec"]), false, notes);
        }
        let pods = a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers");
        if !pods || (a.operation == Operation::Update && !significant(a.stored(), a.new_object())) {
            return Ok(());
        }
        let pod = a.new_object();
        self.check_pod(a, at(pod, &["metadata"]), at(pod, &["spec"]), true, notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, run};
    use serde_json::json;

    #[tokio::test]
    async fn modes() {
        let d = dependencies(&[
            (
                "namespaces//a",
                json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline",
                "pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/warn-version": "v1.30"}}}),
            ),
            ("namespaces//free", json!({})),
        ]);
        let plugin = || PodSecurity::new(&d, &Value::Null).unwrap();
        let pod = |host: bool| json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": host, "containers": [{"name": "c"}]}});
        let refused = run(plugin(), Ask::pod(pod(true))).await.err().unwrap();
        assert_eq!(
            refused.message,
            "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
        );
        let warned = run(plugin(), Ask::pod(pod(false))).await.unwrap().notes;
        assert!(
            warned.warnings[0].starts_with("would violate PodSecurity \"restricted:v1.30\": allowPrivilegeEscalation")
        );
        assert_eq!(warned.audit_annotations[0].1, "baseline:latest");
        let deployment = json!({"spec": {"template": {"spec": {"hostNetwork": true, "containers": []}}}});
        let notes = run(plugin(), Ask::create("apps/deployments", deployment)).await.unwrap().notes;
        assert!(notes.warnings[0].contains("host namespaces (hostNetwork=true)"));
        assert!(run(plugin(), Ask::pod(pod(true)).named("free", "p")).await.unwrap().notes.warnings.is_empty());
        assert!(run(plugin(), Ask::update("/pods", pod(true), pod(true))).await.is_ok(), "nothing significant changed");
        let changed = |field: &str| {
            let mut new = pod(true);
            new["spec"][field] = json!("x");
            significant(&pod(true), &new)
        };
        assert_eq!(["nodeName", "hostPID", "tolerations"].map(changed), [false, true, false]);
        let mut profiled = pod(true);
        profiled["metadata"]["annotations"] = json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"});
        assert!(significant(&pod(true), &profiled) && significant(&profiled, &pod(true)));
        profiled["metadata"]["annotations"] = json!({"other": "x"});
        assert!(!significant(&pod(true), &profiled));
        let exempt = json!({"exemptions": {"namespaces": ["a"]}, "defaults": {"enforce": "restricted"}});
        let configured = || PodSecurity::new(&d, &exempt).unwrap();
        assert!(run(configured(), Ask::pod(pod(true))).await.is_ok());
        assert!(run(configured(), Ask::pod(pod(false)).named("free", "p")).await.is_err());
        assert!(PodSecurity::new(&d, &json!({"defaults": {"enforce": "x"}})).is_err());
    }

    #[tokio::test]
    async fn labels() {
        let d = dependencies(&[]);
        let ns = |v: &str| json!({"metadata": {"name": "n", "labels": {"pod-security.kubernetes.io/enforce": v}}});
        let ask = |a| run(PodSecurity::new(&d, &Value::Null).unwrap(), a);
        assert!(ask(Ask::create("/namespaces", ns("restricted"))).await.is_ok());
        let refused = ask(Ask::create("/namespaces", ns("strict"))).await.err().unwrap();
        assert!(refused.code == 422 && refused.message.contains("must be one of privileged, baseline, restricted"));
        assert!(ask(Ask::update("/namespaces", ns("strict"), ns("strict"))).await.is_ok());
    }
}
