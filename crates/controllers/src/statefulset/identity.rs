//! The identity of a stateful set's pods: name, host name, labels and claims. Pure.
use kelson_client::Object;
use kelson_meta::tree::{items, text};
use serde_json::{Map, Value, json};

use crate::shared::history::HASH_LABEL;
use crate::shared::ownership::controller_ref;
use crate::views::StatefulSetView;

/// The label with the pod's name, with which a service can select one pod.
pub const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// The label with the pod's ordinal.
pub const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// Returns the name of a pod.
pub fn pod_name(set: &StatefulSetView, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.metadata.name)
}

fn template_name(claim: &Value) -> &str {
    text(&claim["metadata"]["name"])
}

fn claim_name(set: &StatefulSetView, claim: &Value, ordinal: i64) -> String {
    format!("{}-{}-{ordinal}", template_name(claim), set.metadata.name)
}

/// Returns the names of a pod's claims.
pub fn claim_names(set: &StatefulSetView, ordinal: i64) -> impl Iterator<Item = String> + '_ {
    set.spec.volume_claim_templates.iter().map(move |c| claim_name(set, c, ordinal))
}

/// Returns a pod's claims for creation: the templates with the claims' names and the set's selector labels.
pub fn claims(set: &StatefulSetView, ordinal: i64) -> Vec<Value> {
    let selected = set.spec.selector.as_ref().map(|s| s.match_labels.clone()).unwrap_or_default();
    let make = |template: &Value| {
        let mut claim = template.clone();
        claim["metadata"]["name"] = json!(claim_name(set, template, ordinal));
        claim["metadata"]["namespace"] = json!(set.metadata.namespace);
        let labels = &mut claim["metadata"]["labels"];
        if !labels.is_object() {
            *labels = json!({});
        }
        for (k, v) in &selected {
            labels[k] = json!(v);
        }
        if let Some(claim) = claim.as_object_mut() {
            claim.remove("status");
        }
        claim
    };
    set.spec.volume_claim_templates.iter().map(make).collect()
}

/// Returns the volumes of a pod: one for each claim, and those of the template that no claim replaces.
fn volumes(set: &StatefulSetView, ordinal: i64, spec: &Value) -> Vec<Value> {
    let templates = &set.spec.volume_claim_templates;
    let claim = |c: &Value| json!({"name": template_name(c), "persistentVolumeClaim": {"claimName": claim_name(set, c, ordinal)}});
    let mut out: Vec<Value> = templates.iter().map(claim).collect();
    let replaced = |v: &&Value| !templates.iter().any(|c| template_name(c) == text(&v["name"]));
    out.extend(items(&spec["volumes"]).iter().filter(replaced).cloned());
    out
}

/// Returns the pod with this ordinal from a revision's template (metadata and spec).
pub fn pod(set: &StatefulSetView, template: &Value, revision: &str, ordinal: i64) -> Value {
    let name = pod_name(set, ordinal);
    let mut labels: Map<String, Value> = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(HASH_LABEL.to_owned(), json!(revision));
    labels.insert(NAME_LABEL.to_owned(), json!(name));
    labels.insert(INDEX_LABEL.to_owned(), json!(ordinal.to_string()));
    let mut spec = template["spec"].clone();
    spec["hostname"] = json!(name);
    spec["subdomain"] = json!(set.spec.service_name);
    let volumes = volumes(set, ordinal, &spec);
    if !volumes.is_empty() {
        spec["volumes"] = json!(volumes);
    }
    let mut metadata = json!({
        "name": name, "generateName": format!("{}-", set.metadata.name), "namespace": set.namespace(),
        "labels": labels, "ownerReferences": [controller_ref(set)],
    });
    for field in ["annotations", "finalizers"] {
        let value = &template["metadata"][field];
        if !value.is_null() {
            metadata[field] = value.clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_claims() {
        let set: StatefulSetView = serde_json::from_str(
            &json!({"metadata": {"name": "web", "namespace": "n", "uid": "u"}, "spec": {"serviceName": "s",
                "selector": {"matchLabels": {"app": "web"}}, "volumeClaimTemplates": [
                    {"metadata": {"name": "data", "labels": {"x": "y"}}, "spec": {"a": 1}, "status": {"phase": "Pending"}}]}})
            .to_string(),
        )
        .unwrap();
        let template = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"n": "v"}},
            "spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}});
        let made = pod(&set, &template, "web-abc", 3);
        assert_eq!(
            (&made["metadata"]["name"], &made["metadata"]["annotations"]),
            (&json!("web-3"), &json!({"n": "v"}))
        );
        assert_eq!(
            made["metadata"]["labels"],
            json!({"app": "web", "controller-revision-hash": "web-abc", "statefulset.kubernetes.io/pod-name": "web-3",
                "apps.kubernetes.io/pod-index": "3"})
        );
        assert_eq!((&made["spec"]["hostname"], &made["spec"]["subdomain"]), (&json!("web-3"), &json!("s")));
        assert_eq!(
            made["spec"]["volumes"],
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-3"}}, {"name": "tmp", "emptyDir": {}}])
        );
        assert_eq!(
            claims(&set, 3),
            [
                json!({"metadata": {"name": "data-web-3", "namespace": "n", "labels": {"x": "y", "app": "web"}}, "spec": {"a": 1}})
            ]
        );
    }

    #[test]
    fn numbers_of_pods() {
        let set = |name: &str| {
            let mut s = StatefulSetView::default();
            s.metadata.name = name.into();
            s
        };
        let rows = [
            ("web", "web-0", Some(0)),
            ("web", "web-12", Some(12)),
            ("web", "web-01", None),
            ("web", "web-+1", None),
            ("web", "web-", None),
            ("web", "web", None),
            ("web", "web-a-1", None),
            ("web", "other-1", None),
            ("web", "web-9999999999", None),
            ("web-1", "web-1-1", Some(1)),
        ];
        for (name, pod, want) in rows {
            assert_eq!(set(name).ordinal_of(pod), want, "{name} {pod}");
        }
    }
}
