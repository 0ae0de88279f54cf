//! The pull manager: whether a container's image must be pulled, with which credentials, how many at once and how often,
//! and what the pod's owner reads of it (upstream: `pkg/kubelet/images/image_manager.go`). The runtime and the event
//! recorder are behind [`PullEffects`]; mirrors are the runtime's.
mod limit;
mod request;

use std::path::Path;
use std::sync::Arc;

pub use kelson_codec::go_duration;
use kelson_meta::Clock;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use limit::{BACKOFF_MAX, BACKOFF_MIN};
pub use request::{EnsureError, EnsureRequest, Present, PullEffects, PullOptions, PullPolicy};

use crate::keyring::{Candidate, Keyring, NodeConfig};
use crate::metrics::Metrics;
use crate::plugin::{PluginError, Providers};
use crate::records::{Decision, ImagePullCredentials, ListedImage, Presented, PulledImages};
use crate::reference::{self, Reference};
use limit::{BackOff, Bucket};

/// Bytes of a pull error that pod owners see.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// The pulls of all images of a node. For each pod it decides whether the image on the node may be used, since another
/// tenant's credentials may have pulled it (KEP-2535), finds the credentials (pull secrets, node files, plug-ins), and
/// pulls within the limits of rate and parallelism, with a delay after failures. It records which credentials have
/// pulled an image.
pub struct PullManager {
    options: PullOptions,
    slots: Option<Semaphore>,
    bucket: Mutex<Option<Bucket>>,
    backoff: Mutex<BackOff>,
    records: Arc<PulledImages>,
    node: Arc<NodeConfig>,
    providers: Arc<Providers>,
    metrics: Arc<Metrics>,
}

/// The credentials for a pull, and errors about those that are not available.
struct Credentials {
    candidates: Vec<Candidate>,
    faults: Vec<String>,
    errors: Vec<PluginError>,
}

/// Ends the intent of a pull that is given up.
struct Intent {
    records: Arc<PulledImages>,
    image: String,
    open: bool,
}

impl Drop for Intent {
    fn drop(&mut self) {
        if self.open {
            let (records, image) = (self.records.clone(), std::mem::take(&mut self.image));
            FILES.later(move || records.failed(&image));
        }
    }
}

impl PullManager {
    /// Opens the records below the kubelet's directory.
    pub fn open(
        kubelet_dir: &Path,
        options: PullOptions,
        node: Arc<NodeConfig>,
        providers: Arc<Providers>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let records = PulledImages::open(kubelet_dir, options.policy.clone(), clock, metrics.clone())?;
        let records = Arc::new(records);
        let counted = Arc::downgrade(&records);
        metrics.registry().on_scrape(move |families| {
            if let Some(records) = counted.upgrade() {
                crate::metrics::records(families, records.counts());
            }
        });
        let at_once = if options.serialize { Some(1) } else { options.parallel_max };
        Ok(Self {
            slots: at_once.map(|n| Semaphore::new(n.clamp(1, Semaphore::MAX_PERMITS))),
            bucket: Mutex::new(Bucket::new(options.qps, options.burst, Instant::now())),
            backoff: Mutex::default(),
            records,
            options,
            node,
            providers,
            metrics,
        })
    }

    /// Loads the records of an earlier run; must be called once, before the first pull.
    pub fn initialize(&self, images: &[ListedImage]) {
        self.records.initialize(images);
    }

    /// The records, for garbage collection and metrics.
    pub fn records(&self) -> &Arc<PulledImages> {
        &self.records
    }

    /// Returns when a failed pull may be retried; `None` means now.
    pub fn retry_at(&self, pod_uid: &str, image: &str) -> Option<Instant> {
        self.backoff.lock().waits(&backoff_key(pod_uid, image), Instant::now()).map(|(until, _)| until)
    }

    /// Sees to it that the container's image is on the node and may be used by the pod.
    pub async fn ensure(&self, request: &EnsureRequest<'_>, effects: &dyn PullEffects) -> Result<Present, EnsureError> {
        let (mut present, mut required) = ("unknown", "unknown");
        let result = self.ensured(request, effects, &mut present, &mut required).await;
        self.metrics.ensured(&format!("{:?}", request.policy), present, required);
        result
    }

