//! NamespaceAutoProvision: creates a missing namespace when an object is created in it.
use std::sync::Arc;

use async_trait::async_trait;
use kelson_auth::Objects;
use kelson_meta::Status;

use crate::dependencies::NamespaceMaker;
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Operations, Plugin};

/// The plugin; see the module.
pub struct NamespaceAutoProvision {
    objects: Arc<dyn Objects>,
    maker: Arc<dyn NamespaceMaker>,
}

impl NamespaceAutoProvision {
    /// Creates the plugin, which reads and creates namespaces through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone(), maker: d.namespaces.clone() }
    }
}

impl Plugin for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        let in_one = !a.namespace.is_empty() && !a.is("", "namespaces") && !a.dry_run;
        let missing = in_one && self.objects.tree("", "namespaces", "", a.namespace).is_none();
        missing.then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for NamespaceAutoProvision {
    async fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        match self.maker.make(a.namespace).await {
            // Another request may have created it meanwhile.
            Err(status) if status.code == 409 => Ok(()),
            made => made.map_err(|status| a.forbidden(&status.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies_of, object, world};
    use serde_json::json;

    #[tokio::test]
    async fn made_when_first_needed() {
        let world = world(&[("namespaces//a", json!({}))]);
        let d = dependencies_of(world.clone());
        let named = |name: &str| world.0.lock().contains_key(&format!("namespaces//{name}"));
        let ask =
            |resource, ns| object(NamespaceAutoProvision::new(&d), Ask::create(resource, json!({})).named(ns, "x"));
        ask("/secrets", "a").await.unwrap();
        ask("/secrets", "new").await.unwrap();
        assert!(named("new"));
        ask("/namespaces", "own").await.unwrap();
        ask("/nodes", "").await.unwrap();
        assert!(!named("own") && !named(""));
        assert_eq!(
            ask("/secrets", "Bad").await.unwrap_err(),
            "secrets \"x\" is forbidden: Namespace \"Bad\" is invalid"
        );
        let update = Ask::update("/secrets", json!({}), json!({})).named("other", "x");
        object(NamespaceAutoProvision::new(&d), update).await.unwrap();
        assert!(!named("other"));
    }

    #[tokio::test]
    async fn a_dry_run_makes_nothing() {
        let d = dependencies_of(world(&[]));
        let plugin = NamespaceAutoProvision::new(&d);
        let waits = |dry_run| {
            Ask::create("/secrets", json!({})).with(|a| {
                let (object, rounds) = (a.object.clone(), Default::default());
                let a = Attributes { dry_run, object, managed_fields: None, rounds, ..*a };
                plugin.as_async(&a).is_some()
            })
        };
        assert!(waits(false) && !waits(true));
    }
}
