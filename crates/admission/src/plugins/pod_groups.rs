//! Gang scheduling (`scheduling.k8s.io/v1alpha2`). PodGroupProtection: a group is not deleted while it has pods.
//! PodGroupWorkloadExists: the workload template of a new group must exist. JobValidation: the parallelism of a
//! gang-scheduled job cannot change.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::Status;
use kelson_meta::tree::path::{at, list, list_mut, text};
use serde_json::Value;

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};

const GROUP: &str = "scheduling.k8s.io";
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// Adds the finalizer that protects groups with pods; see the module.
pub struct PodGroupProtection;

impl Plugin for PodGroupProtection {
    fn name(&self) -> &'static str {
        "PodGroupProtection"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main(GROUP, "podgroups") {
            return Ok(());
        }
        let finalizers = a.object.as_mut().and_then(|group| list_mut(group, &["metadata", "finalizers"]));
        if let Some(finalizers) = finalizers.filter(|f| !f.iter().any(|f| f == FINALIZER)) {
            finalizers.push(FINALIZER.into());
        }
        Ok(())
    }
}

/// Checks a new group's template; see the module.
pub struct PodGroupWorkloadExists {
    objects: Arc<dyn Objects>,
}

impl PodGroupWorkloadExists {
    /// Creates the plugin, which reads workloads through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for PodGroupWorkloadExists {
    fn name(&self) -> &'static str {
        "PodGroupWorkloadExists"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let reference = at(a.new_object(), &["spec", "podGroupTemplateRef", "workload"]);
        if !a.is_main(GROUP, "podgroups") || reference.is_null() {
            return Ok(());
        }
        let (name, template) = (text(reference, &["workloadName"]), text(reference, &["podGroupTemplateName"]));
        let refused = |why: String| Err(a.forbidden(&format!("PodGroup rejected: {why}")));
        let Some(workload) = self.objects.tree(GROUP, "workloads", a.namespace, name) else {
            return refused(format!("Workload {name:?} not found"));
        };
        if !at(&workload, &["metadata", "deletionTimestamp"]).is_null() {
            return refused(format!("Workload {name:?} is being deleted"));
        }
        if list(&workload, &["spec", "podGroupTemplates"]).iter().any(|t| text(t, &["name"]) == template) {
            return Ok(());
        }
        refused(format!("PodGroupTemplate {template:?} not found in Workload {name:?}"))
    }
}

/// Checks updates of gang-scheduled jobs; see the module.
pub struct JobValidation {
    objects: Arc<dyn Objects>,
}

impl JobValidation {
    /// Creates the plugin, which reads groups through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }

    /// Returns the gang-scheduled group of all pods of a job, if there is one.
    fn gang(&self, a: &Attributes<'_>) -> Option<Arc<Value>> {
        let starts_together = |group: &Value| !at(group, &["spec", "schedulingPolicy", "gang"]).is_null();
        let named = text(a.stored(), &["spec", "template", "spec", "schedulingGroup", "podGroupName"]);
        if !named.is_empty() {
            return self.objects.tree(GROUP, "podgroups", a.namespace, named).filter(|g| starts_together(g));
        }
        let uid = text(a.stored(), &["metadata", "uid"]);
        let is_of_job = |group: &Value| {
            let owners = list(group, &["metadata", "ownerReferences"]);
            owners.iter().any(|o| at(o, &["controller"]) == true && text(o, &["uid"]) == uid)
        };
        let groups = self.objects.trees(GROUP, "podgroups", a.namespace);
        groups.into_iter().find(|group| is_of_job(group) && starts_together(group))
    }
}

