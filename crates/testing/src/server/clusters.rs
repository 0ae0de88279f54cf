//! The clusters of a test server, by name.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{Cluster, Error, Options};

/// A request for a cluster.
#[derive(Deserialize, Debug, Default, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterRequest {
    /// The cluster to fork.
    pub from: Option<String>,
    /// The options; for a fork the default is those of the original.
    pub options: Option<Options>,
}

/// The answer about a cluster.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct ClusterResponse {
    pub name: String,
    /// The URL: `https://127.0.0.1:PORT`.
    pub server: String,
    /// The CA of the server's certificate, PEM.
    pub certificate_authority: String,
    /// The kubeconfig of the administrator, YAML.
    pub kubeconfig: String,
}

/// A cluster in a list.
#[derive(Serialize, Debug)]
pub struct ClusterSummary {
    pub name: String,
    pub server: String,
}

/// Why a request is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("cluster {0:?} does not exist")]
    NotFound(String),
    #[error("the maximum of {0} clusters is reached")]
    TooMany(usize),
    #[error(transparent)]
    Cluster(#[from] Error),
}

/// All clusters of the server.
pub struct Clusters {
    live: Mutex<BTreeMap<String, Arc<Cluster>>>,
    made: AtomicU64,
    /// The number of clusters in `live`, and of those that are being started.
    count: AtomicUsize,
    max: usize,
}

/// A slot for a cluster, released unless it is kept.
struct ClusterSlot<'a> {
    count: &'a AtomicUsize,
    kept: bool,
}

impl Drop for ClusterSlot<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Clusters {
    pub fn new(max: usize) -> Self {
        Self { live: Mutex::default(), made: AtomicU64::new(0), count: AtomicUsize::new(0), max }
    }

    fn place(&self) -> Result<ClusterSlot<'_>, Refused> {
        let place = ClusterSlot { count: &self.count, kept: false };
        if self.count.fetch_add(1, Ordering::AcqRel) >= self.max {
            return Err(Refused::TooMany(self.max));
        }
        Ok(place)
    }

    /// Starts a cluster, and gives it a name that no other one had.
    pub async fn create(&self, wanted: ClusterRequest) -> Result<ClusterResponse, Refused> {
        let mut place = self.place()?;
        let cluster = match wanted.from {
            Some(from) => {
                let original = self.find(&from)?;
                match wanted.options {
                    Some(options) => Box::pin(original.fork_with(options)).await?,
                    None => Box::pin(original.fork()).await?,
                }
            }
            None => Box::pin(Cluster::start(wanted.options.unwrap_or_default())).await?,
        };
        let name = format!("c{}", self.made.fetch_add(1, Ordering::Relaxed) + 1);
        let cluster = Arc::new(cluster);
        let shown = show(&name, &cluster)?;
        self.live.lock().insert(name, cluster);
        place.kept = true;
        Ok(shown)
    }

    pub fn show(&self, name: &str) -> Result<ClusterResponse, Refused> {
        Ok(show(name, &*self.find(name)?)?)
    }

    pub fn list(&self) -> Vec<ClusterSummary> {
        self.live.lock().iter().map(|(name, c)| ClusterSummary { name: name.clone(), server: c.url() }).collect()
    }

    /// Stops a cluster, and waits for it.
    pub async fn delete(&self, name: &str) -> Result<(), Refused> {
        let cluster = self.live.lock().remove(name).ok_or_else(|| Refused::NotFound(name.to_owned()))?;
        end(cluster).await;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    /// Stops all clusters concurrently.
    pub async fn end_all(&self) {
        let all = std::mem::take(&mut *self.live.lock());
        for cluster in all.values() {
            cluster.stop();
        }
        for cluster in all.into_values() {
            end(cluster).await;
        }
    }

    fn find(&self, name: &str) -> Result<Arc<Cluster>, Refused> {
        self.live.lock().get(name).cloned().ok_or_else(|| Refused::NotFound(name.to_owned()))
    }
}

/// A fork in progress may still hold it; then the last holder stops it.
async fn end(cluster: Arc<Cluster>) {
    cluster.stop();
    if let Some(cluster) = Arc::into_inner(cluster) {
        cluster.shutdown().await;
    }
}

fn show(name: &str, cluster: &Cluster) -> Result<ClusterResponse, Error> {
    Ok(ClusterResponse {
        name: name.to_owned(),
        server: cluster.url(),
        certificate_authority: cluster.ca_pem().to_owned(),
        kubeconfig: cluster.kubeconfig()?,
    })
}
