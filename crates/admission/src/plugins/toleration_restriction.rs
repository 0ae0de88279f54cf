//! PodTolerationRestriction: a namespace's annotations, or else the configuration, set the default tolerations of its
//! pods and the allowed ones (`podtolerationrestriction.admission.k8s.io/v1alpha1`).
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_codec::strict::Shape;
use kelson_meta::tree::path::{at, list, list_mut, text};
use kelson_meta::{GroupResource, Status};
use kelson_quota::PodLevel;
use serde_json::{Value, json};

use super::toleration_sets::{contains, merged};
use crate::configuration::Part;
use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// The plugin; see the module.
pub struct PodTolerationRestriction {
    objects: Arc<dyn Objects>,
    /// The cluster's default tolerations, for namespaces without the annotation.
    defaults: Vec<Value>,
    allowed: Vec<Value>,
    /// Whether the feature PodLevelResources is enabled.
    pod_level: PodLevel,
}

const TOLERATIONS: Shape = Shape::List(&Shape::Object(&[
    ("key", Shape::Text),
    ("operator", Shape::Text),
    ("value", Shape::Text),
    ("effect", Shape::Text),
    ("tolerationSeconds", Shape::Number),
]));

impl PodTolerationRestriction {
    /// Creates the plugin from its section of the configuration, if there is one.
    ///
    /// # Errors
    /// The section is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        Part { group: "podtolerationrestriction.admission.k8s.io", versions: &["v1alpha1"], kinds: &["Configuration"] }
            .check(configuration, &[("default", TOLERATIONS), ("whitelist", TOLERATIONS)])?;
        let read = |field: &str| -> Result<Vec<Value>, String> {
            let all = list(configuration, &[field]).to_vec();
            match all.iter().position(|t| !is_toleration(t)) {
                Some(i) => {
                    Err(format!("invalid config: podtolerationrestriction.{field}[{i}]: Invalid value: {}", all[i]))
                }
                None => Ok(all),
            }
        };
        let pod_level = PodLevel::of(d.gates.enabled("PodLevelResources"));
        Ok(Self { objects: d.objects.clone(), defaults: read("default")?, allowed: read("whitelist")?, pod_level })
    }

    /// Returns the tolerations in a namespace's annotation; `None` when it has none.
    fn annotated(&self, a: &Attributes<'_>, key: &str) -> Result<Option<Vec<Value>>, Status> {
        let namespace = self.objects.tree("", "namespaces", "", a.namespace);
        let namespace =
            namespace.ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), a.namespace))?;
        match at(&namespace, &["metadata", "annotations", key]).as_str() {
            None => Ok(None),
            Some("") => Ok(Some(Vec::new())),
            Some(given) => {
                let read: Result<Vec<Value>, _> = serde_json::from_str(given);
                let unreadable = |why: &dyn std::fmt::Display| {
                    a.forbidden(&format!(
                        "annotation {key} of namespace {:?} must be a list of tolerations: {why}",
                        a.namespace
                    ))
                };
                let read = read.map_err(|e| unreadable(&e))?;
                if read.iter().all(is_toleration) { Ok(Some(read)) } else { Err(unreadable(&given)) }
            }
        }
    }

    fn check(&self, a: &Attributes<'_>) -> Result<(), Status> {
        let own = list(a.new_object(), &["spec", "tolerations"]);
        if own.is_empty() {
            return Ok(());
        }
        let (allowed, scope) = match self.annotated(a, ALLOWED)? {
            Some(allowed) => (allowed, "namespace"),
            None => (self.allowed.clone(), "cluster"),
        };
        if allowed.is_empty() || own.iter().all(|t| allowed.iter().any(|wide| contains(wide, t))) {
            return Ok(());
        }
        Err(a.forbidden(&format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {scope} whitelist"
        )))
    }
}

fn is_toleration(value: &Value) -> bool {
    let known = matches!(text(value, &["operator"]), "" | "Equal" | "Exists" | "Gt" | "Lt")
        && matches!(text(value, &["effect"]), "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute");
    let any_key = !text(value, &["key"]).is_empty() || text(value, &["operator"]) == "Exists";
    value.is_object() && known && any_key
}

