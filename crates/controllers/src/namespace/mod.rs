//! The namespace controller. It deletes the content of terminating namespaces, found by discovery, pods first and with
//! their grace period, and then removes the finalizer `kubernetes`. Upstream `pkg/controller/namespace`.
mod conditions;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{
    Change, Client, ClientError, DeleteOptions, List, ListParams, METADATA_ONLY_LIST, PropagationPolicy, WorkQueue,
};
use kelson_meta::{Clock, ObjectKey, ObjectMeta, format_seconds};
use serde::Deserialize;
use serde_json::{Value, json};

use self::conditions::Outcome;
use crate::shared::context::{Context, SyncError, WORKERS, get_value, update_value};
use crate::shared::discovery::{ApiResource, Discovered, discover};
use crate::shared::informers::SharedInformer;
use crate::views::NamespaceView;

const FINALIZER: &str = "kubernetes";
/// The assumed time in seconds of other controllers' finalizers.
const FINALIZER_ESTIMATE: i64 = 15;
/// The maximum number of objects in one part of a list of content.
const PART_MAX: u32 = 500;
/// The maximum delay between two passes over remaining content.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct NamespaceController {
    client: Client,
    namespaces: SharedInformer<NamespaceView>,
    clock: Arc<dyn Clock>,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the namespace controller.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(NamespaceController {
        client: ctx.client(),
        namespaces: ctx.informers.namespaces.reader(),
        clock: Arc::clone(&ctx.clock),
        queue: queue.clone(),
    });
    let q = queue.clone();
    me.namespaces.on_change(move |change| {
        let n = change.object();
        if n.metadata.is_deleting() && !matches!(change, Change::Deleted(_)) {
            q.add(ObjectKey::new("", &n.metadata.name));
        }
    });
    // Usually the last pod is what remains, so the deletion of a pod triggers a sync.
    let (q, namespaces) = (queue.clone(), me.namespaces.clone());
    ctx.informers.pods.on_change(move |change| {
        if let Change::Deleted(p) = change {
            let key = ObjectKey::new("", &p.metadata.namespace);
            if namespaces.get(&key).is_some_and(|n| n.metadata.is_deleting()) {
                q.add(key);
            }
        }
    });
    ctx.run_queue_of(me.namespaces.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

/// An object of any kind with the fields that its deletion needs.
#[derive(Deserialize)]
struct RemainingObject {
    metadata: ObjectMeta,
}

impl NamespaceController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let mut ns = match get_value::<NamespaceView>(&self.client, "", &key.name).await {
            Ok(n) => n,
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if ns["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        if ns["status"]["phase"] != "Terminating" {
            let phase = |v: &mut Value| v["status"]["phase"] = json!("Terminating");
            match update_value::<NamespaceView>(&self.client, "", &key.name, "status", "", phase).await {
                Ok(_) => {}
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) => return Err(e.into()),
            }
            ns = get_value::<NamespaceView>(&self.client, "", &key.name).await?;
        }
        let finalizers = ns["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        if finalizers.is_empty() {
            return Ok(());
        }
        let (outcome, estimate) = self.delete_content(&key.name).await?;
        self.write_conditions(&key.name, &outcome).await?;
        if !outcome.errors.is_empty() || !outcome.discovery.is_empty() {
            return Err(SyncError::Other(format!("deleting the content of namespace {} is not complete", key.name)));
        }
        if estimate > 0 {
            let wait = Duration::from_secs(u64::try_from(estimate / 2 + 1).unwrap_or(1)).min(WAIT_MAX);
            self.queue.add_after(key.clone(), wait);
            return Ok(());
        }
        self.finalize(&key.name, &finalizers).await
    }

    async fn finalize(&self, name: &str, finalizers: &[Value]) -> Result<(), SyncError> {
        let rest: Vec<&Value> = finalizers.iter().filter(|f| **f != FINALIZER).collect();
        let write = |v: &mut Value| v["spec"]["finalizers"] = json!(rest);
        match update_value::<NamespaceView>(&self.client, "", name, "finalize", "", write).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }

    async fn write_conditions(&self, name: &str, outcome: &Outcome) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let write = |v: &mut Value| {
            let mut all = serde_json::from_value(v["status"]["conditions"].take()).unwrap_or_default();
            conditions::apply(&mut all, outcome, &now);
            v["status"]["conditions"] = json!(all);
        };
        match update_value::<NamespaceView>(&self.client, "", name, "status", "", write).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Runs one pass. Returns its result and the estimated seconds until the remaining content is gone, 0 if nothing
    /// remains.
    async fn delete_content(&self, ns: &str) -> Result<(Outcome, i64), SyncError> {
        let Discovered { resources, failed } = discover(&self.client).await?;
        let mut outcome = Outcome { discovery: failed, ..Outcome::default() };
        let mut estimate = 0;
        let mut content: Vec<ApiResource> =
            resources.into_iter().filter(|r| r.namespaced && r.serves(&["delete"])).collect();
        // Pods before what they use: a pod must not lose its secrets or policies while it runs (KEP-5080).
        content.sort_by_key(|r| !(r.group.is_empty() && r.plural == "pods"));
        for r in &content {
            if let Err(e) = self.delete_all_of(r, ns, &mut outcome, &mut estimate).await {
                outcome.errors.push(e.to_string());
            }
            if r.group.is_empty() && r.plural == "pods" && (estimate > 0 || !outcome.errors.is_empty()) {
                break;
            }
        }
        Ok((outcome, estimate))
    }

    async fn delete_all_of(
        &self,
        r: &ApiResource,
        ns: &str,
        outcome: &mut Outcome,
        estimate: &mut i64,
    ) -> Result<(), ClientError> {
        if !r.serves(&["list"]) {
            return Ok(());
        }
        // A collection is deleted without a list of it.
        let is_collection = r.serves(&["deletecollection"]);
        let first = ListParams { limit: if is_collection { 1 } else { PART_MAX }, ..ListParams::default() };
        let Some(mut part) = self.list(r, ns, &first).await?.filter(|part| !part.items.is_empty()) else {
            return Ok(());
        };
        let options = DeleteOptions::default().with_propagation(PropagationPolicy::Background);
        let body = Bytes::from(serde_json::to_vec(&options).unwrap_or_default());
        if is_collection {
            // The response lists all deleted objects and is not read.
            self.client.call_unread(Method::DELETE, &r.path(ns), "application/json", body).await?;
        } else {
            loop {
                for o in &part.items {
                    let path = r.object_path(ns, &o.metadata.name);
                    match self.client.call(Method::DELETE, &path, "application/json", body.clone()).await {
                        Err(e) if !e.is_not_found() => return Err(e),
                        _ => {}
                    }
                }
                match self.list_after(r, ns, part).await? {
                    Some(next) => part = next,
                    None => break,
                }
            }
        }
        self.count_remaining(r, ns, outcome, estimate).await
    }

    /// Counts the objects that still exist, part by part, so that a large namespace is never held whole.
    async fn count_remaining(
        &self,
        r: &ApiResource,
        ns: &str,
        outcome: &mut Outcome,
        estimate: &mut i64,
    ) -> Result<(), ClientError> {
        let first = ListParams { limit: PART_MAX, ..ListParams::default() };
        let (mut next, mut count) = (self.list(r, ns, &first).await?, 0);
        while let Some(part) = next {
            count += part.items.len();
            for o in &part.items {
                for f in &o.metadata.finalizers {
                    *outcome.finalizers.entry(f.clone()).or_default() += 1;
                }
                let grace = o.metadata.deletion_grace_period_seconds.unwrap_or(0);
                let finalizers = if o.metadata.finalizers.is_empty() { 0 } else { FINALIZER_ESTIMATE };
                *estimate = (*estimate).max(grace).max(finalizers).max(1);
            }
            next = self.list_after(r, ns, part).await?;
        }
        if count > 0 {
            outcome.remaining.insert(format!("{}.{}", r.plural, r.group), count);
        }
        Ok(())
    }

    /// The part after this one; `None` after the last.
    async fn list_after(
        &self,
        r: &ApiResource,
        ns: &str,
        part: List<RemainingObject>,
    ) -> Result<Option<List<RemainingObject>>, ClientError> {
        let continue_token = part.metadata.continue_token;
        if continue_token.is_empty() {
            return Ok(None);
        }
        self.list(r, ns, &ListParams { limit: PART_MAX, continue_token, ..ListParams::default() }).await
    }

    /// A part of a list; `None` if the resource went away since discovery, or cannot be listed here.
    async fn list(
        &self,
        r: &ApiResource,
        ns: &str,
        at: &ListParams,
    ) -> Result<Option<List<RemainingObject>>, ClientError> {
        match self.client.list_at(&r.path(ns), METADATA_ONLY_LIST, at).await {
            Ok(part) => Ok(Some(part)),
            Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.code == 405) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn pods_first_then_the_rest_then_the_namespace() {
        let api = Api::start().await;
        let _running = run(&api, &["namespace-controller"], Config::default()).await;
        api.namespace("a").await;
        api.namespace("other").await;
        let containers = json!([{"name": "c", "image": "c"}]);
        let spec = json!({"nodeName": "n1", "containers": containers});
        api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "a"}, "spec": spec})).await;
        api.create("v1/configmaps", json!({"metadata": {"name": "c", "namespace": "a"}})).await;
        let held = json!({"metadata": {"name": "d", "namespace": "a", "finalizers": ["example.com/hold"]},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}}});
        api.create("apps/v1/deployments", held).await;
        api.create("v1/configmaps", json!({"metadata": {"name": "c", "namespace": "other"}})).await;
        let delete = DeleteOptions::default();
        api.client().delete::<NamespaceView>("", "a", &delete).await.unwrap();
        api.settle().await;
        assert!(api.get("v1/configmaps", "a", "c").await.is_some(), "what pods use stays while they run");
        let ns = api.get("v1/namespaces", "", "a").await.unwrap();
        assert_eq!(ns["status"]["phase"], "Terminating");
        let remaining = ns["status"]["conditions"].as_array().unwrap().iter();
        let remaining = remaining.filter(|c| c["status"] == "True").map(|c| c["type"].as_str().unwrap());
        assert_eq!(remaining.collect::<Vec<_>>(), ["NamespaceContentRemaining"]);
        api.remove("v1/pods", "a", "p").await;
        api.settle().await;
        assert!(api.get("v1/configmaps", "a", "c").await.is_none());
        assert!(api.get("v1/namespaces", "", "a").await.is_some(), "a finalizer holds one object");
        api.change("apps/v1/deployments", "a", "d", |v| v["metadata"]["finalizers"] = json!([])).await;
        tokio::time::sleep(WAIT_MAX).await;
        assert!(api.get("v1/namespaces", "", "a").await.is_none());
        assert!(api.get("v1/configmaps", "other", "c").await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_remains_is_counted_part_by_part() {
        let api = Api::start().await;
        let _running = run(&api, &["namespace-controller"], Config::default()).await;
        api.namespace("a").await;
        for n in 0..=PART_MAX {
            let metadata = json!({"name": format!("c{n}"), "namespace": "a", "finalizers": ["example.com/hold"]});
            api.create("v1/configmaps", json!({"metadata": metadata})).await;
        }
        api.client().delete::<NamespaceView>("", "a", &DeleteOptions::default()).await.unwrap();
        api.settle().await;
        let ns = api.get("v1/namespaces", "", "a").await.unwrap();
        let conditions = ns["status"]["conditions"].as_array().unwrap();
        let remaining = conditions.iter().find(|c| c["type"] == "NamespaceContentRemaining").unwrap();
        let message = remaining["message"].as_str().unwrap();
        assert!(message.contains(&format!("configmaps. has {} resource instances", PART_MAX + 1)), "{message}");
    }
}
