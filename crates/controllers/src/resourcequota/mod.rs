//! The resource quota controller. It counts the usage of a quota after the deletion of counted objects and every few
//! minutes. Admission charges new objects. Upstream `pkg/controller/resourcequota`.
mod count;
mod replenish;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Change, Client, Object, WorkQueue};
use kelson_meta::{Clock, ObjectKey};
use kelson_quota::{Evaluator, PodLevel, Quota};
use serde_json::{Value, json};

use self::count::{Counter, read};
use self::replenish::Replenish;
use self::watches::Watches;
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::ResourceQuotaView;

/// The interval at which every quota is counted again.
const RECOUNT: Duration = Duration::from_secs(300);
/// The delay after which charged objects are stored and thus counted.
const SETTLE: Duration = Duration::from_millis(100);

struct ResourceQuotaController {
    client: Client,
    clock: Arc<dyn Clock>,
    quotas: SharedInformer<ResourceQuotaView>,
    watches: Watches,
    pod_level: PodLevel,
    /// Whether the feature gate DRAExtendedResource is enabled.
    extended: bool,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the resource quota controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue = WorkQueue::default();
    let pod_level = PodLevel::of(ctx.config.feature_gates.enabled("PodLevelResources"));
    let quotas = ctx.informers.resource_quotas.reader();
    let replenish = Replenish { quotas: quotas.clone(), queue: queue.clone() };
    let me = Arc::new(ResourceQuotaController {
        watches: Watches::new(client.clone(), ctx.tasks.clone(), replenish.clone()),
        client,
        pod_level,
        extended: ctx.config.feature_gates.enabled("DRAExtendedResource"),
        clock: Arc::clone(&ctx.clock),
        quotas: quotas.clone(),
        queue: queue.clone(),
    });
    let q = queue.clone();
    quotas.on_change(move |change| match change {
        // Charges of admission change the status alone.
        Change::Updated { old, new } if old.spec == new.spec && new.status["hard"] == new.spec["hard"] => {}
        _ => q.add(change.object().key()),
    });
    let announce = replenish.clone();
    ctx.informers.pods.on_change(move |change| {
        let gives_back = match change {
            Change::Added(_) => false,
            Change::Updated { old, new } => new.is_terminal() && !old.is_terminal(),
            Change::Deleted(_) => true,
        };
        if gives_back {
            announce.announce(&Evaluator::Pods(pod_level), &change.object().metadata.namespace);
        }
    });
    let announce = replenish.clone();
    ctx.informers.services.on_change(move |change| {
        if !matches!(change, Change::Added(_)) {
            announce.announce(&Evaluator::Services, &change.object().metadata.namespace);
        }
    });
    ctx.informers.claims.on_change(move |change| {
        if !matches!(change, Change::Added(_)) {
            replenish.announce(&Evaluator::Claims, &change.object().metadata.namespace);
        }
    });
    ctx.run_queue_of(me.quotas.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl ResourceQuotaController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        if self.quotas.get(key).is_none() {
            return Ok(());
        }
        // Its role may list quotas and not get one.
        let path =
            format!("{}?fieldSelector=metadata.name%3D{}", ResourceQuotaView::TYPE.path(&key.namespace), key.name);
        let mut stored = match read(&self.client, &path).await?["items"].take() {
            Value::Array(mut found) if !found.is_empty() => found.swap_remove(0),
            _ => return Ok(()),
        };
        let quota = Quota::read(&stored);
        if !quota.used.0.is_empty() {
            tokio::time::sleep(SETTLE).await;
        }
        let counter = Counter {
            client: &self.client,
            watches: &self.watches,
            pod_level: self.pod_level,
            extended: self.extended,
            now: self.clock.now(),
        };
        let (used, complete) = counter.used(&quota, &key.namespace).await?;
        let status = json!({"hard": stored["spec"]["hard"].as_object().map_or_else(|| json!({}), |h| json!(h)),
            "used": used.to_value()});
        let dirty =
            stored["status"]["hard"] != status["hard"] || quota.used != used || stored["status"]["used"].is_null();
        if dirty {
            stored["status"] = status;
            stored["apiVersion"] = json!("v1");
            stored["kind"] = json!("ResourceQuota");
            self.client.update::<ResourceQuotaView>(&key.namespace, &key.name, "status", &stored).await?;
        }
        self.queue.add_after(key.clone(), RECOUNT);
        complete
    }
}

#[cfg(test)]
mod tests;
