//! The providers of each resource: the entry with its name, or `*.GROUP`, or `*.*`, or none.

use std::collections::HashMap;
use std::sync::Arc;

use kelson_store::Resource;
use kelson_tasks::Tasks;
use parking_lot::RwLock;

use crate::chain::{Chain, Link};
use crate::config::{Config, ConfigError, GroupResource, NamedKey, Provider};
use crate::kms::{Kms, KmsOptions};
use crate::metrics::Metrics;
use crate::transform::{AesCbc, AesGcm, SecretBox, Transform, TransformError};

/// One configuration at work.
pub(crate) struct Table {
    chains: HashMap<GroupResource, Arc<Chain>>,
    none: Arc<Chain>,
    /// Looked up once per resource.
    found: RwLock<HashMap<Resource, Arc<Chain>>>,
    pub services: Vec<Arc<Kms>>,
    pub hash: String,
    /// The tasks that check the key services; they end with the configuration.
    tasks: Tasks,
}

impl Drop for Table {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

impl Table {
    /// Creates the providers. Each key service is called once; an unavailable one is not an error.
    ///
    /// # Errors
    /// Fails if an earlier entry masks another, or if a key is invalid.
    pub async fn build(config: Config, metrics: &Arc<Metrics>, tasks: &Tasks) -> Result<Self, ConfigError> {
        let tasks = tasks.child("encryption-keys");
        let mut chains: HashMap<GroupResource, Chain> = HashMap::new();
        let mut services = Vec::new();
        for entry in config.resources {
            let mut links = Vec::new();
            for provider in entry.providers {
                links.extend(provider_links(provider, metrics, &tasks, &mut services).await?);
            }
            for resource in entry.resources {
                let masks = [GroupResource::new(&resource.group, "*"), GroupResource::new("*", "*")];
                if let Some(earlier) = masks.iter().find(|mask| chains.contains_key(mask)) {
                    let (resource, earlier) = (resource.to_string(), earlier.to_string());
                    return Err(ConfigError::Masked(format!(
                        "resource {resource:?} is masked by earlier rule {earlier:?}"
                    )));
                }
                chains.entry(resource).or_default().0.extend(links.iter().cloned());
            }
        }
        let chains = chains.into_iter().map(|(resource, chain)| (resource, Arc::new(chain))).collect();
        Ok(Self { chains, none: Arc::default(), found: RwLock::default(), services, hash: config.hash, tasks })
    }

    pub fn chain(&self, resource: Resource) -> Arc<Chain> {
        if let Some(found) = self.found.read().get(&resource) {
            return Arc::clone(found);
        }
        let (group, plural) = (resource.group(), resource.plural());
        let names = [GroupResource::new(group, plural), GroupResource::new(group, "*"), GroupResource::new("*", "*")];
        let chain = names.iter().find_map(|name| self.chains.get(name)).unwrap_or(&self.none);
        self.found.write().insert(resource, Arc::clone(chain));
        Arc::clone(chain)
    }
}

async fn provider_links(
    provider: Provider,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
    services: &mut Vec<Arc<Kms>>,
) -> Result<Vec<Link>, ConfigError> {
    match provider {
        Provider::Identity => Ok(vec![Link { provider: String::new(), prefix: String::new(), with: None }]),
        Provider::AesCbc(keys) => links("k8s:enc:aescbc:v1:", keys, |key| Ok(Arc::new(AesCbc::new(key)?))),
        Provider::AesGcm(keys) => links("k8s:enc:aesgcm:v1:", keys, |key| Ok(Arc::new(AesGcm::new(key)?))),
        Provider::SecretBox(keys) => links("k8s:enc:secretbox:v1:", keys, |key| Ok(Arc::new(SecretBox::new(key)?))),
        Provider::Kms { name, endpoint, timeout } => {
            let prefix = format!("k8s:enc:kms:v2:{name}:");
            let kms = Kms::start(KmsOptions { name, endpoint, timeout }, Arc::clone(metrics), tasks).await;
            let kms = kms.map_err(ConfigError::Invalid)?;
            services.push(Arc::clone(&kms));
            Ok(vec![Link { provider: prefix.clone(), prefix, with: Some(kms) }])
        }
    }
}

type TransformResult = Result<Arc<dyn Transform>, TransformError>;

fn links(
    provider: &str,
    keys: Vec<NamedKey>,
    make: impl Fn(&[u8]) -> TransformResult,
) -> Result<Vec<Link>, ConfigError> {
    let link = |key: NamedKey| {
        let with = make(&key.key).map_err(|e| ConfigError::Invalid(e.to_string()))?;
        Ok(Link { provider: provider.to_owned(), prefix: format!("{provider}{}:", key.name), with: Some(with) })
    };
    keys.into_iter().map(link).collect()
}
