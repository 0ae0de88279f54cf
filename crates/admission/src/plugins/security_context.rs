//! SecurityContextDeny: rejects pods that set users, groups or SELinux labels. Upstream removed it in favour of
//! PodSecurity.
use kelson_meta::Status;
use kelson_meta::tree::path::{at, list};

use crate::containers::containers;
use crate::{Attributes, Notes, Operation, Operations, Plugin};

/// The plugin; see the module.
pub struct SecurityContextDeny;

impl Plugin for SecurityContextDeny {
    fn name(&self) -> &'static str {
        "SecurityContextDeny"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is("", "pods") || !matches!(a.subresource, "" | "ephemeralcontainers") {
            return Ok(());
        }
        let spec = at(a.new_object(), &["spec"]);
        let set = |field: &str| !at(spec, &["securityContext", field]).is_null();
        let of_pod = [
            ("SupplementalGroups", !list(spec, &["securityContext", "supplementalGroups"]).is_empty()),
            ("SELinuxOptions", set("seLinuxOptions")),
            ("RunAsUser", set("runAsUser")),
            ("FSGroup", set("fsGroup")),
        ];
        if let Some((field, _)) = of_pod.iter().find(|(_, set)| *set) {
            return Err(a.forbidden(&format!("pod.Spec.SecurityContext.{field} is forbidden")));
        }
        for (_, _, container) in containers(spec) {
            for (key, field) in [("seLinuxOptions", "SELinuxOptions"), ("runAsUser", "RunAsUser")] {
                if !at(container, &["securityContext", key]).is_null() {
                    return Err(a.forbidden(&format!("SecurityContext.{field} is forbidden")));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, object};
    use serde_json::json;

    #[tokio::test]
    async fn fields() {
        let container = |context: serde_json::Value| json!([{"name": "c", "securityContext": context}]);
        for (spec, want) in [
            (json!({"containers": container(json!({"privileged": true}))}), ""),
            (json!({"securityContext": {"runAsNonRoot": true, "supplementalGroups": []}}), ""),
            (
                json!({"securityContext": {"supplementalGroups": [1]}}),
                "pod.Spec.SecurityContext.SupplementalGroups is forbidden",
            ),
            (
                json!({"securityContext": {"seLinuxOptions": {}}}),
                "pod.Spec.SecurityContext.SELinuxOptions is forbidden",
            ),
            (json!({"securityContext": {"runAsUser": 0}}), "pod.Spec.SecurityContext.RunAsUser is forbidden"),
            (json!({"securityContext": {"fsGroup": 1}}), "pod.Spec.SecurityContext.FSGroup is forbidden"),
            (json!({"containers": container(json!({"runAsUser": 1}))}), ": SecurityContext.RunAsUser is forbidden"),
            (
                json!({"initContainers": container(json!({"seLinuxOptions": {}}))}),
                ": SecurityContext.SELinuxOptions is forbidden",
            ),
            (
                json!({"ephemeralContainers": container(json!({"runAsUser": 1}))}),
                ": SecurityContext.RunAsUser is forbidden",
            ),
        ] {
            let outcome = object(SecurityContextDeny, Ask::pod(json!({"metadata": {"name": "p"}, "spec": spec}))).await;
            match want {
                "" => assert!(outcome.is_ok(), "{spec}"),
                want => assert!(outcome.unwrap_err().ends_with(want), "{spec}"),
            }
        }
    }
}
