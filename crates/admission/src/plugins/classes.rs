//! DefaultStorageClass and DefaultIngressClass: an object without a class gets the default class.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::Status;
use serde_json::Value;

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, set, text};

/// Returns the default among `classes`: the youngest of several, then the first by name.
fn default_of(classes: Vec<Arc<Value>>, annotations: &[&str]) -> Option<String> {
    let is_default = |c: &Value| annotations.iter().any(|a| text(c, &["metadata", "annotations", a]) == "true");
    let mut defaults: Vec<Arc<Value>> = classes.into_iter().filter(|c| is_default(c)).collect();
    defaults.sort_by(|a, b| {
        let age = |c: &Value| text(c, &["metadata", "creationTimestamp"]).to_owned();
        age(b).cmp(&age(a)).then_with(|| text(a, &["metadata", "name"]).cmp(text(b, &["metadata", "name"])))
    });
    defaults.first().map(|c| text(c, &["metadata", "name"]).to_owned())
}

/// Sets the default storage class of claims; see the module.
pub struct DefaultStorageClass {
    objects: Arc<dyn Objects>,
}

impl DefaultStorageClass {
    /// Creates the plugin, which reads storage classes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "persistentvolumeclaims") {
            return Ok(());
        }
        let claim = a.new_object();
        // An empty name is a valid choice: no class.
        let named = !at(claim, &["spec", "storageClassName"]).is_null()
            || !at(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"]).is_null();
        if named {
            return Ok(());
        }
        let classes = self.objects.trees("storage.k8s.io", "storageclasses", "");
        let annotations =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        if let (Some(name), Some(claim)) = (default_of(classes, &annotations), a.object.as_mut()) {
            set(claim, &["spec", "storageClassName"], name.into());
        }
        Ok(())
    }
}

/// Sets the default class of ingresses; see the module.
pub struct DefaultIngressClass {
    objects: Arc<dyn Objects>,
}

impl DefaultIngressClass {
    /// Creates the plugin, which reads ingress classes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("networking.k8s.io", "ingresses") {
            return Ok(());
        }
        let ingress = a.new_object();
        let named = !at(ingress, &["spec", "ingressClassName"]).is_null()
            || !at(ingress, &["metadata", "annotations", "kubernetes.io/ingress.class"]).is_null();
        if named {
            return Ok(());
        }
        let classes = self.objects.trees("networking.k8s.io", "ingressclasses", "");
        let name = default_of(classes, &["ingressclass.kubernetes.io/is-default-class"]);
        if let (Some(name), Some(ingress)) = (name, a.object.as_mut()) {
            set(ingress, &["spec", "ingressClassName"], name.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    #[tokio::test]
    async fn the_youngest_default() {
        let class = |name: &str, made: &str, default: &str| {
            json!({"metadata": {"name": name, "creationTimestamp": made, "annotations": {
                "storageclass.kubernetes.io/is-default-class": default, "ingressclass.kubernetes.io/is-default-class": default}}})
        };
        let d = dependencies(&[
            ("storageclasses//a", class("a", "2026-01-01T00:00:00Z", "true")),
            ("storageclasses//b", class("b", "2026-01-02T00:00:00Z", "true")),
            ("storageclasses//c", class("c", "2026-01-03T00:00:00Z", "false")),
            ("ingressclasses//i", class("i", "2026-01-03T00:00:00Z", "true")),
        ]);
        let claim = |spec: Value| {
            object(DefaultStorageClass::new(&d), Ask::create("/persistentvolumeclaims", json!({"spec": spec})))
        };
        assert_eq!(claim(json!({})).await.unwrap()["spec"]["storageClassName"], "b");
        assert_eq!(claim(json!({"storageClassName": ""})).await.unwrap()["spec"]["storageClassName"], "");
        let ingress = Ask::create("networking.k8s.io/ingresses", json!({"spec": {}}));
        assert_eq!(object(DefaultIngressClass::new(&d), ingress).await.unwrap()["spec"]["ingressClassName"], "i");
        let none = dependencies(&[]);
        let out =
            object(DefaultStorageClass::new(&none), Ask::create("/persistentvolumeclaims", json!({"spec": {}}))).await;
        assert_eq!(out.unwrap(), json!({"spec": {}}));
    }
}
