//! RuntimeClass: a pod gets the overhead, node selector and tolerations of its RuntimeClass.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::{Quantity, Status};
use serde_json::Value;

use super::toleration_sets::merged;
use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, list_mut, object_mut, set, strings};

/// The plugin; see the module.
pub struct RuntimeClass {
    objects: Arc<dyn Objects>,
}

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

impl RuntimeClass {
    /// Creates the plugin, which reads runtime classes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }

    /// Returns the pod's class; `None` when the pod names none.
    fn class(&self, a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
        let Some(name) = at(a.new_object(), &["spec", "runtimeClassName"]).as_str() else { return Ok(None) };
        match self.objects.tree("node.k8s.io", "runtimeclasses", "", name) {
            Some(class) => Ok(Some(class)),
            None => Err(a.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found"))),
        }
    }
}

/// Compares resource lists by value, not by spelling.
fn same_resources(a: &Value, b: &Value) -> bool {
    let read = |v: &Value| -> Vec<(String, Option<i128>)> {
        strings(v, &[]).map(|(k, q)| (k.to_owned(), q.parse::<Quantity>().ok().map(Quantity::nanos))).collect()
    };
    read(a) == read(b)
}

impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let Some(class) = self.class(a)? else { return Ok(()) };
        let overhead = at(&class, &["overhead", "podFixed"]);
        let own = at(a.new_object(), &["spec", "overhead"]);
        if !at(&class, &["overhead"]).is_null() {
            if own.as_object().is_some_and(|o| !o.is_empty()) && !same_resources(own, overhead) {
                return Err(a.forbidden(MISMATCH));
            }
            if let Some(pod) = a.object.as_mut().filter(|_| !overhead.is_null()) {
                set(pod, &["spec", "overhead"], overhead.clone());
            }
        }
        for (key, wanted) in strings(&class, &["scheduling", "nodeSelector"]) {
            let own = at(a.new_object(), &["spec", "nodeSelector", key]).as_str();
            if let Some(own) = own.filter(|o| *o != wanted) {
                return Err(a.forbidden(&format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {own}"
                )));
            }
        }
        let Some(pod) = a.object.as_mut() else { return Ok(()) };
        for (key, wanted) in strings(&class, &["scheduling", "nodeSelector"]) {
            if let Some(selector) = object_mut(pod, &["spec", "nodeSelector"]) {
                selector.insert(key.to_owned(), wanted.into());
            }
        }
        let of_class = list(&class, &["scheduling", "tolerations"]);
        if let Some(tolerations) = list_mut(pod, &["spec", "tolerations"]).filter(|_| !of_class.is_empty()) {
            *tolerations = merged(tolerations, of_class);
        }
        Ok(())
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let class = self.class(a)?.unwrap_or_default();
        let own = at(a.new_object(), &["spec", "overhead"]);
        if at(&class, &["overhead"]).is_null() {
            if own.is_null() {
                return Ok(());
            }
            return Err(
                a.forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
            );
        }
        if same_resources(own, at(&class, &["overhead", "podFixed"])) { Ok(()) } else { Err(a.forbidden(MISMATCH)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    #[tokio::test]
    async fn overhead_and_scheduling() {
        let kata = json!({"overhead": {"podFixed": {"cpu": "100m"}}, "scheduling": {"nodeSelector": {"k": "v"},
            "tolerations": [{"key": "t", "operator": "Exists"}]}});
        let d = dependencies(&[("runtimeclasses//kata", kata), ("runtimeclasses//plain", json!({}))]);
        let ask =
            |spec: Value| object(RuntimeClass::new(&d), Ask::pod(json!({"metadata": {"name": "p"}, "spec": spec})));
        let out = ask(json!({"runtimeClassName": "kata", "overhead": {"cpu": "0.1"}, "nodeSelector": {"a": "b"}}))
            .await
            .unwrap();
        assert_eq!(out["spec"]["overhead"], json!({"cpu": "100m"}));
        assert_eq!(out["spec"]["nodeSelector"], json!({"a": "b", "k": "v"}));
        assert_eq!(out["spec"]["tolerations"][0]["key"], "t");
        let wider = json!([{"key": "t", "operator": "Equal", "value": "v"}, {"operator": "Exists", "key": "u"}]);
        let out = ask(json!({"runtimeClassName": "kata", "tolerations": wider})).await.unwrap();
        let kept = json!([{"operator": "Exists", "key": "u"}, {"key": "t", "operator": "Exists"}]);
        assert_eq!(out["spec"]["tolerations"], kept, "the class' toleration contains the pod's own");
        assert!(ask(json!({"runtimeClassName": "plain"})).await.is_ok() && ask(json!({})).await.is_ok());
        for (spec, text) in [
            (
                json!({"runtimeClassName": "none"}),
                "pods \"p\" is forbidden: pod rejected: RuntimeClass \"none\" not found",
            ),
            (json!({"runtimeClassName": "kata", "overhead": {"cpu": "1"}}), MISMATCH),
            (
                json!({"runtimeClassName": "kata", "nodeSelector": {"k": "x"}}),
                "conflict: runtimeClass.scheduling.nodeSelector[k] = v; pod.spec.nodeSelector[k] = x",
            ),
            (json!({"overhead": {"cpu": "1"}}), "Pod Overhead set without corresponding RuntimeClass"),
        ] {
            let e = ask(spec).await.unwrap_err();
            assert!(e.contains(text), "{e}");
        }
    }
}
