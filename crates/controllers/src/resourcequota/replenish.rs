//! Selects the quotas that are counted again after a deletion.
use kelson_client::{Object, WorkQueue};
use kelson_meta::ObjectKey;
use kelson_quota::Evaluator;
use serde_json::Value;

use crate::shared::informers::SharedInformer;
use crate::views::ResourceQuotaView;

/// Queues the quotas of a namespace that count these objects.
#[derive(Clone)]
pub struct Replenish {
    pub quotas: SharedInformer<ResourceQuotaView>,
    /// Quotas to count.
    pub queue: WorkQueue<ObjectKey>,
}

impl Replenish {
    /// Queues the quotas of the namespace that count this kind of object.
    pub fn announce(&self, evaluator: &Evaluator, namespace: &str) {
        for quota in self.quotas.in_namespace(namespace) {
            let counts = |hard: &Value| hard.as_object().is_some_and(|h| h.keys().any(|n| evaluator.may_count(n)));
            if counts(&quota.spec["hard"]) {
                self.queue.add(quota.key());
            }
        }
    }
}
