//! `--allow-privileged=false`: rejects pods and pod templates with privileged containers (upstream `pkg/capabilities`, checked in the
//! validation of security contexts).
use kelson_admission::containers::containers;
use kelson_meta::{FieldErrors, FieldPath};
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// The path of the pod spec in an object of this kind; `None` if it has none.
fn pods_of(kind: &str) -> Option<&'static [&'static str]> {
    match kind {
        "Pod" => Some(&["spec"]),
        "PodTemplate" => Some(&["template", "spec"]),
        "ReplicationController" | "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" => {
            Some(&["spec", "template", "spec"])
        }
        "CronJob" => Some(&["spec", "jobTemplate", "spec", "template", "spec"]),
        _ => None,
    }
}

/// The privileged containers of an object as errors, if the server does not allow them.
pub fn check(cx: &RequestContext, served: &Served, object: &Value) -> FieldErrors {
    // Groups without a dot are built in.
    if cx.server.config.allow_privileged || served.gvk.group.contains('.') {
        return FieldErrors::new();
    }
    privileged_containers(&served.gvk.kind, object)
}

/// The privileged containers of an object of this built-in kind, each as an error.
pub fn privileged_containers(kind: &str, object: &Value) -> FieldErrors {
    let mut faults = FieldErrors::new();
    let Some((first, rest)) = pods_of(kind).and_then(<[_]>::split_first) else { return faults };
    let path = rest.iter().fold(FieldPath::new(first), |path, name| path.child(name));
    let spec = rest.iter().fold(&object[*first], |at, name| &at[*name]);
    for (kind, i, container) in containers(spec) {
        if container["securityContext"]["privileged"] == true {
            let at = path.child(kind.field()).index(i).child("securityContext").child("privileged");
            faults.forbidden(&at, "disallowed by cluster policy");
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_privileged_container_is_reported_with_its_path() {
        let privileged = json!({"name": "p", "securityContext": {"privileged": true}});
        let plain = json!({"name": "q", "securityContext": {"privileged": false}});
        let spec =
            json!({"containers": [plain, privileged], "initContainers": [privileged], "ephemeralContainers": [plain]});
        let said = |kind: &str, object: Value| privileged_containers(kind, &object).to_string();
        let pod = said("Pod", json!({"spec": spec}));
        for place in ["spec.initContainers[0]", "spec.containers[1]"] {
            let wanted = format!("{place}.securityContext.privileged: Forbidden: disallowed by cluster policy");
            assert!(pod.contains(&wanted), "{pod}");
        }
        assert_eq!(pod.matches("Forbidden").count(), 2, "{pod}");
        let template = json!({"spec": {"template": {"spec": spec}}});
        for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"] {
            assert!(said(kind, template.clone()).contains("spec.template.spec.containers[1]"), "{kind}");
        }
        let cron = json!({"spec": {"jobTemplate": template}});
        assert!(said("CronJob", cron).contains("spec.jobTemplate.spec.template.spec.containers[1]"));
        assert!(said("PodTemplate", json!({"template": {"spec": spec}})).contains("template.spec.containers[1]"));
        assert_eq!(said("Service", json!({"spec": spec})), "[]");
        assert_eq!(said("Pod", json!({"spec": {"containers": [plain]}})), "[]");
    }
}
