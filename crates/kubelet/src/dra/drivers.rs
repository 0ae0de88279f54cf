//! Drivers of devices that are on this node: which there are, and that what one offered is offered no more soon after it has gone
//! (upstream: `dra/plugin/dra_plugin_manager.go`).
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
use crate::csi::drivers::Made;
use crate::csi::registration::PluginHandler;
use crate::metrics::ClaimMetrics;

/// A driver may come back within this time before what it offers is taken away (upstream `defaultWipingDelay`).
const RETURN_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether drivers still listen.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Pauses before what a former driver offered is tried again to be taken away.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

struct RegisteredDriver {
    /// The socket by which it registered: when that goes, the driver does.
    socket: PathBuf,
    made: Made,
    /// Where it listens.
    endpoint: PathBuf,
    client: DriverClient,
    /// Takes in what it says of its devices.
    _listens: Scoped<()>,
}

/// The drivers by name; of two of one name, as while one replaces the other, the later is spoken to. Cheap to clone.
#[derive(Clone)]
pub struct DraDrivers {
    all: Arc<Mutex<HashMap<String, Vec<RegisteredDriver>>>>,
    /// Who has registered since it was last looked, even if gone again by then.
    named: Arc<Mutex<BTreeSet<String>>>,
    metrics: Arc<ClaimMetrics>,
    health: HealthBoard,
    tasks: Tasks,
    /// How many have registered.
    count: Arc<AtomicU64>,
}

impl DraDrivers {
    /// No driver is here yet. Those that come are listened to in this group of tasks.
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

    /// The way to a driver.
    ///
    /// # Errors
    /// When none of this name is here, in upstream's words.
    pub fn get(&self, name: &str) -> Result<DriverClient, String> {
        let all = self.all.lock();
        let last = all.get(name).and_then(|l| l.last()).map(|d| d.client.clone());
        last.ok_or_else(|| format!("DRA driver {name} is not registered"))
    }

    /// How their devices are.
    pub fn health(&self) -> &HealthBoard {
        &self.health
    }

    /// What is counted.
    pub fn metrics(&self) -> &ClaimMetrics {
        &self.metrics
    }

    /// Takes away what drivers of an earlier kubelet offered, and what those offer that go, for as long as the task runs.
    pub async fn run(self, client: Client, node: String) {
        let mut delay = None;
        while let Err(error) = wipe(&client, &node, None).await {
            tracing::info!(%error, "slices of drivers of an earlier kubelet not removed yet");
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
                    Err(error) => tracing::warn!(driver = name, %error, "slices of a driver that is gone not removed"),
                }
            }
        }
    }
}

/// Whether any of these sockets has somebody behind it.
async fn listens(endpoints: Option<&Vec<PathBuf>>) -> bool {
    for endpoint in endpoints.into_iter().flatten() {
        if UnixStream::connect(endpoint).await.is_ok() {
            return true;
        }
    }
    false
}

/// Removes the slices of this node, or of one driver on it.
async fn wipe(client: &Client, node: &str, driver: Option<&str>) -> Result<(), ClientError> {
    let of_driver = driver.map(|d| format!(",spec.driver={d}")).unwrap_or_default();
    let params = ListParams { fields: format!("spec.nodeName={node}{of_driver}"), ..ListParams::default() };
    let slices = match client.list::<ResourceSlice>("", &params).await {
        // A cluster without this API has no slices.
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

    fn admit(&self, socket: &Path, made: Made, info: &PluginInfo) -> Result<(), String> {
        let name = &info.name;
        if kelson_meta::is_dns1123_subdomain(name).is_err() || name.len() > 63 {
            return Err(format!("{name:?} is no name of a driver"));
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
        // The same socket made anew is the same driver started again.
        of_name.retain(|d| d.socket != driver.socket);
        of_name.push(driver);
        Ok(())
    }

    fn forget(&self, stays: &dyn Fn(&Path) -> bool) {
        self.all.lock().retain(|name, of_name| {
            of_name.retain(|d| stays(&d.socket));
            if of_name.is_empty() {
                tracing::info!(driver = name, "a driver of devices is gone");
            }
            !of_name.is_empty()
        });
    }

    fn has_socket(&self, socket: &Path, made: Made) -> bool {
        self.all.lock().values().flatten().any(|d| d.socket == socket && d.made == made)
    }
}
