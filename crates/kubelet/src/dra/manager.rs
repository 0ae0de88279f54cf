//! The claims of pods as the kubelet works with them: has their drivers make them ready and take that back, and says what containers
//! get by them (upstream: `dra/manager.go`).
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kelson_client::Client;
use kelson_cri::proto as cri;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::checkpoint;
use super::drivers::DraDrivers;
use super::health::Health;
use super::messages::ClaimName;
use super::prepared::{self, KnownClaim, KnownClaims, ReadyDevice};
use crate::pod;

/// How often it is looked for claims of pods that nobody knows any more (upstream `defaultReconcilePeriod`).
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The claims; cheap to clone.
#[derive(Clone)]
pub struct DynamicResources {
    shared: Arc<SharedClaims>,
}

struct SharedClaims {
    client: Client,
    drivers: DraDrivers,
    dir: PathBuf,
    claims: Mutex<KnownClaims>,
    /// Claims are made ready and given back one after the other: a driver is never asked for both at once.
    turn: tokio::sync::Mutex<()>,
    /// Whether all pods of this node are known.
    complete: AtomicBool,
}

impl DynamicResources {
    /// With what the last kubelet left in `dir`.
    ///
    /// # Errors
    /// When that is damaged: as upstream, which does not start then, because devices would stay ready for nobody.
    pub async fn open(client: Client, drivers: DraDrivers, dir: PathBuf) -> Result<Self, String> {
        let from = dir.clone();
        let read = FILES.run(move || checkpoint::read(&from)).await.map_err(|e| e.to_string())?;
        let claims = read.map_err(|e| format!("failed to get checkpoint {}: {e}", checkpoint::FILE))?;
        Ok(Self::with(client, drivers, dir, KnownClaims::remembered(claims)))
    }

    /// With what is known already.
    pub fn with(client: Client, drivers: DraDrivers, dir: PathBuf, claims: KnownClaims) -> Self {
        let (turn, complete) = (tokio::sync::Mutex::default(), AtomicBool::new(false));
        let claims = Mutex::new(claims);
        Self { shared: Arc::new(SharedClaims { client, drivers, dir, claims, turn, complete }) }
    }

