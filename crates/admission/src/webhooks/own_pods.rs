//! Warns about a webhook that must be called before its own pods can be created: once the last of them is gone, none
//! can be created again.
use kelson_auth::UserInfo;
use kelson_meta::tree::path::{at, strings};
use kelson_meta::{Gvk, Gvr};
use kelson_webhook::Location;
use serde_json::{Map, Value, json};

use super::hook::{Configuration, Hook};
use crate::{Attributes, Dependencies, Notes, Operation};

/// Adds a warning for each webhook of a configuration that matches pods of its service with `failurePolicy: Fail`.
pub fn warn(d: &Dependencies, configuration: &Configuration, notes: &mut Notes) {
    for hook in configuration.hooks().iter().filter(|h| !h.ignores_failures) {
        let Ok(target) = &hook.target else { continue };
        let Location::Service { namespace, name, .. } = &target.location else { continue };
        // A condition may exclude them, which cannot be determined here.
        if hook.conditions.is_empty() && judges(d, hook, namespace, name) {
            notes.warn(format!(
                "webhook {:?} matches pods of its service {namespace}/{name} with failurePolicy Fail: when no pod of the service runs, none can be created; exclude them with namespaceSelector or objectSelector",
                hook.name
            ));
        }
    }
}

/// Reports whether the webhook matches the creation of a pod that the service selects.
fn judges(d: &Dependencies, hook: &Hook, namespace: &str, service: &str) -> bool {
    let service = d.objects.tree("", "services", namespace, service).unwrap_or_default();
    let labels: Map<String, Value> =
        strings(at(&service, &["spec"]), &["selector"]).map(|(k, v)| (k.to_owned(), v.into())).collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "labels": labels}});
    let (kind, resource, user) = (Gvk::new("", "v1", "Pod"), Gvr::new("", "v1", "pods"), UserInfo::default());
    let a = Attributes {
        operation: Operation::Create,
        kind: &kind,
        resource: &resource,
        subresource: "",
        namespace,
        name: "",
        object: Some(pod),
        managed_fields: None,
        old_object: None,
        user: &user,
        dry_run: false,
        explained: false,
        options: Default::default(),
        rounds: Default::default(),
        deadline: None,
    };
    // A namespace that does not exist has no pods yet, and its labels are not known.
    matches!(hook.criteria.matches(&a, d.objects.as_ref(), d.versions.as_ref()), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dependencies;

    #[test]
    fn of_webhooks_that_stop_their_own_pods() {
        let d = dependencies(&[
            ("namespaces//n", json!({"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}}})),
            ("services/n/s", json!({"spec": {"selector": {"app": "hook"}}})),
        ]);
        let hook = |change: &dyn Fn(&mut Value)| {
            let mut hook = json!({"name": "h.example.com", "clientConfig": {"service": {"namespace": "n", "name": "s"}},
                "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
            change(&mut hook);
            let mut notes = Notes::default();
            warn(&d, &Configuration::parse(&json!({"metadata": {"name": "c"}, "webhooks": [hook]})), &mut notes);
            notes.warnings.len()
        };
        let not = |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]});
        assert_eq!(hook(&|_| {}), 1);
        assert_eq!(hook(&|h| h["rules"][0]["resources"] = json!(["*"])), 1);
        assert_eq!(hook(&|h| h["rules"][0]["operations"] = json!(["UPDATE"])), 0);
        assert_eq!(hook(&|h| h["rules"][0]["resources"] = json!(["configmaps"])), 0);
        assert_eq!(hook(&|h| h["failurePolicy"] = json!("Ignore")), 0);
        assert_eq!(hook(&|h| h["namespaceSelector"] = not("kubernetes.io/metadata.name", "n")), 0);
        assert_eq!(hook(&|h| h["objectSelector"] = not("app", "hook")), 0);
        assert_eq!(hook(&|h| h["objectSelector"] = not("app", "other")), 1);
        assert_eq!(hook(&|h| h["clientConfig"] = json!({"url": "https://h"})), 0);
        assert_eq!(hook(&|h| h["matchConditions"] = json!([{"name": "c", "expression": "false"}])), 0);
    }
}