impl Plugin for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let mut extra = match a.operation {
            Operation::Create => self.annotated(a, DEFAULTS)?.unwrap_or_else(|| self.defaults.clone()),
            _ => Vec::new(),
        };
        // Only best-effort pods are not scheduled on a node with memory pressure.
        if !kelson_quota::is_best_effort(a.new_object(), self.pod_level) {
            extra.push(json!({"key": MEMORY_PRESSURE, "operator": "Exists", "effect": "NoSchedule"}));
        }
        if let Some(tolerations) = a.object.as_mut().filter(|_| !extra.is_empty()) {
            let tolerations = list_mut(tolerations, &["spec", "tolerations"]);
            if let Some(tolerations) = tolerations {
                *tolerations = merged(tolerations, &extra);
            }
        }
        self.check(a)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if a.is_main("", "pods") { self.check(a) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};

    #[tokio::test]
    async fn defaults_and_what_is_allowed() {
        let annotated = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value.to_string()}}});
        let t = |key: &str| json!({"key": key, "operator": "Exists"});
        let d = dependencies(&[
            ("namespaces//defaults", annotated(DEFAULTS, json!([t("own")]))),
            ("namespaces//allowed", annotated(ALLOWED, json!([t("own")]))),
            ("namespaces//none", json!({"metadata": {"annotations": {DEFAULTS: "", ALLOWED: ""}}})),
            ("namespaces//broken", annotated(DEFAULTS, json!([{"operator": "Is"}]))),
            ("namespaces//plain", json!({})),
        ]);
        let configuration = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1",
            "kind": "Configuration", "default": [t("cluster")], "whitelist": [t("cluster"), t("own"), t(MEMORY_PRESSURE)]});
        let ask = async |namespace: &'static str, tolerations: Value, requests: Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"tolerations": tolerations,
                "containers": [{"name": "c", "resources": {"requests": requests}}]}});
            let plugin = PodTolerationRestriction::new(&d, &configuration).unwrap();
            let admitted = object(plugin, Ask::pod(pod).named(namespace, "p")).await?;
            let keys = list(&admitted, &["spec", "tolerations"]).iter().map(|t| text(t, &["key"]).to_owned());
            Ok::<_, String>(keys.collect::<Vec<_>>())
        };
        let none = || json!({});
        assert_eq!(ask("plain", json!([]), none()).await.unwrap(), ["cluster"]);
        assert_eq!(ask("plain", json!([]), json!({"cpu": "1"})).await.unwrap(), ["cluster", MEMORY_PRESSURE]);
        assert_eq!(ask("defaults", json!([]), none()).await.unwrap(), ["own"]);
        assert_eq!(ask("none", json!([t("any")]), none()).await.unwrap(), ["any"]);
        assert_eq!(
            ask("allowed", json!([t("own")]), none()).await.unwrap_err(),
            "pods \"p\" is forbidden: pod tolerations (possibly merged with namespace default tolerations) conflict \
             with its namespace whitelist"
        );
        assert!(ask("plain", json!([t("x")]), none()).await.unwrap_err().ends_with("its cluster whitelist"));
        assert!(ask("broken", json!([]), none()).await.unwrap_err().contains("must be a list of tolerations"));
        assert_eq!(ask("gone", json!([]), none()).await.unwrap_err(), "namespaces \"gone\" not found");
    }

    #[test]
    fn configurations() {
        let d = dependencies(&[]);
        for (configuration, want) in [
            (json!({"default": [{"operator": "Is"}]}), "invalid config: podtolerationrestriction.default[0]"),
            (json!({"whitelist": [{"key": "k", "effect": "Now"}]}), "podtolerationrestriction.whitelist[0]"),
            (json!({"defaults": []}), "unknown field \"defaults\""),
        ] {
            let why = PodTolerationRestriction::new(&d, &configuration).err().unwrap();
            assert!(why.contains(want), "{why}");
        }
    }
}
