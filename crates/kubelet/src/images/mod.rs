//! Images: whether one must be pulled, with what credentials, how often it is tried, and what the pod's owner reads of
//! it (upstream: `pkg/kubelet/images/image_manager.go`). Collection of unused images is in [`gc`].
pub mod gc;
pub mod keyring;
pub mod name;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_client::EventType;
use kelson_cri::proto as cri;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::context::Context;
use crate::pods::backoff::BackOff;
use crate::pods::spec::{self, Role};
use crate::volumes::objects::Kind;

/// Pulls at once where they are not serialized.
const PARALLEL_MAX: usize = 5;
/// Failed images remembered for the text of their back-off.
const REMEMBERED_MAX: usize = 1000;

/// Why a container does not start: a waiting reason and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// `ErrImagePull`, `CreateContainerConfigError` …
    pub reason: &'static str,
    /// Message of the waiting state.
    pub message: String,
}

impl StartError {
    /// From its parts.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// An image that is there.
#[derive(Clone, Debug, Default)]
pub struct Present {
    /// What to run it by.
    pub reference: String,
    /// Numeric user of the image, if it names one.
    pub uid: Option<i64>,
    /// Textual user of the image, if it names one.
    pub user: String,
}

/// The node's pulls; cheap to clone.
#[derive(Clone)]
pub struct Images {
    slots: Arc<Semaphore>,
    backoff: Arc<Mutex<BackOff>>,
    failures: Arc<Mutex<HashMap<String, StartError>>>,
}

struct About<'a> {
    ctx: &'a Context,
    pod: &'a Pod,
    role: Role,
    container: &'a str,
}

impl About<'_> {
    fn event(&self, kind: EventType, reason: &str, message: String) {
        self.ctx.container_event(self.pod, self.role, self.container, kind, reason, message);
    }
}