    async fn ensured(
        &self,
        request: &EnsureRequest<'_>,
        effects: &dyn PullEffects,
        present: &mut &'static str,
        required: &mut &'static str,
    ) -> Result<Present, EnsureError> {
        let given = request.image;
        let image = reference::with_default_tag(given).map_err(|e| {
            let message = format!("Failed to apply default image tag {given:?}: {e}");
            effects.event(true, "InspectFailed", message.clone());
            EnsureError::new("InvalidImageName", message)
        })?;
        let mut credentials = None;
        if request.policy != PullPolicy::Always {
            let found = effects.status(&image).await.map_err(|e| {
                let message = format!("Failed to inspect image {image:?}: {e}");
                effects.event(true, "InspectFailed", message.clone());
                EnsureError::new("ImageInspectError", message)
            })?;
            *present = if found.is_some() { "true" } else { "false" };
            if let Some(found) = found
                && self.may_use(request, &image, &found.reference, &mut credentials).await
            {
                *required = "false";
                let message =
                    format!("Container image {given:?} already present on machine and can be accessed by the pod");
                effects.event(false, "Pulled", message);
                return Ok(found);
            }
            *required = "true";
            // One message for absent and for another's: whether the image is there is not to be learnt from it.
            if request.policy == PullPolicy::Never {
                let message = format!("Container image {given:?} is not present with pull policy of Never");
                effects.event(true, "ErrImageNeverPull", message.clone());
                return Err(EnsureError::new("ErrImageNeverPull", message));
            }
        }
        *required = "true";
        self.pull(request, &image, credentials, effects).await
    }

    async fn may_use(
        &self,
        request: &EnsureRequest<'_>,
        image: &str,
        reference: &str,
        credentials: &mut Option<Credentials>,
    ) -> bool {
        let (records, given, at) = (self.records.clone(), request.image.to_owned(), reference.to_owned());
        // What cannot be looked at opens nothing.
        match FILES.run(move || records.decide(&given, &at)).await.unwrap_or(Decision::Pull) {
            Decision::Use => true,
            Decision::Pull => false,
            Decision::Show(known) => {
                let found = self.credentials(request, image).await;
                let shown = Presented::of(&found.candidates);
                *credentials = Some(found);
                let (records, given, at) = (self.records.clone(), request.image.to_owned(), reference.to_owned());
                FILES.run(move || records.shown(&given, &at, &known, &shown)).await.unwrap_or(false)
            }
        }
    }

    /// Asks every source.
    async fn credentials(&self, request: &EnsureRequest<'_>, image: &str) -> Credentials {
        // It was parsed before.
        let repository = Reference::parse(image).map(|r| r.repository()).unwrap_or_default();
        let answered = self.providers.lookup(&repository, request.pod).await;
        let mut ring = Keyring::new();
        for secret in request.secrets {
            ring.add_secret(secret);
        }
        let node = self.node.clone();
        if let Ok(config) = FILES.run(move || node.read()).await {
            ring.add_node(&config);
        }
        for provided in &answered.answers {
            ring.add_provided(provided);
        }
        let candidates = ring.lookup(&repository);
        Credentials { candidates, faults: ring.faults, errors: answered.errors }
    }

    async fn pull(
        &self,
        request: &EnsureRequest<'_>,
        image: &str,
        credentials: Option<Credentials>,
        effects: &dyn PullEffects,
    ) -> Result<Present, EnsureError> {
        let given = request.image;
        let key = backoff_key(&request.pod.uid, given);
        let waits = self.backoff.lock().waits(&key, Instant::now()).map(|(_, cause)| cause.to_owned());
        if let Some(cause) = waits {
            let message = format!("Back-off pulling image {given:?}");
            effects.event(false, "BackOff", message.clone());
            return Err(EnsureError::new("ImagePullBackOff", format!("{message}: {cause}")));
        }
        let credentials = match credentials {
            Some(c) => c,
            None => self.credentials(request, image).await,
        };
        let mut intent = self.begin(given).await?;
        effects.event(false, "Pulling", format!("Pulling image {given:?}"));
        let asked = Instant::now();
        let slot = match &self.slots {
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        };
        let began = Instant::now();
        let outcome = self.attempt(image, &credentials, effects).await;
        let took = began.elapsed();
        drop(slot);
        match outcome {
            Ok((reference, used)) => {
                let found = effects.status(image).await.ok().flatten();
                let size = found.as_ref().map_or(0, |f| f.size);
                self.succeeded(&mut intent, &reference, used).await;
                self.backoff.lock().forget(&key);
                let (took, whole) = (go_duration(took), go_duration(asked.elapsed()));
                let message = format!(
                    "Successfully pulled image {given:?} in {took} ({whole} including waiting). Image size: {size} bytes."
                );
                effects.event(false, "Pulled", message);
                Ok(Present { reference, ..found.unwrap_or_default() })
            }
            Err(errors) => {
                self.failed(&mut intent).await;
                let (error, reported) = pull_error(given, &errors, &credentials);
                effects.event(true, "Failed", format!("Failed to pull image {given:?}: {reported}"));
                self.backoff.lock().failed(&key, Instant::now(), error.to_string());
                Err(error)
            }
        }
    }

