//! Type checks of validating admission policies: writes warnings into a policy's status once per generation. Upstream
//! `pkg/controller/validatingadmissionpolicystatus`.
//!
//! `declared` converts schemas to types, `check` compares expressions with them, and `served` reads kinds and schemas
//! from the API server.
mod check;
mod declared;
mod served;

use std::sync::Arc;

use kelson_client::{Client, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::ObjectKey;
use serde_json::{Value, json};

use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self, get_value};
use crate::shared::informers::SharedInformer;
use crate::views::PolicyView;
use served::Served;

/// The field manager of the written statuses.
const MANAGER: &str = "validatingadmissionpolicy-status";

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let policies = ctx.informers.policies.reader();
    policies.on_change(enqueue_self(&queue));
    ctx.run_queue_of(policies.clone(), &queue, WORKERS, move |key| {
        let (client, policies) = (client.clone(), policies.clone());
        async move { sync(&client, &policies, &key).await }
    });
}

async fn sync(client: &Client, policies: &SharedInformer<PolicyView>, key: &ObjectKey) -> Result<(), SyncError> {
    let seen = policies.get(key).filter(|p| p.metadata.generation > p.status.observed_generation);
    if seen.is_none() {
        return Ok(());
    }
    let policy = match get_value::<PolicyView>(client, "", &key.name).await {
        Ok(policy) => policy,
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let warnings = warnings(client, &policy).await?;
    let reported = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": key.name},
        "status": {"observedGeneration": policy["metadata"]["generation"], "typeChecking": reported}});
    let options = WriteOptions { force: true, ..WriteOptions::manager(MANAGER) };
    match client.patch::<PolicyView>("", &key.name, "status", PatchKind::Apply, &body, &options).await {
        Err(e) if !e.is_not_found() => Err(e.into()),
        _ => Ok(()),
    }
}

async fn warnings(client: &Client, policy: &Value) -> Result<Vec<Value>, SyncError> {
    let mut served = Served::new(client);
    let mut objects = Vec::new();
    for kind in served.kinds(policy).await? {
        if let Some(decl) = served.type_of(&kind).await? {
            objects.push((kind, decl));
        }
    }
    let params = match check::params_kind(policy) {
        Some(kind) => served.type_of(&kind).await?,
        None => None,
    };
    let found = check::check(policy, &objects, params.as_deref()).into_iter();
    Ok(found.map(|w| json!({"fieldRef": w.field, "warning": w.warning})).collect())
}

#[cfg(test)]
mod tests {
    use kelson_simulation::{Api, DISTURBANCES, at_every_request};
    use serde_json::{Value, json};

    use crate::Config;
    use crate::testing::run;

    const POLICIES: &str = "admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    const DEFINITIONS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";

    fn policy(name: &str, group: &str, resource: &str, spec: &Value) -> Value {
        let rules =
            json!([{"operations": ["*"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}]);
        let mut all = json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": rules}}});
        all["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        all
    }

    fn validates(expression: &str) -> Value {
        json!({"validations": [{"expression": expression}]})
    }

    fn definition() -> Value {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"}}}}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"}, "versions": [version]}})
    }

    /// The warnings of a policy, once its generation was looked at.
    async fn reported(api: &Api, name: &str, generation: i64) -> Vec<Value> {
        let policy = api
            .until("a look at the policy", async |api: &Api| {
                let policy = api.get(POLICIES, "", name).await?;
                (policy["status"]["observedGeneration"] == generation).then_some(policy)
            })
            .await;
        policy["status"]["typeChecking"]["expressionWarnings"].as_array().cloned().unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn type_errors_are_reported_for_each_generation() {
        at_every_request(&DISTURBANCES, async |api: Api| {
            let _running = run(&api, &["validatingadmissionpolicy-status-controller"], Config::default()).await;
            api.create(POLICIES, policy("p", "apps", "deployments", &validates("object.spec.replica < 5"))).await;
            let warnings = reported(&api, "p", 1).await;
            assert_eq!(warnings.len(), 1);
            assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
            let text = warnings[0]["warning"].as_str().unwrap();
            assert!(text.starts_with("apps/v1, Kind=Deployment: ERROR: "), "{text}");
            assert!(text.contains("undefined field 'replica'"), "{text}");
            api.change(POLICIES, "", "p", |p| {
                p["spec"]["validations"][0]["expression"] = json!("object.spec.replicas < 5");
            })
            .await;
            assert_eq!(reported(&api, "p", 2).await, Vec::<Value>::new());
            let stored = api.get(POLICIES, "", "p").await.unwrap();
            assert_eq!(stored["status"]["typeChecking"], json!({}));
            let managers = stored["metadata"]["managedFields"].as_array().unwrap();
            let of_status = managers.iter().find(|m| m["subresource"] == "status").unwrap();
            assert_eq!(of_status["manager"], "validatingadmissionpolicy-status");
            assert_eq!(of_status["operation"], "Apply");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn custom_kinds_and_parameters_have_types() {
        let api = Api::start().await;
        api.create(DEFINITIONS, definition()).await;
        api.until("the kind", async |api: &Api| {
            let path = "/apis/example.com/v1";
            api.client().call(http::Method::GET, path, "", bytes::Bytes::new()).await.ok()
        })
        .await;
        let _running = run(&api, &["validatingadmissionpolicy-status-controller"], Config::default()).await;
        let cases = [
            ("fits", "example.com", "widgets", "object.spec.size > 1 && object.metadata.labels['a'] == 'b'", 0),
            ("does-not", "example.com", "widgets", "object.spec.sise > 1", 1),
            ("singular", "example.com", "widget", "object.spec.sise > 1", 1),
            ("without-group", "", "widgets", "object.spec.sise > 1", 1),
            ("pods", "", "pods", "object.spec.sise > 1", 1),
            ("unknown", "example.org", "widgets", "object.spec.sise > 1", 0),
        ];
        for (name, group, resource, expression, want) in cases {
            api.create(POLICIES, policy(name, group, resource, &validates(expression))).await;
            assert_eq!(reported(&api, name, 1).await.len(), want, "{name}");
        }
        let mut params = validates("object.spec.replicas < params.spec.sise");
        params["paramKind"] = json!({"apiVersion": "example.com/v1", "kind": "Widget"});
        api.create(POLICIES, policy("params", "apps", "deployments", &params)).await;
        let warnings = reported(&api, "params", 1).await;
        assert!(warnings[0]["warning"].as_str().unwrap().contains("undefined field 'sise'"), "{warnings:?}");
    }
}
