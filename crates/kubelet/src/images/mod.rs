//! Images of containers: the bridge from pods to `kelson-credentials`, which decides what is pulled when and with what
//! credentials. Here are its effects ([`effects`]: the runtime; [`api`]: secrets, service accounts, events) and the
//! collection of images nobody uses ([`gc`]).
mod api;
mod effects;
pub mod gc;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_client::{Client, EventRecorder, EventType};
use kelson_credentials::plugin::{Options, PROCESSES_MAX};
use kelson_credentials::records::ListedImage;
use kelson_credentials::{
    EnsureRequest, Metrics, NodeConfig, PodIdentity, ProcessExecutor, Providers, PullManager, PullPolicy, PullSecret,
    config as providers_config,
};
use kelson_cri::{Runtime, proto as cri};
use kelson_meta::Clock;

pub use kelson_credentials::Present;
pub use kelson_credentials::pull::go_duration;

use crate::config::{Config, CredentialProviderFiles};
use crate::effects::Context;
use crate::pod::{self, Role};
use crate::start::KubeletError;

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

/// The node's pulls; cheap to clone.
#[derive(Clone)]
pub struct Images {
    manager: Arc<PullManager>,
    providers: Arc<Providers>,
    files: Option<CredentialProviderFiles>,
}

impl Images {
    /// Reads the providers' configuration and opens the records of pulls.
    ///
    /// # Errors
    /// When the configuration is not sound, or the records' directory cannot be made.
    pub fn open(
        config: &Config,
        client: Client,
        recorder: EventRecorder,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, KubeletError> {
        let files = config.image_credential_provider.clone();
        let (loaded, bin_dir) = match &files {
            Some(f) => (providers_config::load(&f.config, &f.bin_dir)?, f.bin_dir.clone()),
            None => (providers_config::Config::default(), std::path::PathBuf::new()),
        };
        let metrics = Arc::new(Metrics::default());
        let options = Options {
            executor: Arc::new(ProcessExecutor::new(bin_dir)),
            accounts: Arc::new(api::Accounts::new(client)),
            clock: Arc::clone(&clock),
            events: Arc::new(api::Told::new(recorder, &config.node_name)),
            metrics: Arc::clone(&metrics),
            processes_max: PROCESSES_MAX,
        };
        let providers = Arc::new(Providers::new(loaded, options));
        let node = Arc::new(NodeConfig::usual(&config.root_dir));
        let pulls = config.image_pulls.clone();
        let manager = PullManager::open(&config.root_dir, pulls, node, Arc::clone(&providers), clock, metrics)
            .map_err(|source| KubeletError::Directory {
                path: config.root_dir.join("image_manager").display().to_string(),
                source,
            })?;
        Ok(Self { manager: Arc::new(manager), providers, files })
    }

    /// Keeps the providers' configuration as the files have it; ends at once where there are none.
    pub fn follow(&self) -> impl Future<Output = ()> + Send + 'static {
        let (providers, files) = (Arc::clone(&self.providers), self.files.clone());
        async move {
            if let Some(f) = files {
                providers.follow(f.config, f.bin_dir).await;
            }
        }
    }

    /// Takes up the records of a former run; once, before the first pull.
    pub async fn initialize(&self, runtime: &dyn Runtime) {
        let images = match runtime.list_images(None).await {
            Ok(images) => images,
            // What was begun stays noted as begun: its image must be verified.
            Err(e) => return tracing::warn!(error = %e, "images not listed; records of broken-off pulls stay open"),
        };
        let listed: Vec<ListedImage> = images
            .into_iter()
            .map(|i| ListedImage { id: i.id, repo_tags: i.repo_tags, repo_digests: i.repo_digests })
            .collect();
        let manager = Arc::clone(&self.manager);
        // Fails only when the process ends.
        let _ = tokio::task::spawn_blocking(move || manager.initialize(&listed)).await;
    }

    /// Forgets the records of images that are gone; `images` are all there were at `at` or later.
    pub async fn prune(&self, images: Vec<String>, at: Timestamp) {
        let manager = Arc::clone(&self.manager);
        // Fails only when the process ends.
        let _ = tokio::task::spawn_blocking(move || manager.records().prune(&images, at)).await;
    }

    /// Appends the metrics of credentials and pulls.
    pub fn encode_metrics(&self, out: &mut String) {
        self.manager.encode_metrics(out);
    }

    /// Sees to it that the container's image is on the node and that the pod may use it.
    pub async fn ensure(
        &self,
        ctx: &Context,
        pod: &Pod,
        role: Role,
        c: &Container,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let image = c.image.as_deref().unwrap_or_default();
        let policy = PullPolicy::of(c.image_pull_policy.as_deref(), image);
        let secrets = pull_secrets(ctx, pod).await;
        let about = identity(pod);
        let request = EnsureRequest { pod: &about, image, policy, secrets: &secrets };
        let effects = effects::Effects::new(ctx, pod, role, &c.name, image, sandbox);
        let ensured = self.manager.ensure(&request, &effects).await;
        ensured.map_err(|e| StartError::new(e.reason, e.message))
    }

    /// When a failed pull of this pod's image may be tried again; `None`: now.
    pub fn retry_at(&self, pod: &Pod, image: &str, now: Timestamp) -> Option<Timestamp> {
        self.manager.retry_at(pod::uid(pod), image).filter(|at| *at > now)
    }
}

fn identity(pod: &Pod) -> PodIdentity {
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default();
    PodIdentity {
        namespace: pod::namespace(pod).to_owned(),
        name: pod::name(pod).to_owned(),
        uid: pod::uid(pod).to_owned(),
        service_account: account,
    }
}

/// The pod's pull secrets, as far as they can be read; a missing one is told and is no reason not to try. Those of the
/// service account are in the pod since its admission.
async fn pull_secrets(ctx: &Context, pod: &Pod) -> Vec<PullSecret> {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let named = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    for reference in named.filter(|r| !r.name.is_empty()) {
        match ctx.objects.secret(pod, &reference.name).await {
            Ok(secret) => found.push(api::pull_secret(&secret)),
            Err(e) => {
                tracing::info!(pod = %pod::format_pod(pod), secret = %reference.name, error = %e, "image pull secret not usable");
                failed.push(reference.name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            failed.join(", ")
        );
        ctx.event(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}
