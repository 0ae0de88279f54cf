//! Images of containers: the bridge from pods to `kelson-credentials`, which decides what is pulled when and with what
//! credentials. Here are its effects (`effects`: the runtime; `api`: secrets, service accounts, events), the way from a
//! container to its image (`ensure`), and the collection of images that no container uses ([`gc`]).
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

pub use effects::{ImageEffects, Wanted};
pub use kelson_credentials::Present;

use crate::config::{Config, CredentialProviderFiles};
use crate::pod;
use error::OpenError;

/// The node's pulls; cheap to clone.
#[derive(Clone)]
pub struct Images {
    manager: Arc<PullManager>,
    providers: Arc<Providers>,
    files: Option<CredentialProviderFiles>,
}

impl Images {
    /// Reads the providers' configuration and opens the records of pulls, which `registry` shows.
    ///
    /// # Errors
    /// When the configuration is not sound, or the records' directory cannot be made.
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

    /// Keeps the providers' configuration as the files have it; ends at once where there are none.
    pub fn follow(self) -> impl Future<Output = ()> + Send + 'static {
        let (providers, files) = (self.providers, self.files);
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
        // Fails only when the process ends, or by a panic that has been reported.
        let _ = FILES.run(move || manager.initialize(&listed)).await;
    }

    /// Forgets the records of images that are gone; `images` are all there were at `at` or later.
    pub async fn prune(&self, images: Vec<String>, at: Timestamp) {
        let manager = Arc::clone(&self.manager);
        // Fails only when the process ends, or by a panic that has been reported.
        let _ = FILES.run(move || manager.records().prune(&images, at)).await;
    }

    /// When a failed pull of this pod's image may be tried again; `None`: now.
    pub fn retry_at(&self, pod: &Pod, image: &str) -> Option<Instant> {
        self.manager.retry_at(pod::uid(pod), image)
    }
}
