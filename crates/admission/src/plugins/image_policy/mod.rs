//! ImagePolicyWebhook: a webhook decides which images pods may use (`imagepolicy.k8s.io/v1alpha1`). Its answers are
//! cached for a configured time, and the configuration decides what happens when it cannot be called.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_meta::Status;
use kelson_meta::tree::path::{at, strings, text};
use kelson_webhook::{Call, CallError, ServiceResolver, Target, WebhookClient};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::lru::Lru;
use crate::configuration::only;
use crate::containers::{ContainerKind, containers};
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Operations, Plugin};

/// The maximum number of cached answers; the least recently used is evicted.
const ANSWERS_MAX: usize = 1024;
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of attempts, with growing pauses.
const TRIES: u32 = 5;
const PAUSE_FACTOR: f64 = 1.5;

/// The prefix of the plugin's audit annotations.
const PREFIX: &str = "imagepolicywebhook.image-policy.k8s.io/";
/// Pod annotations whose key contains this are sent to the webhook.
const SHOWN: &str = ".image-policy.k8s.io/";

/// The plugin; see the module.
pub struct ImagePolicyWebhook {
    client: WebhookClient,
    target: Target,
    answers: Mutex<Lru<(Instant, ReviewStatus)>>,
    settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    allowed_for: Duration,
    denied_for: Duration,
    pause: Duration,
    allows_by_default: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReviewStatus {
    allowed: bool,
    reason: String,
    annotations: Vec<(String, String)>,
}

/// Formats a duration as Go does: `1h0m30s`, `500ms`.
fn words(duration: Duration) -> String {
    let (seconds, ms) = (duration.as_secs(), duration.subsec_millis());
    match (seconds / 3600, seconds / 60 % 60, seconds % 60, ms) {
        (0, 0, 0, 0) => format!("{}ns", duration.as_nanos()),
        (0, 0, 0, ms) => format!("{ms}ms"),
        (0, 0, s, 0) => format!("{s}s"),
        (0, m, s, 0) => format!("{m}m{s}s"),
        (h, m, s, 0) => format!("{h}h{m}m{s}s"),
        _ => format!("{}s", duration.as_secs_f64()),
    }
}

impl Settings {
    fn read(part: &Value) -> Result<Self, String> {
        only(part, "imagePolicy.", &["kubeConfigFile", "allowTTL", "denyTTL", "retryBackoff", "defaultAllow"])?;
        // Given in a unit; -1 disables it, 0 is the default.
        let duration = |field: &str, unit: Duration, least: Duration, most: Duration, default: Duration| {
            let given = at(part, &[field]);
            let number = if given.is_null() { Some(0) } else { given.as_i64() };
            match number.ok_or_else(|| format!("imagePolicy.{field}: Invalid value: {given}"))? {
                -1 => Ok(Duration::ZERO),
                0 => Ok(default),
                n => {
                    let count = u32::try_from(n.unsigned_abs()).unwrap_or(u32::MAX);
                    let value = unit.saturating_mul(count);
                    if n > 0 && value >= least && value <= most {
                        return Ok(value);
                    }
                    let (least, most, value) = (words(least), words(most), words(value));
                    let sign = if n < 0 { "-" } else { "" };
                    Err(format!("imagePolicy.{field}: valid value is between {least} and {most}, got {sign}{value}"))
                }
            }
        };
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let (ns, ms) = (Duration::from_nanos(1), Duration::from_millis(1));
        Ok(Self {
            pause: duration("retryBackoff", ms, ns, minute * 5, ms * 500)?,
            allowed_for: duration("allowTTL", second, second, minute * 30, minute * 5)?,
            denied_for: duration("denyTTL", second, second, minute * 30, second * 30)?,
            allows_by_default: at(part, &["defaultAllow"]) == true,
        })
    }
}

impl ImagePolicyWebhook {
    /// Creates the plugin from its section of the configuration, which is required.
    ///
    /// # Errors
    /// The section or the kubeconfig it references is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        if configuration.is_null() {
            return Err("no config specified".to_owned());
        }
        only(configuration, "", &["imagePolicy"])?;
        let part = at(configuration, &["imagePolicy"]);
        let settings = Settings::read(part)?;
        let (target, credentials) = match text(part, &["kubeConfigFile"]) {
            "" => return Err("imagePolicy.kubeConfigFile: Required value".to_owned()),
            file => Target::of_kubeconfig(Path::new(file))?,
        };
        let services = Arc::clone(&d.services) as Arc<dyn ServiceResolver>;
        let client = WebhookClient::new(services, credentials);
        Ok(Self { client, target, answers: Mutex::new(Lru::new(ANSWERS_MAX)), settings })
    }

    async fn answer(&self, spec: &Value) -> Result<ReviewStatus, String> {
        let key = spec.to_string();
        if let Some((until, answer)) = self.answers.lock().get(&key)
            && *until > Instant::now()
        {
            return Ok(answer.clone());
        }
        let review = json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1",
            "metadata": {"creationTimestamp": null}, "spec": spec, "status": {"allowed": false}});
        let bytes = self.ask(&review).await?;
        let review: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        if !matches!(text(&review, &["kind"]), "ImageReview") {
            return Err(format!("unexpected kind {:?} in the response", text(&review, &["kind"])));
        }
        let status = at(&review, &["status"]);
        let annotations = strings(status, &["auditAnnotations"]).map(|(k, v)| (k.to_owned(), v.to_owned()));
        let answer = ReviewStatus {
            allowed: at(status, &["allowed"]) == true,
            reason: text(status, &["reason"]).to_owned(),
            annotations: annotations.collect(),
        };
        let keep = if answer.allowed { self.settings.allowed_for } else { self.settings.denied_for };
        if !keep.is_zero() {
            self.answers.lock().insert(&key, (Instant::now() + keep, answer.clone()));
        }
        Ok(answer)
    }

    /// Calls the webhook until it answers or the attempts are used up.
    async fn ask(&self, review: &Value) -> Result<bytes::Bytes, String> {
        let body = bytes::Bytes::from(review.to_string());
        let mut pause = self.settings.pause;
        let mut tries = 1;
        loop {
            let call = Call { body: body.clone(), timeout: TIMEOUT, answer_bytes_max: ANSWER_BYTES_MAX };
            let failure = match self.client.call(&self.target, call).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failure,
            };
            let passing = match &failure {
                CallError::Configuration(_) | CallError::Timeout(_) => false,
                CallError::Transport(_) => true,
                CallError::Status(status) => status.code >= 500 || status.code == 429,
            };
            if !passing || tries == TRIES {
                return Err(failure.to_string());
            }
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(PAUSE_FACTOR);
            tries += 1;
        }
    }
}

