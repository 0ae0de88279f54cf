//! Conversion webhooks of custom resources, called like other webhooks.
use std::time::Duration;

use futures::future::BoxFuture;
use kelson_webhook::{Call, Target, WebhookClient};
use serde_json::Value;

use crate::custom::convert::CallWebhook;

/// Timeout of one conversion (as upstream's REST clients).
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response in bytes: a chunk of a list in another version.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Calls conversion webhooks.
pub struct ConversionWebhooks(pub WebhookClient);

impl CallWebhook for ConversionWebhooks {
    fn call<'a>(&'a self, config: &'a Value, review: Value) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(async move {
            let target = Target::parse(config)?;
            let call = Call { body: review.to_string().into(), timeout: TIMEOUT, answer_bytes_max: ANSWER_BYTES_MAX };
            let answer = self.0.call(&target, call).await.map_err(|e| e.to_string())?;
            kelson_meta::from_json(&answer).map_err(|e| e.to_string())
        })
    }
}
