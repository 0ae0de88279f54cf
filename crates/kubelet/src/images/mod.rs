//! Images of containers. `kelson-credentials` decides when to pull and with which credentials; this module connects it to pods. `effects`
//! calls the runtime, `api` reads secrets and service accounts and records events, `ensure` pulls the image of a container, and [`gc`]
//! removes unused images.
mod api;
mod effects;
mod ensure;
pub mod error;
pub mod gc;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::{Client, EventRecorder};
use kelson_credentials::plugin::Options;
use kelson_credentials::records::ListedImage;
use kelson_credentials::{Metrics, NodeConfig, ProcessExecutor, Providers, PullManager, config as providers_config};
use kelson_cri::Runtime;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_tasks::FILES;
use tokio::time::Instant;

pub use effects::{ImageEffects, ImageRequest};
pub use kelson_credentials::Present;

use crate::config::{Config, CredentialProviderFiles};
use crate::pod;
use error::OpenError;

/// The pull manager of the node. Clones share it.
#[derive(Clone)]
pub struct Images {
    manager: Arc<PullManager>,
    providers: Arc<Providers>,
    files: Option<CredentialProviderFiles>,
}

impl Images {
    /// Reads the configuration of credential providers and opens the pull records, whose metrics go to `registry`.
    ///
    /// # Errors
    /// The configuration is invalid, or the directory of the records cannot be created.
    pub fn open(
        config: &Config,
        client: Client,
        recorder: EventRecorder,
        clock: Arc<dyn Clock>,
        registry: &Registry,
    ) -> Result<Self, OpenError> {
        let files = config.image_credential_provider.clone();
        let (loaded, bin_dir) = match &files {
            Some(f) => (providers_config::load(&f.config, &f.bin_dir)?, f.bin_dir.clone()),
            None => (providers_config::Config::default(), std::path::PathBuf::new()),
        };
        let metrics = Arc::new(Metrics::new(registry));
        let options = Options {
            executor: Arc::new(ProcessExecutor::new(bin_dir)),
            accounts: Arc::new(api::Accounts::new(client)),
            clock: Arc::clone(&clock),
            events: Arc::new(api::PullEvents::new(recorder, &config.node_name)),
            metrics: Arc::clone(&metrics),
            processes_max: config.credential_processes_max,
        };
        let providers = Arc::new(Providers::new(loaded, options));
        let node = Arc::new(NodeConfig::usual(&config.root_dir));
        let pulls = config.image_pulls.clone();
        let manager = PullManager::open(&config.root_dir, pulls, node, Arc::clone(&providers), clock, metrics)
            .map_err(|source| OpenError::Directory {
                path: config.root_dir.join("image_manager").display().to_string(),
                source,
            })?;
        Ok(Self { manager: Arc::new(manager), providers, files })
    }

    /// Reloads the configuration of credential providers when its files change. Returns at once if there are none.
    pub fn follow(self) -> impl Future<Output = ()> + Send + 'static {
        let (providers, files) = (self.providers, self.files);
        async move {
            if let Some(f) = files {
                providers.follow(f.config, f.bin_dir).await;
            }
        }
    }

    /// Loads the pull records of an earlier process. Called once, before the first pull.
    pub async fn initialize(&self, runtime: &dyn Runtime) {
        let images = match runtime.list_images(None).await {
            Ok(images) => images,
            // Interrupted pulls stay recorded as such, so that their images are verified.
            Err(e) => return tracing::warn!(error = %e, "listing images failed; records of interrupted pulls are kept"),
        };
        let listed: Vec<ListedImage> = images
            .into_iter()
            .map(|i| ListedImage { id: i.id, repo_tags: i.repo_tags, repo_digests: i.repo_digests })
            .collect();
        let manager = Arc::clone(&self.manager);
        // Fails only if the process ends, or after a panic that was already reported.
        let _ = FILES.run(move || manager.initialize(&listed)).await;
    }

    /// Removes the records of images that are gone. `images` are all images at `at` or later.
    pub async fn prune(&self, images: Vec<String>, at: Timestamp) {
        let manager = Arc::clone(&self.manager);
        // Fails only if the process ends, or after a panic that was already reported.
        let _ = FILES.run(move || manager.records().prune(&images, at)).await;
    }

    /// Returns when a failed pull of this pod's image may be retried; `None` means now.
    pub fn retry_at(&self, pod: &Pod, image: &str) -> Option<Instant> {
        self.manager.retry_at(pod::uid(pod), image)
    }
}
