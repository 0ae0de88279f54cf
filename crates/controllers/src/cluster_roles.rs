//! Aggregated cluster roles (`aggregationRule`): their rules are those of all roles that the selectors match. The
//! installer of a kind can thus extend `admin`, `edit` and `view`. Upstream `pkg/controller/clusterroleaggregation`.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Change, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use serde_json::json;

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::{ClusterRoleView, PolicyRule};

/// Changes of members in this period are one write of the aggregated role: its rules may be thousands, and an installer creates many
/// members at once. Decisions of RBAC do not wait for the write, since they aggregate by themselves.
const BATCH_PERIOD: Duration = Duration::from_millis(100);
/// The field manager of the written rules.
const MANAGER: &str = "clusterrole-aggregation-controller";

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let roles = ctx.informers.cluster_roles.reader();
    let (q, all, aggregated) = (queue.clone(), roles.clone(), Mutex::new(HashSet::new()));
    roles.on_change(move |change| {
        let key = ObjectKey::new("", &change.object().metadata.name);
        let mut aggregated = aggregated.lock();
        // Few roles are aggregated, so the others are not visited for each change.
        for role in aggregated.iter().filter_map(|key| all.get(key)).filter(|role| concerns(change, role)) {
            q.add_after(ObjectKey::new("", &role.metadata.name), BATCH_PERIOD);
        }
        if matches!(change, Change::Deleted(_)) || change.object().aggregation_rule.is_none() {
            aggregated.remove(&key);
        } else {
            aggregated.insert(key.clone());
            q.add(key);
        }
    });
    ctx.run_queue_of(roles.clone(), &queue, WORKERS, move |key| {
        let (client, roles) = (client.clone(), roles.clone());
        async move {
            let Some(role) = roles.get(&key) else { return Ok(()) };
            let Some(rules) = wanted(&role, &roles) else { return Ok(()) };
            if role.rules.as_deref().unwrap_or_default() == rules {
                return Ok(());
            }
            let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": key.name}, "rules": rules});
            let options = WriteOptions { force: true, ..WriteOptions::manager(MANAGER) };
            let applied = client.patch::<ClusterRoleView>("", &key.name, "", PatchKind::Apply, &body, &options).await;
            applied.map_err(SyncError::from)
        }
    });
}

/// Whether an aggregated role includes the changed role, or did before the change.
fn concerns(change: &Change<ClusterRoleView>, role: &ClusterRoleView) -> bool {
    let Some(aggregation) = &role.aggregation_rule else { return false };
    if let Change::Updated { old, new } = change
        && (&old.metadata.labels, &old.rules) == (&new.metadata.labels, &new.rules)
    {
        return false;
    }
    let (old, new) = match change {
        Change::Added(new) => (None, Some(new)),
        Change::Updated { old, new } => (Some(old), Some(new)),
        Change::Deleted(old) => (Some(old), None),
    };
    // Invalid selectors are reported by the role's sync.
    let selectors = aggregation.cluster_role_selectors.iter().filter_map(|s| s.selector().ok());
    selectors.into_iter().any(|s| old.into_iter().chain(new).any(|other| s.matches(&other.metadata.labels)))
}

/// Returns the rules of all roles that the selectors match, without duplicates, in the order of selectors and names.
/// Returns `None` for a role that is not aggregated or has an invalid selector.
fn wanted(role: &ClusterRoleView, roles: &SharedInformer<ClusterRoleView>) -> Option<Vec<PolicyRule>> {
    let mut others = roles.list();
    others.retain(|other| other.metadata.name != role.metadata.name);
    others.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut seen: HashSet<String> = HashSet::new();
    let mut rules = Vec::new();
    for selector in &role.aggregation_rule.as_ref()?.cluster_role_selectors {
        let selector = selector.selector().ok()?;
        for other in others.iter().filter(|other| selector.matches(&other.metadata.labels)) {
            for rule in other.rules.iter().flatten() {
                if seen.insert(serde_json::to_string(rule).ok()?) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use kelson_client::{ListParams, WatchEvent};
    use kelson_simulation::Api;
    use serde_json::{Value, json};

    use super::*;
    use crate::Config;
    use crate::testing::run;

    fn role(name: &str, labels: Value, resource: &str) -> Value {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": labels},
            "rules": [{"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]}]})
    }

    const ROLES: &str = "rbac.authorization.k8s.io/v1/clusterroles";

    async fn resources(api: &Api, name: &str) -> Vec<String> {
        let role = api.get(ROLES, "", name).await.expect("the role");
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        rules.iter().map(|r| r["resources"][0].as_str().expect("a resource").to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_made_of_others_follows_them() {
        let api = Api::start().await;
        let _running = run(&api, &["clusterrole-aggregation-controller"], Config::default()).await;
        let mut gathering = role("gathering", json!({}), "none");
        gathering["rules"] = json!([]);
        gathering["aggregationRule"] = json!({"clusterRoleSelectors": [
            {"matchLabels": {"to": "second"}}, {"matchExpressions": [{"key": "to", "operator": "Exists"}]}]});
        api.create(ROLES, gathering).await;
        api.create(ROLES, role("a", json!({"to": "first"}), "apples")).await;
        api.create(ROLES, role("b", json!({"to": "second"}), "pears")).await;
        api.create(ROLES, role("c", json!({"to": "first"}), "apples")).await;
        api.create(ROLES, role("d", json!({}), "plums")).await;
        api.settle().await;
        assert_eq!(resources(&api, "gathering").await, ["pears", "apples"]);
        api.remove(ROLES, "", "b").await;
        api.settle().await;
        assert_eq!(resources(&api, "gathering").await, ["apples"]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_new_members_are_one_write_of_the_aggregated_role() {
        let api = Api::start().await;
        let _running = run(&api, &["clusterrole-aggregation-controller"], Config::default()).await;
        let mut gathering = role("gathering", json!({}), "none");
        gathering["rules"] = json!([]);
        gathering["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "it"}}]});
        let created = api.create(ROLES, gathering).await;
        api.settle().await;
        let resource_version = created["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
        let params = ListParams { resource_version, ..ListParams::default() };
        let mut watch = api.client().watch::<ClusterRoleView>("", &params, false).await.expect("a watch");
        for n in 0..30 {
            api.create(ROLES, role(&format!("r{n:02}"), json!({"to": "it"}), &format!("things{n}"))).await;
        }
        api.settle().await;
        assert_eq!(resources(&api, "gathering").await.len(), 30);
        let mut writes = 0;
        while let Ok(Ok(Some(event))) = tokio::time::timeout(Duration::from_secs(1), watch.next()).await {
            writes += usize::from(matches!(event, WatchEvent::Modified(role) if role.metadata.name == "gathering"));
        }
        assert_eq!(writes, 1);
    }
}