impl Images {
    /// With pulls one after the other, or some at once.
    pub fn new(serialize: bool) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(if serialize { 1 } else { PARALLEL_MAX })),
            backoff: Arc::new(Mutex::new(BackOff::default())),
            failures: Arc::default(),
        }
    }

    /// Sees to it that the container's image is on the node.
    pub async fn ensure(
        &self,
        ctx: &Context,
        pod: &Pod,
        role: Role,
        c: &Container,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let about = About { ctx, pod, role, container: &c.name };
        let given = c.image.as_deref().unwrap_or_default();
        let image = match name::with_default_tag(given) {
            Ok(i) => i,
            Err(e) => {
                let message = format!("Failed to apply default image tag {given:?}: {e}");
                about.event(EventType::Warning, "InspectFailed", message.clone());
                return Err(StartError::new("InvalidImageName", message));
            }
        };
        let spec =
            cri::ImageSpec { image: image.clone(), user_specified_image: given.to_owned(), ..Default::default() };
        let present = match ctx.runtime.image_status(spec.clone()).await {
            Ok(i) => i.map(present),
            Err(e) => {
                let message = format!("Failed to inspect image {image:?}: {e}");
                about.event(EventType::Warning, "InspectFailed", message.clone());
                return Err(StartError::new("ImageInspectError", message));
            }
        };
        let policy = c.image_pull_policy.as_deref().unwrap_or_else(|| name::default_policy(&image));
        match (policy, present) {
            ("Never" | "IfNotPresent", Some(p)) => {
                about.event(
                    EventType::Normal,
                    "Pulled",
                    format!("Container image {given:?} already present on machine and can be accessed by the pod"),
                );
                Ok(p)
            }
            ("Never", None) => {
                let message = format!("Container image {given:?} is not present with pull policy of Never");
                about.event(EventType::Warning, "ErrImageNeverPull", message.clone());
                Err(StartError::new("ErrImageNeverPull", message))
            }
            _ => self.pull(&about, given, spec, sandbox).await,
        }
    }

    async fn pull(
        &self,
        about: &About<'_>,
        given: &str,
        image: cri::ImageSpec,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let key = format!("{}_{}", spec::uid(about.pod), image.image);
        let ctx = about.ctx;
        let now = ctx.clock.now();
        if self.in_backoff(&key, now) {
            about.event(EventType::Normal, "BackOff", format!("Back-off pulling image {given:?}"));
            let cause = self.failures.lock().get(&key).map(|e| format!(": {}: {}", e.reason, e.message));
            let message = format!("Back-off pulling image {given:?}{}", cause.unwrap_or_default());
            return Err(StartError::new("ImagePullBackOff", message));
        }
        about.event(EventType::Normal, "Pulling", format!("Pulling image {given:?}"));
        let asked = tokio::time::Instant::now();
        let slot = self.slots.acquire().await;
        let began = tokio::time::Instant::now();
        let outcome = self.attempt(ctx, about.pod, &image, sandbox).await;
        drop(slot);
        match outcome {
            Ok(reference) => {
                self.backoff.lock().reset(&key);
                self.failures.lock().remove(&key);
                let found = ctx.runtime.image_status(cri::ImageSpec { image: reference.clone(), ..image }).await;
                let found = found.ok().flatten();
                let size = found.as_ref().map_or(0, |i| i.size);
                let (took, whole) = (go_duration(began.elapsed()), go_duration(asked.elapsed()));
                about.event(
                    EventType::Normal,
                    "Pulled",
                    format!("Successfully pulled image {given:?} in {took} ({whole} including waiting). Image size: {size} bytes."),
                );
                Ok(found.map_or(Present { reference: reference.clone(), ..Default::default() }, present))
            }
            Err(message) => {
                about.event(EventType::Warning, "Failed", format!("Failed to pull image {given:?}: {message}"));
                let error = StartError::new("ErrImagePull", message);
                let now = ctx.clock.now();
                self.backoff.lock().next(&key, now, now);
                let mut failures = self.failures.lock();
                if failures.len() >= REMEMBERED_MAX {
                    failures.clear();
                }
                failures.insert(key, error.clone());
                Err(error)
            }
        }
    }

    fn in_backoff(&self, key: &str, now: jiff::Timestamp) -> bool {
        let mut backoff = self.backoff.lock();
        backoff.purge(now);
        backoff.waits_since_update(key, now).is_some()
    }

    /// When a failed pull of this pod's image may be tried again.
    pub fn retry_at(&self, pod: &Pod, image: &str, now: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let image = name::with_default_tag(image).ok()?;
        self.backoff.lock().waits_since_update(&format!("{}_{image}", spec::uid(pod)), now)
    }

    /// Tries every matching credential, the most specific first, then none.
    async fn attempt(
        &self,
        ctx: &Context,
        pod: &Pod,
        image: &cri::ImageSpec,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<String, String> {
        let mut ring = keyring::Keyring::default();
        for s in pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()) {
            match ctx.objects.data(pod, Kind::Secret, &s.name).await {
                Ok(data) => ring.add_secret(&data),
                // As upstream: a missing pull secret is no reason not to try.
                Err(e) => tracing::debug!(secret = %s.name, error = %e, "image pull secret not usable"),
            }
        }
        let found = ring.lookup(&image.image);
        if found.is_empty() {
            return self.once(ctx, image, None, sandbox).await;
        }
        let mut last = String::new();
        for auth in found {
            match self.once(ctx, image, Some(auth), sandbox).await {
                Ok(r) => return Ok(r),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    async fn once(
        &self,
        ctx: &Context,
        image: &cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<String, String> {
        let pulled = ctx.runtime.pull_image(image.clone(), auth, Some(sandbox.clone())).await;
        pulled.map_err(|e| e.to_string())
    }
}

fn present(i: cri::Image) -> Present {
    Present { reference: i.id, uid: i.uid.map(|u| u.value), user: i.username }
}

/// A duration as Go prints it, to the millisecond.
pub fn go_duration(d: Duration) -> String {
    let ms = d.as_millis();
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let fraction = format!("{:03}", ms % 1000);
    let fraction = fraction.trim_end_matches('0');
    let tail = if fraction.is_empty() { String::new() } else { format!(".{fraction}") };
    let s = ms / 1000;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s}{tail}s"),
        (0, m, s) => format!("{m}m{s}{tail}s"),
        (h, m, s) => format!("{h}h{m}m{s}{tail}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_gos() {
        for (ms, want) in
            [(5, "5ms"), (1500, "1.5s"), (10_000, "10s"), (80_000, "1m20s"), (300_000, "5m0s"), (3_600_000, "1h0m0s")]
        {
            assert_eq!(go_duration(Duration::from_millis(ms)), want);
        }
    }
}
