//! Taints and tolerations that are added automatically: DefaultTolerationSeconds, ExtendedResourceToleration,
//! TaintNodesByCondition.
use std::collections::BTreeSet;

use kelson_meta::{Status, is_qualified_name};
use serde_json::{Value, json};

use crate::containers::{ContainerKind, containers};
use crate::{Attributes, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, list_mut, text};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Adds tolerations with which pods leave a failed node after a configured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultTolerationSeconds {
    /// The value of `--default-not-ready-toleration-seconds`.
    pub not_ready_seconds: i64,
    /// The value of `--default-unreachable-toleration-seconds`.
    pub unreachable_seconds: i64,
}

impl Default for DefaultTolerationSeconds {
    fn default() -> Self {
        Self { not_ready_seconds: 300, unreachable_seconds: 300 }
    }
}

impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let Some(pod) = a.object.as_mut() else { return Ok(()) };
        for (key, seconds) in [(NOT_READY, self.not_ready_seconds), (UNREACHABLE, self.unreachable_seconds)] {
            let tolerated = list(pod, &["spec", "tolerations"]).iter().any(|t| {
                matches!(text(t, &["effect"]), "" | "NoExecute")
                    && (text(t, &["key"]).is_empty() || text(t, &["key"]) == key)
            });
            if !tolerated && let Some(tolerations) = list_mut(pod, &["spec", "tolerations"]) {
                let toleration: [(&str, Value); 4] = [
                    ("effect", "NoExecute".into()),
                    ("key", key.into()),
                    ("operator", "Exists".into()),
                    ("tolerationSeconds", seconds.into()),
                ];
                tolerations.push(toleration.into_iter().collect());
            }
        }
        Ok(())
    }
}

/// Pods that request an extended resource tolerate the taints of nodes dedicated to it.
pub struct ExtendedResourceToleration;

/// Reports whether a name is that of an extended resource (upstream `helper.IsExtendedResourceName`).
pub(crate) fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && is_qualified_name(&format!("requests.{name}")).is_ok()
}

impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let wanted: BTreeSet<String> = containers(at(a.new_object(), &["spec"]))
            .filter(|(kind, ..)| match kind {
                ContainerKind::Init | ContainerKind::Regular => true,
                // Ephemeral containers may not request resources.
                ContainerKind::Ephemeral => false,
            })
            .filter_map(|(_, _, c)| at(c, &["resources", "requests"]).as_object())
            .flat_map(|requests| requests.keys().filter(|k| is_extended_resource(k)).cloned())
            .collect();
        let Some(pod) = a.object.as_mut() else { return Ok(()) };
        for resource in wanted {
            let new = json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"});
            let Some(tolerations) = list_mut(pod, &["spec", "tolerations"]) else { return Ok(()) };
            if !tolerations.iter().any(|t| same_toleration(t, &new)) {
                tolerations.push(new);
            }
        }
        Ok(())
    }
}

/// Compares key, operator, effect and value; the seconds do not count.
fn same_toleration(a: &Value, b: &Value) -> bool {
    ["key", "operator", "effect", "value"].iter().all(|f| text(a, &[f]) == text(b, &[f]))
}

/// Adds the not-ready taint to new nodes, so that no pods are scheduled on them before they are ready.
pub struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::CREATE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "nodes") {
            return Ok(());
        }
        let Some(node) = a.object.as_mut() else { return Ok(()) };
        let tainted = list(node, &["spec", "taints"])
            .iter()
            .any(|t| text(t, &["key"]) == NOT_READY && text(t, &["effect"]) == "NoSchedule");
        if !tainted && let Some(taints) = list_mut(node, &["spec", "taints"]) {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, object};

    #[tokio::test]
    async fn additions() {
        let seconds = || DefaultTolerationSeconds::default();
        let out = object(seconds(), Ask::pod(json!({"spec": {}}))).await.unwrap();
        assert_eq!(
            out["spec"]["tolerations"],
            json!([{"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}])
        );
        let all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        assert_eq!(object(seconds(), Ask::pod(all.clone())).await.unwrap(), all);
        let own = json!({"spec": {"tolerations": [{"key": NOT_READY, "effect": "NoSchedule"}]}});
        assert_eq!(object(seconds(), Ask::pod(own)).await.unwrap()["spec"]["tolerations"].as_array().unwrap().len(), 3);

        let gpu = json!({"spec": {"initContainers": [{"resources": {"requests": {"a.io/x": "1"}}}],
            "containers": [{"resources": {"requests": {"cpu": "1", "x.kubernetes.io/y": "1", "b.io/gpu": "1"}}}]}});
        let out = object(ExtendedResourceToleration, Ask::pod(gpu)).await.unwrap();
        let keys: Vec<_> = list(&out, &["spec", "tolerations"]).iter().map(|t| text(t, &["key"])).collect();
        assert_eq!(keys, ["a.io/x", "b.io/gpu"]);

        let out =
            object(TaintNodesByCondition, Ask::create("/nodes", json!({"metadata": {"name": "n"}}))).await.unwrap();
        assert_eq!(out["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
        assert_eq!(object(TaintNodesByCondition, Ask::create("/nodes", out.clone())).await.unwrap(), out);
    }
}
