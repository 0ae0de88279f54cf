//! Checks updates of pods against their node. PodResizeValidator: the node has room for the new requests.
//! NodeDeclaredFeatureValidator: the node declares the features that the update needs (KEP-5328).
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::tree::path::{at, list, text};
use kelson_meta::{Quantity, Status, StatusCause};
use serde_json::Value;

use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};

/// Returns the node of a pod that an update changes; `None` when no check is needed.
fn node_of(a: &Attributes<'_>, objects: &dyn Objects) -> Result<Option<Arc<Value>>, Status> {
    let name = text(a.new_object(), &["spec", "nodeName"]);
    let generation = |pod| at(pod, &["metadata", "generation"]).as_i64();
    if name.is_empty() || generation(a.new_object()) == generation(a.stored()) {
        return Ok(None);
    }
    let node = objects.tree("", "nodes", "", name);
    node.map(Some).ok_or_else(|| a.forbidden(&format!("node {name:?} not found")))
}

/// Checks that the node has room for a resize; see the module.
pub struct PodResizeValidator {
    objects: Arc<dyn Objects>,
}

impl PodResizeValidator {
    /// Creates the plugin, which reads nodes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

fn refused(a: &Attributes<'_>, why: &str, cause: &str) -> Status {
    let mut status = a.forbidden(why);
    let cause = StatusCause { reason: cause.to_owned(), ..StatusCause::default() };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::UPDATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is("", "pods") || a.subresource != "resize" {
            return Ok(());
        }
        let Some(node) = node_of(a, self.objects.as_ref())? else { return Ok(()) };
        let name = text(a.new_object(), &["spec", "nodeName"]);
        let os = text(&node, &["metadata", "labels", "kubernetes.io/os"]);
        if !matches!(os, "" | "linux") {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
            return Err(refused(a, &why, "UnsupportedPlatform"));
        }
        let requests = kelson_quota::wanted(a.new_object());
        let amount = |name: &str| requests.0.get(name).copied().unwrap_or_default();
        let room = |name: &str| text(&node, &["status", "allocatable", name]).parse::<Quantity>().unwrap_or_default();
        let mut short = Vec::new();
        let (cpu, memory) = (("cpu", amount("cpu"), room("cpu")), ("memory", amount("memory"), room("memory")));
        if cpu.1 > cpu.2 {
            short.push(format!("cpu, requested: {}, allocatable: {}", cpu.1.milli_value(), cpu.2.milli_value()));
        }
        if memory.1 > memory.2 {
            short.push(format!("memory, requested: {}, allocatable: {}", memory.1.value(), memory.2.value()));
        }
        if short.is_empty() {
            return Ok(());
        }
        let why = format!("node didn't have enough allocatable resources: {}", short.join("; "));
        Err(refused(a, &why, "NodeCapacity"))
    }
}

/// A node feature, and a predicate for updates of a pod's spec that need it.
type Feature = (&'static str, fn(&Value, &Value) -> bool);

/// The features that updates may need, by name.
const FEATURES: [Feature; 2] = [
    ("InPlacePodLevelResourcesVerticalScaling", |old, new| at(old, &["resources"]) != at(new, &["resources"])),
    ("InPlacePodVerticalScalingInitContainers", |old, new| {
        let new = list(new, &["initContainers"]);
        let changed = |(i, c): (usize, &Value)| {
            let now = new.get(i).map_or(&Value::Null, |n| at(n, &["resources"]));
            text(c, &["restartPolicy"]) != "Always" && at(c, &["resources"]) != now
        };
        list(old, &["initContainers"]).iter().enumerate().any(changed)
    }),
];

/// Checks the features of the node; see the module.
pub struct NodeDeclaredFeatureValidator {
    objects: Arc<dyn Objects>,
}

impl NodeDeclaredFeatureValidator {
    /// Creates the plugin, which reads nodes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone() }
    }
}

