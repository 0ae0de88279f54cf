//! Registered DRA drivers. The ResourceSlices of a driver are deleted soon after it is gone (upstream: `dra/plugin/dra_plugin_manager.go`).
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use kelson_client::{Client, ClientError, DeleteOptions, ListParams};
use kelson_meta::Backoff;
use kelson_tasks::{Scoped, Tasks};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::client::{DraVersion, DriverClient};
use super::health::HealthBoard;
use crate::csi::client::PluginInfo;
use crate::csi::drivers::SocketIdentity;
use crate::csi::registration::PluginHandler;
use crate::metrics::ClaimMetrics;

/// Time in which a driver may return before its ResourceSlices are deleted (upstream: `defaultWipingDelay`).
const RETURN_MAX: Duration = Duration::from_secs(30);
/// Interval at which the drivers' sockets are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Delays between attempts to delete the ResourceSlices of earlier drivers.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

struct RegisteredDriver {
    /// Path of the registration socket. The driver is unregistered when it is removed.
    socket: PathBuf,
    made: SocketIdentity,
    /// Path of the driver's gRPC socket.
    endpoint: PathBuf,
    client: DriverClient,
    /// Task that follows the health of the driver's devices.
    _listens: Scoped<()>,
}

/// Drivers by name. Two instances may have the same name during an update; calls go to the later one. Clones share the state.
#[derive(Clone)]
pub struct DraDrivers {
    all: Arc<Mutex<HashMap<String, Vec<RegisteredDriver>>>>,
    /// Names of drivers that registered since the last check, even if they are already gone.
    named: Arc<Mutex<BTreeSet<String>>>,
    metrics: Arc<ClaimMetrics>,
    health: HealthBoard,
    tasks: Tasks,
    /// Number of registrations so far.
    count: Arc<AtomicU64>,
}

impl DraDrivers {
    /// Creates it without drivers. `tasks` is the group of the tasks that follow drivers.
    pub fn new(metrics: Arc<ClaimMetrics>, tasks: Tasks) -> Self {
        Self {
            all: Arc::default(),
            named: Arc::default(),
            metrics,
            health: HealthBoard::default(),
            tasks,
            count: Arc::default(),
        }
    }

    /// Returns the client of a driver.
    ///
    /// # Errors
    /// No driver of this name is registered, in upstream's words.
    pub fn get(&self, name: &str) -> Result<DriverClient, String> {
        let all = self.all.lock();
        let last = all.get(name).and_then(|l| l.last()).map(|d| d.client.clone());
        last.ok_or_else(|| format!("DRA driver {name} is not registered"))
    }

    /// Health of the drivers' devices.
    pub fn health(&self) -> &HealthBoard {
        &self.health
    }

    /// Metrics of resource claims.
    pub fn metrics(&self) -> &ClaimMetrics {
        &self.metrics
    }

    /// Deletes the ResourceSlices of an earlier kubelet's drivers, and those of drivers that are gone, until the task is aborted.
    pub async fn run(self, client: Client, node: String) {
        let mut delay = None;
        while let Err(error) = wipe(&client, &node, None).await {
            tracing::info!(%error, "deleting the ResourceSlices of an earlier kubelet failed; retrying");
            delay = Some(RETRY.after(delay));
            tokio::time::sleep(RETRY.after(delay)).await;
        }
        let mut silent: HashMap<String, Option<Instant>> = HashMap::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let endpoints: HashMap<String, Vec<PathBuf>> = {
                let all = self.all.lock();
                all.iter().map(|(n, l)| (n.clone(), l.iter().map(|d| d.endpoint.clone()).collect())).collect()
            };
            for name in std::mem::take(&mut *self.named.lock()) {
                silent.entry(name).or_default();
            }
            for (name, since) in &mut silent {
                *since = if listens(endpoints.get(name)).await { None } else { since.or_else(|| Some(Instant::now())) };
            }
            let late: Vec<String> = silent
                .iter()
                .filter(|(_, since)| since.is_some_and(|s| s.elapsed() >= RETURN_MAX))
                .map(|(name, _)| name.clone())
                .collect();
            for name in late {
                match wipe(&client, &node, Some(&name)).await {
                    Ok(()) => drop(silent.remove(&name)),
                    Err(error) => {
                        tracing::warn!(driver = name, %error, "deleting the ResourceSlices of an unregistered driver failed; retrying")
                    }
                }
            }
        }
    }
}

/// Returns whether a process listens at any of these sockets.
async fn listens(endpoints: Option<&Vec<PathBuf>>) -> bool {
    for endpoint in endpoints.into_iter().flatten() {
        if UnixStream::connect(endpoint).await.is_ok() {
            return true;
        }
    }
    false
}

/// Deletes the ResourceSlices of this node, or of one driver on it.
async fn wipe(client: &Client, node: &str, driver: Option<&str>) -> Result<(), ClientError> {
    let of_driver = driver.map(|d| format!(",spec.driver={d}")).unwrap_or_default();
    let params = ListParams { fields: format!("spec.nodeName={node}{of_driver}"), ..ListParams::default() };
    let slices = match client.list::<ResourceSlice>("", &params).await {
        // A cluster without the API `resource.k8s.io` has no slices.
        Err(e) if e.is_not_found() => return Ok(()),
        other => other?.items,
    };
    for slice in slices {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        match client.delete::<ResourceSlice>("", name, &DeleteOptions::default()).await {
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

impl PluginHandler for DraDrivers {
    fn kind(&self) -> &'static str {
        "DRAPlugin"
    }

    fn admit(&self, socket: &Path, made: SocketIdentity, info: &PluginInfo) -> Result<(), String> {
        let name = &info.name;
        if kelson_meta::is_dns1123_subdomain(name).is_err() || name.len() > 63 {
            return Err(format!("{name:?} is not a valid driver name"));
        }
        let endpoint = if info.endpoint.is_empty() { socket } else { Path::new(&info.endpoint) };
        let version = DraVersion::choose(&info.supported_versions).map_err(|why| {
            let endpoint = endpoint.display();
            format!("invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {why}")
        })?;
        let client =
            DriverClient::new(name, endpoint, version, Arc::clone(&self.metrics)).map_err(|e| e.to_string())?;
        let instance = self.count.fetch_add(1, Ordering::Relaxed);
        let listens = self.tasks.scoped("device-health", self.health.clone().follow(client.clone(), instance));
        let (socket, endpoint) = (socket.to_owned(), endpoint.to_owned());
        let driver = RegisteredDriver { socket, made, endpoint, client, _listens: listens };
        self.named.lock().insert(name.clone());
        let mut all = self.all.lock();
        let of_name = all.entry(name.clone()).or_default();
        // A new socket of the same path means that the same driver restarted.
        of_name.retain(|d| d.socket != driver.socket);
        of_name.push(driver);
        Ok(())
    }

    fn forget(&self, stays: &dyn Fn(&Path) -> bool) {
        self.all.lock().retain(|name, of_name| {
            of_name.retain(|d| stays(&d.socket));
            if of_name.is_empty() {
                tracing::info!(driver = name, "DRA driver unregistered");
            }
            !of_name.is_empty()
        });
    }

    fn has_socket(&self, socket: &Path, made: SocketIdentity) -> bool {
        self.all.lock().values().flatten().any(|d| d.socket == socket && d.made == made)
    }
}
