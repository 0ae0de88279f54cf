//! Manager of pods' resource claims: lets drivers prepare and unprepare them, and returns the devices for containers (upstream:
//! `dra/manager.go`).
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

/// Interval at which claims of unknown pods are searched (upstream: `defaultReconcilePeriod`).
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Manager of resource claims. Clones share the state.
#[derive(Clone)]
pub struct DynamicResources {
    shared: Arc<SharedClaims>,
}

struct SharedClaims {
    client: Client,
    drivers: DraDrivers,
    dir: PathBuf,
    claims: Mutex<KnownClaims>,
    /// Serializes preparing and unpreparing, so that a driver never gets both at once.
    turn: tokio::sync::Mutex<()>,
    /// Whether all pods of this node are known.
    complete: AtomicBool,
}

impl DynamicResources {
    /// Reads the checkpoint in `dir`.
    ///
    /// # Errors
    /// The checkpoint is damaged. Like upstream, the kubelet does not start then, because devices would stay prepared without a pod.
    pub async fn open(client: Client, drivers: DraDrivers, dir: PathBuf) -> Result<Self, String> {
        let from = dir.clone();
        let read = FILES.run(move || checkpoint::read(&from)).await.map_err(|e| e.to_string())?;
        let claims = read.map_err(|e| format!("failed to get checkpoint {}: {e}", checkpoint::FILE))?;
        Ok(Self::with(client, drivers, dir, KnownClaims::remembered(claims)))
    }

    /// Creates a manager with these claims.
    pub fn with(client: Client, drivers: DraDrivers, dir: PathBuf, claims: KnownClaims) -> Self {
        let (turn, complete) = (tokio::sync::Mutex::default(), AtomicBool::new(false));
        let claims = Mutex::new(claims);
        Self { shared: Arc::new(SharedClaims { client, drivers, dir, claims, turn, complete }) }
    }

    /// Prepares all claims of a pod that are not prepared yet.
    ///
    /// # Errors
    /// Why the pod's containers cannot start yet.
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

    /// Unprepares the claims that no other pod uses, after the pod's containers ended.
    ///
    /// # Errors
    /// A driver failed; the call must be repeated.
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

    /// Returns a container's devices by their CDI names.
    ///
    /// # Errors
    /// A claim is not prepared.
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

    /// Returns a container's devices: by claim, with driver and device.
    ///
    /// # Errors
    /// A claim is not prepared.
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

    /// Health of a container's devices, by the claim's name in the pod (and the request), with the driver's messages. A device of several
    /// requests occurs once. Claims that are not prepared are omitted.
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

    /// Notifies when the health of a claim's device may have changed.
    pub fn health_changes(&self) -> watch::Receiver<()> {
        self.shared.drivers.health().changes()
    }

    /// UIDs of pods that use claims.
    pub fn users(&self) -> BTreeSet<String> {
        self.shared.claims.lock().strangers(|_| false)
    }

    /// Number of prepared claims, by driver and in total (`<any>`).
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

    /// Returns whether all claims of a pod are prepared.
    pub fn is_prepared(&self, pod: &Pod) -> bool {
        let Ok(claims) = prepared::claims_of(pod) else { return false };
        let all = self.shared.claims.lock();
        let names = claims.iter().map(|(_, name, _)| name.as_str()).chain(prepared::extended_claim_of(pod));
        let is_ready = |name: &str| {
            all.get(pod::namespace(pod), name).is_some_and(|c| c.is_ready && c.pods.contains_key(pod::uid(pod)))
        };
        names.into_iter().all(is_ready)
    }

    /// Records that all pods of this node are known from now on, so that claims of other pods can be unprepared.
    pub fn complete(&self) {
        self.shared.complete.store(true, Ordering::Release);
    }

    /// Unprepares claims of unknown pods periodically until the task is aborted, because drivers may register late.
    pub async fn run(self, known: Arc<dyn Fn(&str) -> bool + Send + Sync>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.shared.complete.load(Ordering::Acquire) {
                continue;
            }
            let strangers = self.shared.claims.lock().strangers(|uid| known(uid));
            for uid in strangers {
                if let Err(error) = self.unprepare(&uid).await {
                    tracing::warn!(pod = uid, error, "unpreparing claims of a deleted pod failed; retrying");
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

/// Health of one device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedHealth {
    /// ID of the device in the pod's status.
    pub id: String,
    /// Health of the device.
    pub health: Health,
    /// The driver's message; often empty.
    pub message: String,
}

/// A claim, and its devices with their drivers.
pub type ClaimedDevices = (String, Vec<(String, ReadyDevice)>);

/// Groups the claims by driver.
fn by_driver(claims: &[KnownClaim]) -> BTreeMap<String, Vec<ClaimName>> {
    let mut out: BTreeMap<String, Vec<ClaimName>> = BTreeMap::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            out.entry(driver.clone()).or_default().push(claim.named());
        }
    }
    out
}