impl Plugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::UPDATE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is("", "pods") || !matches!(a.subresource, "" | "resize") {
            return Ok(());
        }
        let (old, new) = (at(a.stored(), &["spec"]), at(a.new_object(), &["spec"]));
        let needed: Vec<&str> = FEATURES.iter().filter(|(_, needs)| needs(old, new)).map(|(name, _)| *name).collect();
        if needed.is_empty() {
            return Ok(());
        }
        let Some(node) = node_of(a, self.objects.as_ref())? else { return Ok(()) };
        let declared = list(&node, &["status", "declaredFeatures"]);
        let missing: Vec<&str> = needed.into_iter().filter(|name| !declared.iter().any(|d| d == name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(a.forbidden(&format!(
            "pod update requires features {} which are not available on node {:?}",
            missing.join(", "),
            text(new, &["nodeName"])
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, run};
    use serde_json::json;

    fn pod(generation: i64, node: &str, spec: Value) -> Value {
        let mut spec = spec;
        spec["nodeName"] = node.into();
        json!({"metadata": {"name": "p", "generation": generation}, "spec": spec})
    }

    fn asks(cpu: &str, memory: &str) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]})
    }

    #[tokio::test]
    async fn resizes_fit_their_node() {
        let node = |os: &str| {
            json!({"metadata": {"labels": {"kubernetes.io/os": os}},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}})
        };
        let d = dependencies(&[("nodes//n", node("linux")), ("nodes//w", node("windows"))]);
        let ask = async |resource, new: Value| {
            let ask = Ask::update(resource, pod(1, "n", asks("1", "1Mi")), new);
            run(PodResizeValidator::new(&d), ask).await.map(drop)
        };
        const RESIZE: &str = "/pods/resize";
        ask(RESIZE, pod(2, "n", asks("2", "1Gi"))).await.unwrap();
        ask(RESIZE, pod(1, "n", asks("9", "9Gi"))).await.unwrap();
        ask(RESIZE, pod(2, "", asks("9", "9Gi"))).await.unwrap();
        ask("/pods", pod(2, "n", asks("9", "9Gi"))).await.unwrap();
        let refused = ask(RESIZE, pod(2, "n", asks("2100m", "2Gi"))).await.unwrap_err();
        assert!(refused.message.ends_with(
            "node didn't have enough allocatable resources: cpu, requested: 2100, allocatable: 2000; memory, requested: \
             2147483648, allocatable: 1073741824"
        ));
        assert_eq!(refused.details.unwrap().causes[0].reason, "NodeCapacity");
        let refused = ask(RESIZE, pod(2, "w", asks("1", "1Mi"))).await.unwrap_err();
        assert!(refused.message.ends_with("pod resize is only supported on linux nodes, node \"w\" is \"windows\""));
        assert_eq!(refused.details.unwrap().causes[0].reason, "UnsupportedPlatform");
        assert!(
            ask(RESIZE, pod(2, "x", asks("1", "1Mi"))).await.unwrap_err().message.ends_with("node \"x\" not found")
        );
    }

    #[tokio::test]
    async fn changes_need_declared_features() {
        let d = dependencies(&[
            ("nodes//old", json!({})),
            ("nodes//new", json!({"status": {"declaredFeatures": FEATURES.map(|(name, _)| name)}})),
        ]);
        let init = |policy: &str, cpu: &str| json!({"initContainers": [{"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}}]});
        let whole = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        for (node, old, new, want) in [
            ("old", json!({}), json!({}), ""),
            ("old", init("Always", "1"), init("Always", "2"), ""),
            ("old", init("", "1"), init("", "2"), "InPlacePodVerticalScalingInitContainers"),
            ("old", whole("1"), whole("2"), "InPlacePodLevelResourcesVerticalScaling"),
            ("new", init("", "1"), init("", "2"), ""),
            ("new", whole("1"), whole("2"), ""),
        ] {
            let ask = Ask::update("/pods/resize", pod(1, node, old), pod(2, node, new.clone()));
            let outcome = run(NodeDeclaredFeatureValidator::new(&d), ask).await.map(drop).map_err(|s| s.message);
            match want {
                "" => assert_eq!(outcome, Ok(()), "{new}"),
                want => assert!(outcome.unwrap_err().ends_with(&format!(
                    "pod update requires features {want} which are not available on node \"old\""
                ))),
            }
        }
        let ask = Ask::update("/pods/resize", pod(1, "old", whole("1")), pod(1, "old", whole("2")));
        run(NodeDeclaredFeatureValidator::new(&d), ask).await.unwrap();
    }
}