impl Plugin for JobValidation {
    fn name(&self) -> &'static str {
        "JobValidation"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::UPDATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let parallelism = |job| at(job, &["spec", "parallelism"]);
        if !a.is_main("batch", "jobs") || parallelism(a.new_object()) == parallelism(a.stored()) {
            return Ok(());
        }
        let Some(gang) = self.gang(a) else { return Ok(()) };
        let name = text(&gang, &["metadata", "name"]);
        Err(a.forbidden(&format!("cannot change parallelism for a Job referencing gang-scheduled PodGroup {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    const GROUPS: &str = "scheduling.k8s.io/podgroups";

    #[tokio::test]
    async fn groups_are_protected() {
        for (finalizers, want) in [
            (json!(null), json!([FINALIZER])),
            (json!(["x/y"]), json!(["x/y", FINALIZER])),
            (json!([FINALIZER]), json!([FINALIZER])),
        ] {
            let ask = Ask::create(GROUPS, json!({"metadata": {"finalizers": finalizers}}));
            assert_eq!(object(PodGroupProtection, ask).await.unwrap()["metadata"]["finalizers"], want);
        }
        let other = Ask::create("/pods", json!({"metadata": {}}));
        assert_eq!(object(PodGroupProtection, other).await.unwrap(), json!({"metadata": {}}));
    }

    #[tokio::test]
    async fn groups_have_a_template() {
        let workload = |deleted: Value| {
            json!({"metadata": {"deletionTimestamp": deleted},
            "spec": {"podGroupTemplates": [{"name": "t"}]}})
        };
        let d = dependencies(&[
            ("workloads/a/w", workload(Value::Null)),
            ("workloads/a/going", workload(json!("2026-01-01T00:00:00Z"))),
        ]);
        for (workload, template, want) in [
            ("w", "t", ""),
            ("w", "u", "PodGroup rejected: PodGroupTemplate \"u\" not found in Workload \"w\""),
            ("x", "t", "PodGroup rejected: Workload \"x\" not found"),
            ("going", "t", "PodGroup rejected: Workload \"going\" is being deleted"),
        ] {
            let group = json!({"metadata": {"name": "g"}, "spec": {"podGroupTemplateRef": {"workload":
                {"workloadName": workload, "podGroupTemplateName": template}}}});
            let outcome = object(PodGroupWorkloadExists::new(&d), Ask::create(GROUPS, group)).await;
            match want {
                "" => assert!(outcome.is_ok()),
                want => assert!(outcome.unwrap_err().ends_with(want)),
            }
        }
        assert!(object(PodGroupWorkloadExists::new(&d), Ask::create(GROUPS, json!({"spec": {}}))).await.is_ok());
    }

    #[tokio::test]
    async fn jobs_that_start_at_once_keep_their_size() {
        let group = |name: &str, policy: Value, uid: &str| {
            json!({"metadata": {"name": name,
            "ownerReferences": [{"controller": true, "uid": uid}]}, "spec": {"schedulingPolicy": policy}})
        };
        let d = dependencies(&[
            ("podgroups/a/gang", group("gang", json!({"gang": {"minCount": 2}}), "u")),
            ("podgroups/a/basic", group("basic", json!({"basic": {}}), "v")),
        ]);
        let job = |uid: &str, parallelism: i64, group: Value| {
            json!({"metadata": {"name": "j", "uid": uid},
            "spec": {"parallelism": parallelism, "template": {"spec": {"schedulingGroup": group}}}})
        };
        let named = |name: &str| json!({"podGroupName": name});
        for (uid, from, to, group, refused) in [
            ("u", 1, 2, Value::Null, true),
            ("u", 2, 2, Value::Null, false),
            ("v", 1, 2, Value::Null, false),
            ("w", 1, 2, Value::Null, false),
            ("w", 1, 2, named("gang"), true),
            ("w", 1, 2, named("basic"), false),
            ("w", 1, 2, named("gone"), false),
        ] {
            let ask = Ask::update("batch/jobs", job(uid, from, group.clone()), job(uid, to, group));
            let outcome = object(JobValidation::new(&d), ask).await;
            assert_eq!(outcome.is_err(), refused, "{uid}: {outcome:?}");
        }
    }
}