/// Returns the spec sent to the webhook. For an ephemeral container only that container is sent: the others were
/// checked before.
fn spec_of(a: &Attributes<'_>) -> Value {
    let pod = a.new_object();
    let debugging = a.subresource == "ephemeralcontainers";
    let mut asked: Vec<(ContainerKind, &str)> = containers(at(pod, &["spec"]))
        .filter(|(kind, ..)| match kind {
            ContainerKind::Regular | ContainerKind::Init => !debugging,
            ContainerKind::Ephemeral => debugging,
        })
        .map(|(kind, _, c)| (kind, text(c, &["image"])))
        .collect();
    // Upstream lists those of `containers` first.
    asked.sort_by_key(|(kind, _)| *kind != ContainerKind::Regular);
    let images: Vec<Value> = asked.into_iter().map(|(_, image)| json!({"image": image})).collect();
    let mut spec = json!({"containers": images, "namespace": a.namespace});
    let shown = strings(pod, &["metadata", "annotations"]).filter(|(key, _)| key.contains(SHOWN));
    let shown: serde_json::Map<String, Value> = shown.map(|(k, v)| (k.to_owned(), v.into())).collect();
    if !shown.is_empty() {
        spec["annotations"] = shown.into();
    }
    spec
}

impl Plugin for ImagePolicyWebhook {
    fn name(&self) -> &'static str {
        "ImagePolicyWebhook"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        let pods = a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers");
        pods.then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for ImagePolicyWebhook {
    async fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let answer = match self.answer(&spec_of(a)).await {
            Ok(answer) => answer,
            Err(why) if self.settings.allows_by_default => {
                tracing::warn!(%why, "calling the image policy webhook failed; allowing the pod");
                notes.annotate(format!("{PREFIX}failed-open"), "true");
                return Ok(());
            }
            Err(why) => return Err(a.forbidden(&why)),
        };
        for (key, value) in &answer.annotations {
            notes.annotate(format!("{PREFIX}{key}"), value.as_str());
        }
        match answer.reason.as_str() {
            _ if answer.allowed => Ok(()),
            "" => Err(a.forbidden("one or more images rejected by webhook backend")),
            reason => Err(a.forbidden(&format!("image policy webhook backend denied one or more images: {reason}"))),
        }
    }
}

#[cfg(test)]
mod tests;
