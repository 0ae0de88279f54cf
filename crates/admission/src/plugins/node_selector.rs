//! PodNodeSelector: a namespace's annotation restricts the nodes of its pods.
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::{GroupResource, Status};
use serde_json::Value;

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{object_mut, strings, text};

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
/// The key of the configuration for namespaces without the annotation.
const DEFAULT_KEY: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// The plugin; see the module.
pub struct PodNodeSelector {
    objects: Arc<dyn Objects>,
    /// `podNodeSelectorPluginConfig`: the cluster default, and the allowed labels of each namespace.
    configured: BTreeMap<String, Labels>,
}

/// Parses labels of the form `a=b,c=d`.
fn parse(selector: &str) -> Result<Labels, String> {
    let pairs = selector.split(',').map(str::trim).filter(|p| !p.is_empty());
    pairs
        .map(|p| {
            let (k, v) = p.split_once('=').ok_or_else(|| format!("invalid selector: {selector:?}"))?;
            Ok((k.trim().to_owned(), v.trim_start_matches('=').trim().to_owned()))
        })
        .collect()
}

impl PodNodeSelector {
    /// Creates the plugin from its section of the configuration file.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        let mut configured = BTreeMap::new();
        for (key, selector) in strings(configuration, &["podNodeSelectorPluginConfig"]) {
            configured.insert(key.to_owned(), parse(selector)?);
        }
        Ok(Self { objects: d.objects.clone(), configured })
    }

    /// Returns the node labels that a namespace requires.
    fn demanded(&self, a: &Attributes<'_>) -> Result<Labels, Status> {
        let namespace = self
            .objects
            .tree("", "namespaces", "", a.namespace)
            .ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), a.namespace))?;
        match text(&namespace, &["metadata", "annotations", ANNOTATION]) {
            "" => Ok(self.configured.get(DEFAULT_KEY).cloned().unwrap_or_default()),
            selector => parse(selector).map_err(|e| a.forbidden(&e)),
        }
    }

    fn check(&self, a: &Attributes<'_>, demanded: &Labels) -> Result<(), Status> {
        let own: Labels =
            strings(a.new_object(), &["spec", "nodeSelector"]).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        if demanded.iter().any(|(k, v)| own.get(k).is_some_and(|o| o != v)) {
            return Err(a.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        let allowed = self.configured.get(a.namespace).filter(|l| !l.is_empty());
        if allowed.is_some_and(|l| own.iter().chain(demanded).any(|(k, v)| l.get(k) != Some(v))) {
            return Err(a.forbidden("pod node label selector labels conflict with its namespace whitelist"));
        }
        Ok(())
    }
}

impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let demanded = self.demanded(a)?;
        self.check(a, &demanded)?;
        if demanded.is_empty() {
            return Ok(());
        }
        if let Some(selector) = a.object.as_mut().and_then(|pod| object_mut(pod, &["spec", "nodeSelector"])) {
            selector.extend(demanded.into_iter().map(|(k, v)| (k, v.into())));
        }
        Ok(())
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if a.is_main("", "pods") { self.check(a, &self.demanded(a)?) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    #[tokio::test]
    async fn annotation_default_and_allowed() {
        let d = dependencies(&[
            ("namespaces//a", json!({"metadata": {"annotations": {ANNOTATION: "env=test,disk=ssd"}}})),
            ("namespaces//b", json!({})),
        ]);
        let configuration = json!({"podNodeSelectorPluginConfig": {DEFAULT_KEY: "env=any", "b": "env=any"}});
        let ask = |ns: &'static str, selector: Value| {
            let plugin = PodNodeSelector::new(&d, &configuration).unwrap();
            object(plugin, Ask::pod(json!({"spec": {"nodeSelector": selector}})).named(ns, "p"))
        };
        assert_eq!(ask("a", json!({})).await.unwrap()["spec"]["nodeSelector"], json!({"env": "test", "disk": "ssd"}));
        assert!(
            ask("a", json!({"env": "prod"}))
                .await
                .unwrap_err()
                .contains("conflicts with its namespace node label selector")
        );
        assert_eq!(ask("b", json!({})).await.unwrap()["spec"]["nodeSelector"], json!({"env": "any"}));
        assert!(ask("b", json!({"x": "y"})).await.unwrap_err().contains("whitelist"));
        assert!(PodNodeSelector::new(&d, &json!({"podNodeSelectorPluginConfig": {"a": "junk"}})).is_err());
    }
}
