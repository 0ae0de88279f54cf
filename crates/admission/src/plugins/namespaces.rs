//! NamespaceLifecycle: rejects creates in a namespace that does not exist or is terminating, and deletes of the three
//! system namespaces. NamespaceExists: only the check for existence.
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::{GroupResource, Status, StatusCause};

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::text;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

fn missing(name: &str) -> Status {
    Status::not_found(&GroupResource::new("", "namespaces"), name)
}

/// The plugin NamespaceLifecycle; see the module.
pub struct NamespaceLifecycle {
    objects: Arc<dyn Objects>,
}

impl NamespaceLifecycle {
    /// Creates the plugin, which reads namespaces through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }

    fn check(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let is_namespace = a.is("", "namespaces");
        if is_namespace {
            // Subresources are excluded: a namespace's own are handled by its controller.
            if a.operation == Operation::Delete && a.subresource.is_empty() && IMMORTAL.contains(&a.name) {
                return Err(Status::forbidden(
                    &GroupResource::new("", "namespaces"),
                    a.name,
                    "this namespace may not be deleted",
                ));
            }
            return Ok(());
        }
        // An answer that depends on whether the namespace exists would reveal that to anyone who may create a review.
        let review = a.is("authorization.k8s.io", "localsubjectaccessreviews");
        if a.namespace.is_empty() || a.operation == Operation::Delete || review {
            return Ok(());
        }
        let Some(namespace) = self.objects.tree("", "namespaces", "", a.namespace) else {
            return Err(missing(a.namespace));
        };
        if a.operation != Operation::Create || text(&namespace, &["status", "phase"]) != "Terminating" {
            return Ok(());
        }
        let mut status = a.forbidden(&format!(
            "unable to create new content in namespace {} because it is being terminated",
            a.namespace
        ));
        status.details.get_or_insert_default().causes.push(StatusCause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {} is being terminated", a.namespace),
            field: "metadata.namespace".into(),
        });
        Err(status)
    }
}

impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.or(Operations::DELETE).contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        self.check(a)
    }
}

/// Rejects requests in namespaces that do not exist.
pub struct NamespaceExists {
    objects: Arc<dyn Objects>,
}

impl NamespaceExists {
    /// Creates the plugin, which reads namespaces through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.or(Operations::DELETE).contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if a.namespace.is_empty() || a.is("", "namespaces") {
            return Ok(());
        }
        match self.objects.get("", "namespaces", "", a.namespace) {
            Some(_) => Ok(()),
            None => Err(missing(a.namespace)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object, run};
    use serde_json::json;

    #[tokio::test]
    async fn lifecycle() {
        let d = dependencies(&[
            ("namespaces//a", json!({"status": {"phase": "Active"}})),
            ("namespaces//dying", json!({"status": {"phase": "Terminating"}})),
        ]);
        let plugin = || NamespaceLifecycle::new(&d);
        let secret = || json!({"kind": "Secret", "metadata": {"name": "s"}});
        assert!(object(plugin(), Ask::create("/secrets", secret())).await.is_ok());
        let gone = Ask::create("/secrets", secret()).named("gone", "s");
        assert_eq!(object(plugin(), gone).await.unwrap_err(), "namespaces \"gone\" not found");
        let refused = run(plugin(), Ask::create("/secrets", secret()).named("dying", "s")).await.err().unwrap();
        assert_eq!(
            refused.message,
            "secrets \"s\" is forbidden: unable to create new content in namespace dying because it is being terminated"
        );
        let cause = &refused.details.unwrap().causes[0];
        assert_eq!((cause.reason.as_str(), cause.field.as_str()), ("NamespaceTerminating", "metadata.namespace"));
        let update = Ask::update("/secrets", secret(), secret()).named("dying", "s");
        assert!(object(plugin(), update).await.is_ok());
        let delete = |ns, name, resource| Ask {
            operation: Operation::Delete,
            object: None,
            ..Ask::create(resource, json!({})).named(ns, name)
        };
        assert!(object(plugin(), delete("gone", "s", "/secrets")).await.is_ok());
        assert_eq!(
            object(plugin(), delete("default", "default", "/namespaces")).await.unwrap_err(),
            "namespaces \"default\" is forbidden: this namespace may not be deleted"
        );
        assert!(object(plugin(), delete("a", "a", "/namespaces")).await.is_ok());
        let review = Ask::create("authorization.k8s.io/localsubjectaccessreviews", json!({})).named("gone", "");
        assert!(object(plugin(), review).await.is_ok());
        assert!(object(plugin(), Ask::create("/nodes", json!({})).named("", "n")).await.is_ok());
        assert!(object(NamespaceExists::new(&d), Ask::create("/secrets", secret()).named("gone", "")).await.is_err());
        assert!(object(NamespaceExists::new(&d), Ask::create("/secrets", secret())).await.is_ok());
    }
}
