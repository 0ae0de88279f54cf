//! Credential provider plugins (KEP-2133, KEP-4412): which are asked for an image, and what they answered. The keyring
//! puts the answers in order with the other sources; configuration files are read in [`crate::config`].
pub mod cache;
pub mod exec;
mod fault;
mod identity;
pub mod protocol;
pub(crate) mod provider;
pub mod scrub;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kelson_meta::Clock;
use kelson_tasks::FILES;
use kelson_tasks::Tasks;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use exec::{Executor, ProcessExecutor};
pub use fault::{FaultReason, PluginError, PluginFault};
pub use identity::{Coordinates, NoServiceAccounts, PodIdentity, ServiceAccount, ServiceAccounts, Token, TokenRequest};
pub use provider::{BACKOFF_MAX, BACKOFF_MIN, Provided};

use crate::config::{self, Config, ConfigError};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::pattern::{PatternIndex, Target};
use provider::{Effects, Provider};

/// Plugin processes at once on a node, where nothing else is said.
pub const PROCESSES_MAX: usize = 8;

/// The dependencies of providers.
pub struct Options {
    /// Runs the process; tests give answers instead.
    pub executor: Arc<dyn Executor>,
    /// Service accounts and their tokens.
    pub accounts: Arc<dyn ServiceAccounts>,
    /// The wall clock, for the expiry of tokens.
    pub clock: Arc<dyn Clock>,
    /// Receives events about failures.
    pub events: Arc<dyn Events>,
    /// Runs, durations and faults by plugin.
    pub metrics: Arc<Metrics>,
    /// Plugin processes at once.
    pub processes_max: usize,
}

/// All configured providers; shared by all pulls.
pub struct Providers {
    set: RwLock<Arc<Set>>,
    effects: Arc<Effects>,
    events: Arc<dyn Events>,
    /// The hash of the last rejected configuration, so that it is reported once.
    refused: Mutex<Option<String>>,
}

struct Set {
    index: PatternIndex,
    providers: Vec<Arc<Provider>>,
    hash: String,
}

/// The answers of the providers for an image.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// The answers in the order of the configuration.
    pub answers: Vec<Provided>,
    /// The errors of failed providers.
    pub errors: Vec<PluginError>,
}

impl Providers {
    /// Creates providers with a configuration; [`Config::default`] is an empty one.
    pub fn new(config: Config, options: Options) -> Self {
        let processes_max = options.processes_max.max(1);
        options.metrics.set_processes_max(processes_max);
        let effects = Arc::new(Effects {
            executor: options.executor,
            accounts: options.accounts,
            clock: options.clock,
            metrics: options.metrics,
            slots: Semaphore::new(processes_max),
            tasks: Tasks::root("credential-plugins"),
        });
        let empty = Set { index: PatternIndex::default(), providers: Vec::new(), hash: String::new() };
        let this =
            Self { set: RwLock::new(Arc::new(empty)), effects, events: options.events, refused: Mutex::new(None) };
        this.replace(config);
        this
    }

    /// Takes on a configuration. Providers that stayed the same keep their cache; runs of the others still end for those
    /// who wait for them, and leave nothing behind.
    pub fn replace(&self, config: Config) {
        let old = self.set.read().clone();
        let now = Instant::now();
        let mut index = PatternIndex::default();
        let mut providers = Vec::new();
        for (i, p) in config.providers.into_iter().enumerate() {
            for (_, pattern) in &p.match_images {
                index.add(pattern.clone(), i);
            }
            let kept = old.providers.iter().find(|o| o.config == p).cloned();
            providers.push(kept.unwrap_or_else(|| Arc::new(Provider::new(p, now))));
        }
        self.effects.metrics.set_config_hash(&config.hash);
        *self.set.write() = Arc::new(Set { index, providers, hash: config.hash });
    }

    /// Reloads the configuration if it changed, which reads files; an invalid one is reported and changes nothing.
    /// Returns whether the file's content is in use.
    pub fn reload(&self, path: &Path, bin_dir: &Path) -> Result<bool, ConfigError> {
        match config::load(path, bin_dir) {
            Ok(config) => {
                *self.refused.lock() = None;
                if self.set.read().hash == config.hash {
                    return Ok(false);
                }
                tracing::info!(hash = %config.hash, providers = config.providers.len(), "credential provider configuration reloaded");
                self.events.config_reloaded(&config.hash);
                self.replace(config);
                self.effects.metrics.reloaded(true);
                Ok(true)
            }
            Err(e) => {
                let text = e.to_string();
                let mut refused = self.refused.lock();
                if refused.as_ref() != Some(&text) {
                    tracing::error!(error = %text, "credential provider configuration is invalid; keeping the current one");
                    self.effects.metrics.reloaded(false);
                    self.events.config_rejected(&text);
                    *refused = Some(text);
                }
                Err(e)
            }
        }
    }

    /// Reloads on every change of the file or directory, and of the plugins' directory: a configuration that was
    /// rejected because a plugin is missing is used when the plugin exists. Ends only when dropped.
    pub async fn follow(self: Arc<Self>, path: PathBuf, bin_dir: PathBuf) {
        let (file, beside) = (path.clone(), Some(bin_dir.clone()));
        config::watch(path, beside, move || {
            let (providers, file, bin_dir) = (self.clone(), file.clone(), bin_dir.clone());
            async move {
                // Errors are reported where they occur.
                let _ = FILES.run(move || providers.reload(&file, &bin_dir)).await;
            }
        })
        .await;
    }

    /// Names of the providers that are asked for an image (a normalised repository).
    pub fn matching(&self, image: &str) -> Vec<String> {
        self.matched(image).iter().map(|p| p.config.name.clone()).collect()
    }

    fn matched(&self, image: &str) -> Vec<Arc<Provider>> {
        let set = self.set.read().clone();
        let Ok(target) = Target::parse(image) else { return Vec::new() };
        set.index.lookup(&target).into_iter().map(|i| set.providers[i].clone()).collect()
    }

    /// Calls all matching providers concurrently. `image` is a normalized repository without tag and digest. New
    /// failures are reported as events of the pod.
    pub async fn lookup(&self, image: &str, pod: &PodIdentity) -> Lookup {
        let matched = self.matched(image);
        let kept: Vec<Option<Provided>> = matched.iter().map(|p| p.kept(image)).collect();
        let mut lookup = Lookup::default();
        // The usual case on a busy node: all answers are cached.
        if kept.iter().all(Option::is_some) {
            lookup.answers = kept.into_iter().flatten().collect();
            return lookup;
        }
        let asked = matched.iter().zip(kept).map(|(provider, kept)| async move {
            match kept {
                Some(kept) => Ok(Some(kept)),
                None => provider.provide(&self.effects, image, pod).await,
            }
        });
        for result in futures::future::join_all(asked).await {
            match result {
                Ok(Some(provided)) => lookup.answers.push(provided),
                Ok(None) => {}
                Err(e) => {
                    if e.fresh {
                        tracing::warn!(plugin = %e.plugin, image, pod = %format_args!("{}/{}", pod.namespace, pod.name), error = %e, "credential provider plugin failed");
                        self.events.plugin_failed(pod, &e);
                    }
                    lookup.errors.push(e);
                }
            }
        }
        lookup
    }
}
