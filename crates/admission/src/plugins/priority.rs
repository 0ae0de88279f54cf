//! Priority: sets a pod's priority from its PriorityClass, never from the client; allows at most one default class.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::Status;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, set, text};

const GROUP: &str = "scheduling.k8s.io";

/// Returns the two classes that every cluster has; the API server creates them if they are missing.
pub fn system_priority_classes() -> Vec<Value> {
    let class = |name: &str, value: i64, description: &str| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description, "preemptionPolicy": "PreemptLowerPriority"})
    };
    vec![
        class(
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
}

/// The plugin; see the module.
pub struct Priority {
    objects: Arc<dyn Objects>,
    groups: bool,
    /// The default class, with the version of the classes that it was read from.
    default: Mutex<Option<(u64, Option<Arc<Value>>)>>,
}

impl Priority {
    /// Creates the plugin, which reads priority classes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self {
            objects: d.objects.clone(),
            groups: d.gates.enabled("WorkloadAwarePreemption"),
            default: Mutex::default(),
        }
    }

    /// Returns the default class, which is looked up again after a class has changed.
    fn default_class(&self) -> Option<Arc<Value>> {
        // Read first: a change while the classes are read is seen by the next request.
        let Some(version) = self.objects.version(GROUP, "priorityclasses") else { return self.newest_default() };
        let mut known = self.default.lock();
        match &*known {
            Some((of, class)) if *of == version => class.clone(),
            _ => known.insert((version, self.newest_default())).1.clone(),
        }
    }

    /// Returns the default class; of several (created concurrently) the one with the lowest value.
    fn newest_default(&self) -> Option<Arc<Value>> {
        self.objects
            .trees(GROUP, "priorityclasses", "")
            .into_iter()
            .filter(|c| at(c, &["globalDefault"]) == true)
            .min_by_key(|c| at(c, &["value"]).as_i64().unwrap_or(0))
    }

    /// Returns the class that an object names, or else the default one; null when there is neither.
    fn class_of(&self, a: &Attributes<'_>) -> Result<Arc<Value>, Status> {
        let asked = text(a.new_object(), &["spec", "priorityClassName"]);
        if asked.is_empty() {
            return Ok(self.default_class().unwrap_or_default());
        }
        let found = self.objects.tree(GROUP, "priorityclasses", "", asked);
        found.ok_or_else(|| a.forbidden(&format!("no PriorityClass with name {asked} was found")))
    }

    /// Sets the priority of a group of pods that is preempted as a unit (KEP-5710).
    fn new_group(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let class = self.class_of(a)?;
        let value = at(&class, &["value"]).as_i64().unwrap_or(0);
        if let Some(given) = at(a.new_object(), &["spec", "priority"]).as_i64().filter(|g| *g != value) {
            return Err(a.forbidden(&format!(
                "priority set in the pod group ({given}) must match the priority computed ({value}) based on the priority class \
                 set in the spec"
            )));
        }
        let name = text(&class, &["metadata", "name"]).to_owned();
        if let Some(group) = a.object.as_mut() {
            if !name.is_empty() {
                set(group, &["spec", "priorityClassName"], name.into());
            }
            set(group, &["spec", "priority"], value.into());
        }
        Ok(())
    }

    fn new_pod(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let class = self.class_of(a)?;
        let pod = a.new_object();
        let value = at(&class, &["value"]).as_i64().unwrap_or(0);
        if let Some(given) = at(pod, &["spec", "priority"]).as_i64().filter(|g| *g != value) {
            return Err(a.forbidden(&format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
                 computed {value} from the given PriorityClass name"
            )));
        }
        let policy = match text(&class, &["preemptionPolicy"]) {
            "" => "PreemptLowerPriority",
            policy => policy,
        };
        let given = at(pod, &["spec", "preemptionPolicy"]).as_str();
        if let Some(given) = given.filter(|given| *given != policy) {
            return Err(a.forbidden(&format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
                 controller computed {policy} from the given PriorityClass name"
            )));
        }
        let (name, policy) = (text(&class, &["metadata", "name"]).to_owned(), policy.to_owned());
        if let Some(pod) = a.object.as_mut() {
            if !name.is_empty() {
                set(pod, &["spec", "priorityClassName"], name.into());
            }
            set(pod, &["spec", "priority"], value.into());
            set(pod, &["spec", "preemptionPolicy"], policy.into());
        }
        Ok(())
    }
}

impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if self.groups && a.operation == Operation::Create && a.is_main(GROUP, "podgroups") {
            return self.new_group(a);
        }
        if !a.is_main("", "pods") {
            return Ok(());
        }
        if a.operation == Operation::Create {
            return self.new_pod(a);
        }
        // Values set at creation are kept when a client does not know the fields.
        for field in ["priority", "preemptionPolicy"] {
            let old = at(a.stored(), &["spec", field]).clone();
            if at(a.new_object(), &["spec", field]).is_null()
                && !old.is_null()
                && let Some(pod) = a.object.as_mut()
            {
                set(pod, &["spec", field], old);
            }
        }
        Ok(())
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main(GROUP, "priorityclasses") || at(a.new_object(), &["globalDefault"]) != true {
            return Ok(());
        }
        let Some(default) = self.default_class() else { return Ok(()) };
        let name = text(&default, &["metadata", "name"]);
        if a.operation == Operation::Create || name != text(a.new_object(), &["metadata", "name"]) {
            let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
            return Err(a.forbidden(&why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, gated, object};

    #[tokio::test]
    async fn resolves_and_refuses() {
        let none = dependencies(&[]);
        let out = object(Priority::new(&none), Ask::pod(json!({"spec": {}}))).await.unwrap();
        assert_eq!(out["spec"], json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}));
        let d = dependencies(&[
            (
                "priorityclasses//high",
                json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}),
            ),
            ("priorityclasses//std", json!({"metadata": {"name": "std"}, "value": 5, "globalDefault": true})),
        ]);
        let ask = |spec: Value| object(Priority::new(&d), Ask::pod(json!({"metadata": {"name": "p"}, "spec": spec})));
        let out = ask(json!({})).await.unwrap();
        assert_eq!((&out["spec"]["priorityClassName"], &out["spec"]["priority"]), (&json!("std"), &json!(5)));
        let out = ask(json!({"priorityClassName": "high", "priority": 1000})).await.unwrap();
        assert_eq!(out["spec"]["preemptionPolicy"], "Never");
        for (spec, text) in [
            (
                json!({"priorityClassName": "gone"}),
                "pods \"p\" is forbidden: no PriorityClass with name gone was found",
            ),
            (
                json!({"priority": 7}),
                "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 5",
            ),
            (
                json!({"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}),
                "the string value of PreemptionPolicy (PreemptLowerPriority)",
            ),
        ] {
            let e = ask(spec).await.unwrap_err();
            assert!(e.contains(text), "{e}");
        }
        let old = json!({"spec": {"priority": 5, "preemptionPolicy": "Never"}});
        let out = object(Priority::new(&d), Ask::update("/pods", old, json!({"spec": {}}))).await.unwrap();
        assert_eq!(out["spec"]["priority"], 5);
        let second = json!({"metadata": {"name": "new"}, "value": 1, "globalDefault": true});
        let e = object(Priority::new(&d), Ask::create("scheduling.k8s.io/priorityclasses", second)).await.unwrap_err();
        assert!(e.ends_with("PriorityClass std is already marked as default. Only one default can exist"), "{e}");
    }

    #[tokio::test]
    async fn groups_that_are_preempted_as_one() {
        let ask = |gates: &str, spec: Value| {
            let d = gated(&[("priorityclasses//high", json!({"metadata": {"name": "high"}, "value": 1000}))], gates);
            object(Priority::new(&d), Ask::create("scheduling.k8s.io/podgroups", json!({"spec": spec})))
        };
        const ON: &str = "GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true";
        let high = json!({"priorityClassName": "high"});
        assert_eq!(
            ask(ON, high.clone()).await.unwrap()["spec"],
            json!({"priorityClassName": "high", "priority": 1000})
        );
        assert_eq!(ask(ON, json!({})).await.unwrap()["spec"], json!({"priority": 0}));
        assert_eq!(ask("", high.clone()).await.unwrap()["spec"], high);
        let reported = ask(ON, json!({"priorityClassName": "high", "priority": 7})).await.unwrap_err();
        assert!(
            reported.contains("priority set in the pod group (7) must match the priority computed (1000)"),
            "{reported}"
        );
        assert!(
            ask(ON, json!({"priorityClassName": "gone"}))
                .await
                .unwrap_err()
                .contains("no PriorityClass with name gone")
        );
    }
}