    /// Has all claims of a pod made ready; what is ready already stays so.
    ///
    /// # Errors
    /// Why its containers cannot start yet.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let spec = pod.spec.as_ref();
        if spec.is_none_or(|s| s.resource_claims.is_none()) && prepared::extended_claim_of(pod).is_none() {
            return Ok(());
        }
        let began = Instant::now();
        let done = self.try_prepare(pod).await;
        self.shared.drivers.metrics().worked("PrepareResources", done.is_err(), began.elapsed());
        done.map_err(|why| format!("prepare dynamic resources: {why}"))
    }

    async fn try_prepare(&self, pod: &Pod) -> Result<(), String> {
        let mut found = Vec::new();
        let own = prepared::claims_of(pod)?.into_iter().map(|(_, name, made)| (name, made));
        let extended = prepared::extended_claim_of(pod).map(|name| (name.to_owned(), true));
        for (name, made_for_it) in own.chain(extended) {
            let claim = self.shared.client.get::<ResourceClaim>(pod::namespace(pod), &name).await;
            let claim = claim.map_err(|e| format!("fetch ResourceClaim {name}: {e}"))?;
            prepared::may_use(pod, &claim, made_for_it)?;
            found.push(KnownClaim::of(&claim)?);
        }
        for driver in found.iter().flat_map(|c| c.drivers.keys()) {
            self.shared.drivers.get(driver)?;
        }
        let _turn = self.shared.turn.lock().await;
        let mut wanted: Vec<KnownClaim> = Vec::new();
        for claim in found {
            let is_new = self.shared.claims.lock().uses(pod::uid(pod), claim.clone())?;
            if is_new && !wanted.iter().any(|c| c.uid == claim.uid) {
                wanted.push(claim);
            }
        }
        self.save().await?;
        if wanted.is_empty() {
            return Ok(());
        }
        for (driver, claims) in by_driver(&wanted) {
            self.prepare_by(&driver, claims).await?;
        }
        {
            let mut all = self.shared.claims.lock();
            for claim in &wanted {
                if let Some(known) = all.get_mut(&claim.namespace, &claim.name) {
                    known.is_ready = true;
                }
            }
        }
        self.save().await
    }

    async fn prepare_by(&self, driver: &str, claims: Vec<ClaimName>) -> Result<(), String> {
        let asked = self.shared.drivers.get(driver)?.prepare(claims.clone()).await;
        let mut answer = asked.map_err(|e| format!("NodePrepareResources: {e}"))?.claims;
        for claim in &claims {
            let Some(done) = answer.remove(&claim.uid) else {
                return Err("NodePrepareResources skipped 1 ResourceClaims".into());
            };
            if !done.error.is_empty() {
                return Err(format!("NodePrepareResources failed for ResourceClaim {}: {}", claim.name, done.error));
            }
            if let Some(known) = self.shared.claims.lock().get_mut(&claim.namespace, &claim.name) {
                known.made_ready(driver, done.devices);
            }
        }
        match answer.keys().next() {
            Some(uid) => Err(format!("NodePrepareResources returned result for unknown claim UID {uid}")),
            None => Ok(()),
        }
    }

    /// A pod's containers have ended: the drivers of claims that nobody else uses take back that they are ready.
    ///
    /// # Errors
    /// Why that must be tried again.
    pub async fn unprepare(&self, uid: &str) -> Result<(), String> {
        if !self.shared.claims.lock().all().any(|c| c.pods.contains_key(uid)) {
            return Ok(());
        }
        let began = Instant::now();
        let done = self.try_unprepare(uid).await;
        self.shared.drivers.metrics().worked("UnprepareResources", done.is_err(), began.elapsed());
        done.map_err(|why| format!("unprepare dynamic resources: {why}"))
    }

    async fn try_unprepare(&self, uid: &str) -> Result<(), String> {
        let _turn = self.shared.turn.lock().await;
        let last = self.shared.claims.lock().leave(uid);
        for (driver, claims) in by_driver(&last) {
            let asked = self.shared.drivers.get(&driver)?.unprepare(claims.clone()).await;
            let mut answer = asked.map_err(|e| format!("NodeUnprepareResources: {e}"))?.claims;
            for claim in &claims {
                let Some(done) = answer.remove(&claim.uid) else {
                    return Err("NodeUnprepareResources skipped 1 ResourceClaims".into());
                };
                if !done.error.is_empty() {
                    let (name, error) = (&claim.name, done.error);
                    return Err(format!("NodeUnprepareResources failed for ResourceClaim {name}: {error}"));
                }
            }
        }
        {
            let mut all = self.shared.claims.lock();
            last.iter().for_each(|claim| all.remove(claim));
        }
        self.save().await
    }

    /// The devices that a container gets, by their names in the container device interface.
    ///
    /// # Errors
    /// When one of its claims is not ready.
    pub fn given(&self, pod: &Pod, c: &Container) -> Result<Vec<cri::CdiDevice>, String> {
        let mut out: Vec<cri::CdiDevice> = Vec::new();
        for (_, device) in self.devices(pod, c)?.iter().flat_map(|(_, devices)| devices) {
            for name in device.cdi_device_ids.iter().flatten() {
                if !out.iter().any(|known| known.name == *name) {
                    out.push(cri::CdiDevice { name: name.clone() });
                }
            }
        }
        Ok(out)
    }

    /// The devices that a container gets: claim, and of it driver and device.
    ///
    /// # Errors
    /// When one of its claims is not ready.
    pub fn devices(&self, pod: &Pod, c: &Container) -> Result<Vec<ClaimedDevices>, String> {
        let all = self.shared.claims.lock();
        let namespace = pod::namespace(pod);
        let mut out = Vec::new();
        for (name, request) in prepared::used_by(pod, c)? {
            let Some(claim) = all.get(namespace, &name) else {
                return Err(format!("unable to get claim info for ResourceClaim {name} in namespace {namespace}"));
            };
            let devices = claim.devices(request.as_deref()).map(|(driver, d)| (driver.to_owned(), d.clone())).collect();
            out.push((name, devices));
        }
        Ok(out)
    }

    /// How the devices are that a container has by its claims: by the pod's own name of the claim (and the request), each device with
    /// the driver's words. A device that stands for several requests is named once. What is not ready is not named.
    pub fn health(&self, pod: &Pod, c: &Container) -> Vec<(String, Vec<ClaimedHealth>)> {
        let Ok(claims) = prepared::claims_of(pod) else { return Vec::new() };
        let (all, board) = (self.shared.claims.lock(), self.shared.drivers.health());
        let mut out: Vec<(String, Vec<ClaimedHealth>)> = Vec::new();
        for used in c.resources.iter().flat_map(|r| r.claims.iter().flatten()) {
            let claim = claims.iter().find(|(own, ..)| *own == used.name).map(|(_, name, _)| name);
            let Some(claim) = claim.and_then(|name| all.get(pod::namespace(pod), name)) else { continue };
            let request = used.request.as_deref().filter(|r| !r.is_empty());
            let mut devices: Vec<ClaimedHealth> = Vec::new();
            for (driver, d) in claim.devices(request.map(|r| r.split('/').next().unwrap_or(r))) {
                let first = d.cdi_device_ids.iter().flatten().next().cloned();
                let id = first.unwrap_or_else(|| format!("{driver}/{}/{}", d.pool_name, d.device_name));
                if devices.iter().all(|known| known.id != id) {
                    let (health, message) = board.of(driver, &d.pool_name, &d.device_name);
                    devices.push(ClaimedHealth { id, health, message });
                }
            }
            let name = format!("claim:{}{}", used.name, request.map(|r| format!("/{r}")).unwrap_or_default());
            if !devices.is_empty() {
                out.push((name, devices));
            }
        }
        out
    }

    /// Changes whenever a device of a claim may be in another state.
    pub fn health_changes(&self) -> watch::Receiver<()> {
        self.shared.drivers.health().changes()
    }

    /// The pods that use claims.
    pub fn users(&self) -> BTreeSet<String> {
        self.shared.claims.lock().strangers(|_| false)
    }

    /// How many claims are ready, by driver, and of all drivers (`<any>`).
    pub fn in_use(&self) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::from([("<any>".to_owned(), 0)]);
        let all = self.shared.claims.lock();
        for claim in all.all().filter(|c| c.is_ready) {
            *out.entry("<any>".to_owned()).or_default() += 1;
            for driver in claim.drivers.keys() {
                *out.entry(driver.clone()).or_default() += 1;
            }
        }
        out
    }

    /// Whether all claims of a pod are known to be ready.
    pub fn is_prepared(&self, pod: &Pod) -> bool {
        let Ok(claims) = prepared::claims_of(pod) else { return false };
        let all = self.shared.claims.lock();
        let names = claims.iter().map(|(_, name, _)| name.as_str()).chain(prepared::extended_claim_of(pod));
        let is_ready = |name: &str| {
            all.get(pod::namespace(pod), name).is_some_and(|c| c.is_ready && c.pods.contains_key(pod::uid(pod)))
        };
        names.into_iter().all(is_ready)
    }

    /// All pods of this node are known from now on: claims of others are given back.
    pub fn complete(&self) {
        self.shared.complete.store(true, Ordering::Release);
    }

    /// Gives back claims of pods that nobody knows any more, for as long as the task runs: their drivers may come late.
    pub async fn run(self, known: Arc<dyn Fn(&str) -> bool + Send + Sync>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.shared.complete.load(Ordering::Acquire) {
                continue;
            }
            let strangers = self.shared.claims.lock().strangers(|uid| known(uid));
            for uid in strangers {
                if let Err(error) = self.unprepare(&uid).await {
                    tracing::warn!(pod = uid, error, "claims of a pod that is gone are ready still");
                }
            }
        }
    }

    async fn save(&self) -> Result<(), String> {
        let (claims, dir) = (self.shared.claims.lock().all().cloned().collect(), self.shared.dir.clone());
        let written = FILES.run(move || checkpoint::write(&dir, claims)).await;
        let fault = |e: String| format!("checkpoint ResourceClaim state: {e}");
        written.map_err(|e| fault(e.to_string()))?.map_err(|e| fault(e.to_string()))
    }
}

/// How one device of a claim is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedHealth {
    /// By what the pod's status names it.
    pub id: String,
    /// How it is.
    pub health: Health,
    /// The driver's words; often none.
    pub message: String,
}

/// A claim, and of it drivers and devices.
pub type ClaimedDevices = (String, Vec<(String, ReadyDevice)>);

/// What each driver is asked for at once.
fn by_driver(claims: &[KnownClaim]) -> BTreeMap<String, Vec<ClaimName>> {
    let mut out: BTreeMap<String, Vec<ClaimName>> = BTreeMap::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            out.entry(driver.clone()).or_default().push(claim.named());
        }
    }
    out
}