    async fn begin(&self, given: &str) -> Result<Intent, EnsureError> {
        let (records, image) = (self.records.clone(), given.to_owned());
        let begun = FILES
            .run(move || {
                records.begin(&image)?;
                Ok::<_, std::io::Error>(Intent { records, image, open: true })
            })
            .await;
        begun.map_err(std::io::Error::other).and_then(|b| b).map_err(|e| {
            let message = format!("Failed to record image pull intent for container image {given:?}: failed to record image pull intent: {e}");
            EnsureError::new("ErrImagePull", message)
        })
    }

    /// The intent is removed before the failure is returned: a later pull of the image creates another.
    async fn failed(&self, intent: &mut Intent) {
        intent.open = false;
        let (records, image) = (self.records.clone(), intent.image.clone());
        // A failed removal is logged where it fails, and leaves the intent.
        let _ = FILES.run(move || records.failed(&image)).await;
    }

    async fn succeeded(&self, intent: &mut Intent, reference: &str, used: Option<&Candidate>) {
        intent.open = false;
        let credentials = ImagePullCredentials::of(used);
        let (records, image, reference) = (self.records.clone(), intent.image.clone(), reference.to_owned());
        // A failed write is logged where it fails, and leaves the intent.
        let _ = FILES.run(move || records.pulled(&image, &reference, &credentials)).await;
    }

    /// All candidates in order; without any, no credentials.
    async fn attempt<'c>(
        &self,
        image: &str,
        credentials: &'c Credentials,
        effects: &dyn PullEffects,
    ) -> Result<(String, Option<&'c Candidate>), Vec<String>> {
        if self.bucket.lock().as_mut().is_some_and(|b| !b.try_take(Instant::now())) {
            return Err(vec!["pull QPS exceeded".to_owned()]);
        }
        if credentials.candidates.is_empty() {
            let reference = self.once(image, None, effects).await.map_err(|e| vec![e])?;
            return Ok((reference, None));
        }
        let mut errors = Vec::new();
        for candidate in &credentials.candidates {
            match self.once(image, Some(candidate), effects).await {
                Ok(reference) => return Ok((reference, Some(candidate))),
                Err(e) => errors.push(without_secrets(e, &credentials.candidates)),
            }
        }
        Err(errors)
    }

    async fn once(&self, image: &str, auth: Option<&Candidate>, effects: &dyn PullEffects) -> Result<String, String> {
        let pull = effects.pull(image, auth);
        let Some(deadline) = self.options.progress_deadline else { return pull.await };
        tokio::pin!(pull);
        let mut before = None;
        loop {
            match tokio::time::timeout(deadline, &mut pull).await {
                Ok(ended) => return ended,
                Err(_) => match effects.progress(image).await {
                    Some(bytes) if before == Some(bytes) => {
                        return Err(format!(
                            "image pull progress deadline exceeded: no progress for {}",
                            go_duration(deadline)
                        ));
                    }
                    progress => before = progress,
                },
            }
        }
    }
}

fn backoff_key(pod_uid: &str, image: &str) -> String {
    format!("{pod_uid}_{image}")
}

/// The runtime may repeat what it was given.
fn without_secrets(mut text: String, candidates: &[Candidate]) -> String {
    for c in candidates {
        for secret in [&c.auth.password, &c.auth.identity_token, &c.auth.registry_token] {
            if !secret.is_empty() && text.contains(secret.reveal()) {
                text = text.replace(secret.reveal(), "[redacted]");
            }
        }
    }
    text
}

/// Returns the waiting state, and the message of the event.
fn pull_error(image: &str, errors: &[String], credentials: &Credentials) -> (EnsureError, String) {
    let mut distinct: Vec<&str> = Vec::new();
    for e in errors {
        if !distinct.contains(&e.as_str()) {
            distinct.push(e);
        }
    }
    let text = match distinct.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    };
    let mut notes = Vec::new();
    let mut tried: Vec<String> = Vec::new();
    for source in credentials.candidates.iter().map(|c| c.source.to_string()) {
        if !tried.contains(&source) {
            tried.push(source);
        }
    }
    if !tried.is_empty() {
        notes.push(format!("credentials tried: {}", tried.join(", ")));
    }
    for e in &credentials.errors {
        notes.push(format!("credential provider {:?} failed: {}: {}", e.plugin, e.fault.reason, e.fault.message));
    }
    notes.extend(credentials.faults.iter().cloned());
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let reported = crate::events::bounded(format!("{text}{notes}"), MESSAGE_BYTES_MAX);
    for (reason, words) in [
        ("RegistryUnavailable", "because the registry is unavailable"),
        ("SignatureValidationFailed", "because the signature validation failed"),
    ] {
        if let Some(rest) = text.strip_prefix(reason) {
            let message = crate::events::bounded(
                format!("image pull failed for {image} {words}{rest}{notes}"),
                MESSAGE_BYTES_MAX,
            );
            return (EnsureError::new(reason, message), reported);
        }
    }
    (EnsureError::new("ErrImagePull", reported.clone()), reported)
}
