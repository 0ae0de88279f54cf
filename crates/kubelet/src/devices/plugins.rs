//! The devices of the node as the kubelet works with them: gives them to containers, keeps what it gave on disk, and says what
//! there is.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_cri::proto as cri;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::checkpoint;
use super::client::DevicePluginClient;
use super::messages::{ContainerAllocation, Device, PluginOptions};
use super::table::{Ask, DeviceCount, Offer, Table, Whose};
use crate::dra::health::Health;
use crate::metrics::DeviceMetrics;
use crate::placement::hints::Wishes;
use crate::placement::numa::NodeMask;
use crate::pod::{self, Member, Role};

/// The devices; cheap to clone.
#[derive(Clone)]
pub struct Devices {
    shared: Arc<SharedPlugins>,
}

struct SharedPlugins {
    /// Where the sockets and the checkpoint are.
    dir: PathBuf,
    metrics: Arc<DeviceMetrics>,
    table: Mutex<Table>,
    clients: Mutex<HashMap<String, DevicePluginClient>>,
    /// One writes the checkpoint at a time, and always the newest.
    writes: tokio::sync::Mutex<()>,
    changes: watch::Sender<()>,
}

/// What one pod is given, container by container.
#[derive(Debug, Default)]
pub struct DeviceTurn {
    /// Whether what containers have must still work.
    starts_anew: bool,
    /// What its steps had so far, by resource.
    own: BTreeMap<String, BTreeSet<String>>,
    /// Whether anything was given.
    changed: bool,
}

impl DeviceTurn {
    /// Nothing is given yet; with `starts_anew` what containers have must still work.
    pub fn new(starts_anew: bool) -> Self {
        Self { starts_anew, ..Self::default() }
    }
}

/// What a container gets with its devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceAllocation {
    /// Environment variables; those of the container itself have precedence.
    pub env: Vec<(String, String)>,
    /// Paths of the host that it sees.
    pub mounts: Vec<cri::Mount>,
    /// Device files of the host.
    pub devices: Vec<cri::Device>,
    /// What the runtime is told beside.
    pub annotations: BTreeMap<String, String>,
    /// Devices by their names in the container device interface.
    pub cdi_devices: Vec<cri::CdiDevice>,
}

impl DeviceAllocation {
    /// Adds what one plugin answered. Of two that want the same place the first has it, as upstream.
    fn add(&mut self, answer: &ContainerAllocation) {
        let sorted = |map: &HashMap<String, String>| -> BTreeMap<String, String> {
            map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        for (name, value) in sorted(&answer.envs) {
            if !self.env.iter().any(|(n, _)| *n == name) {
                self.env.push((name, value));
            }
        }
        for m in &answer.mounts {
            if !self.mounts.iter().any(|known| known.container_path == m.container_path) {
                let (container_path, host_path) = (m.container_path.clone(), m.host_path.clone());
                let mount = cri::Mount { container_path, host_path, readonly: m.read_only, ..Default::default() };
                self.mounts.push(mount);
            }
        }
        for d in &answer.devices {
            if !self.devices.iter().any(|known| known.container_path == d.container_path) {
                let (container_path, host_path) = (d.container_path.clone(), d.host_path.clone());
                self.devices.push(cri::Device { container_path, host_path, permissions: d.permissions.clone() });
            }
        }
        for (name, value) in sorted(&answer.annotations) {
            self.annotations.entry(name).or_insert(value);
        }
        for d in &answer.cdi_devices {
            if !self.cdi_devices.iter().any(|known| known.name == d.name) {
                self.cdi_devices.push(cri::CdiDevice { name: d.name.clone() });
            }
        }
    }
}

impl Devices {
    /// With what the last kubelet left in `dir`; damage is told and begins anew, as upstream.
    pub async fn open(dir: PathBuf, metrics: Arc<DeviceMetrics>) -> Self {
        let (from, now) = (dir.clone(), Instant::now());
        let table = match FILES.run(move || checkpoint::read(&from, now)).await {
            Ok(Ok(table)) => table,
            Ok(Err(error)) => {
                tracing::error!(%error, dir = %dir.display(), "which devices pods have could not be read");
                Table::default()
            }
            Err(_) => Table::default(),
        };
        Self::with(table, dir, metrics)
    }

    /// With what is known already.
    pub fn with(table: Table, dir: PathBuf, metrics: Arc<DeviceMetrics>) -> Self {
        Self {
            shared: Arc::new(SharedPlugins {
                dir,
                metrics,
                table: Mutex::new(table),
                clients: Mutex::default(),
                writes: tokio::sync::Mutex::default(),
                changes: watch::channel(()).0,
            }),
        }
    }

    /// Changes whenever what the node has may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Where plugins put their sockets.
    pub fn dir(&self) -> &std::path::Path {
        &self.shared.dir
    }

    /// What the node has, by resource.
    pub fn amounts(&self) -> BTreeMap<String, DeviceCount> {
        self.shared.table.lock().amounts(Instant::now())
    }

    /// How the devices of a container are, by resource.
    pub fn health(&self, pod: &str, container: &str) -> Vec<(String, Vec<(String, Health)>)> {
        self.shared.table.lock().health(pod, container)
    }

    /// The pods that have devices.
    pub fn holders(&self) -> BTreeSet<String> {
        self.shared.table.lock().holders()
    }

    /// The resources that plugins offer, or did when the last kubelet ended.
    pub fn offered(&self) -> BTreeSet<String> {
        self.shared.table.lock().offered()
    }

    /// A plugin offers a resource by this client.
    ///
    /// # Errors
    /// When there are too many.
    pub fn registered(&self, resource: &str, client: DevicePluginClient, options: PluginOptions) -> Result<(), String> {
        self.shared.table.lock().registered(resource, options)?;
        self.shared.clients.lock().insert(resource.to_owned(), client);
        Ok(())
    }

    /// All devices of a plugin, as they are now.
    pub async fn listed(&self, resource: &str, devices: Vec<Device>) {
        let changed = self.shared.table.lock().listed(resource, devices);
        if changed {
            self.shared.changes.send_replace(());
            self.save_or_say().await;
        }
    }

    /// A plugin is gone.
    pub fn gone(&self, resource: &str) {
        self.shared.table.lock().gone(resource, Instant::now());
        self.shared.changes.send_replace(());
    }

    /// Gives all containers of a pod what they ask for, and has it on disk before it returns. What they have stays theirs; with
    /// `starts_anew` it must still work.
    ///
    /// # Errors
    /// Why the pod cannot have it, in upstream's words.
    pub async fn allocate(&self, pod: &Pod, starts_anew: bool) -> Result<(), String> {
        let mut turn = DeviceTurn::new(starts_anew);
        for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
            self.allocate_for(pod, &m, None, &mut turn).await?;
        }
        self.allocated(&turn).await
    }

    /// Gives one container of a pod what it asks for, from these parts of the machine as far as there are.
    ///
    /// # Errors
    /// As of [`Devices::allocate`].
    pub async fn allocate_for(
        &self,
        pod: &Pod,
        m: &Member<'_>,
        near: Option<NodeMask>,
        turn: &mut DeviceTurn,
    ) -> Result<(), String> {
        for (resource, wanted) in self.asks(&m.container) {
            let whose = Whose { pod: pod::uid(pod).to_owned(), container: m.container.name.clone(), resource };
            let of_steps = turn.own.entry(whose.resource.clone()).or_default();
            let ask = Ask { wanted, own: of_steps, near };
            turn.changed |= self.give(&whose, &ask, turn.starts_anew).await?;
            let now = self.shared.table.lock().held(&whose);
            if m.role == Role::Init {
                of_steps.extend(now);
            } else {
                // A sidecar goes on with what it has.
                of_steps.retain(|id| !now.contains(id));
            }
        }
        Ok(())
    }

    /// What was given in this turn is on disk when this returns.
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn allocated(&self, turn: &DeviceTurn) -> Result<(), String> {
        if turn.changed { self.save().await } else { Ok(()) }
    }

    /// Where the devices could come from that one container wants.
    pub fn hints(&self, pod: &Pod, m: &Member<'_>, turn: &DeviceTurn, nodes: &[u32]) -> Wishes {
        let (none, asks) = (BTreeSet::new(), self.asks(&m.container));
        let whose = (pod::uid(pod), Some(m.container.name.as_str()));
        let hints = |(resource, wanted): (String, usize)| {
            let ask = Ask { wanted, own: turn.own.get(&resource).unwrap_or(&none), near: None };
            let hints = self.shared.table.lock().hints(whose, &resource, &ask, nodes);
            (resource, hints)
        };
        asks.into_iter().map(hints).collect()
    }

    /// Where all devices could come from that a pod wants.
    pub fn pod_hints(&self, pod: &Pod, nodes: &[u32]) -> Wishes {
        let mut names: BTreeSet<String> = BTreeSet::new();
        for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
            names.extend(self.asks(&m.container).into_iter().map(|(resource, _)| resource));
        }
        let none = BTreeSet::new();
        let hints = |resource: String| {
            // Of devices a container is limited to what it asks for.
            let wanted = usize::try_from(pod::pod_request(pod, &resource).value()).unwrap_or(0);
            let ask = Ask { wanted, own: &none, near: None };
            let hints = self.shared.table.lock().hints((pod::uid(pod), None), &resource, &ask, nodes);
            (resource, hints)
        };
        names.into_iter().map(hints).collect()
    }

    /// What a container wants of what plugins offer.
    fn asks(&self, c: &Container) -> Vec<(String, usize)> {
        let table = self.shared.table.lock();
        let limits = c.resources.iter().flat_map(|r| r.limits.iter().flatten());
        let number = |amount| usize::try_from(pod::quantity(amount).value()).unwrap_or(0);
        let asks = limits.filter(|(name, _)| table.offers(name)).map(|(name, amount)| (name.clone(), number(amount)));
        asks.filter(|(_, wanted)| *wanted > 0).collect()
    }

    async fn give(&self, whose: &Whose, ask: &Ask<'_>, starts_anew: bool) -> Result<bool, String> {
        let offer = self.shared.table.lock().offer(whose, ask, starts_anew)?;
        let Offer::From(mut choice) = offer else { return Ok(false) };
        let client = self.client(&whose.resource)?;
        let began = Instant::now();
        let mut preferred = Vec::new();
        let needed = ask.wanted - choice.own.len();
        // Where there are more near ones than it takes, the choice is among them; where it takes all of them, among the others.
        if choice.is_asked && needed != choice.near {
            let mut taken = choice.own.clone();
            if needed < choice.near {
                choice.free.truncate(choice.near);
            } else {
                taken.extend(choice.free[..choice.near].iter().cloned());
            }
            let available = choice.free.into_iter().chain(choice.own).collect();
            preferred = client.preferred(available, taken, ask.wanted).await.map_err(|e| e.to_string())?;
        }
        let ids = self.shared.table.lock().give(whose, ask, &preferred)?;
        if ids.is_empty() {
            return Ok(false);
        }
        let answer = Unsettled { devices: self, whose };
        let done = client.allocate(ids).await;
        self.shared.metrics.allocated(&whose.resource, began.elapsed());
        let allocation = done.map_err(|e| e.to_string())?;
        answer.settle(allocation);
        Ok(true)
    }

    fn client(&self, resource: &str) -> Result<DevicePluginClient, String> {
        let found = self.shared.clients.lock().get(resource).cloned();
        found.ok_or_else(|| format!("unknown Device Plugin {resource}"))
    }

    /// What a container that is about to start gets; plugins that want to prepare its devices have done so.
    ///
    /// # Errors
    /// When a plugin could not.
    pub async fn given(&self, pod: &str, container: &str) -> Result<DeviceAllocation, String> {
        let (mut given, mut preparing) = (DeviceAllocation::default(), Vec::new());
        {
            let table = self.shared.table.lock();
            for (resource, held) in table.of(pod, container) {
                if let Some(answer) = &held.answer {
                    given.add(answer);
                }
                if table.options(resource).pre_start_required {
                    preparing.push((resource.to_owned(), held.ids().into_iter().collect::<Vec<_>>()));
                }
            }
        }
        for (resource, ids) in preparing {
            let prepared = self.client(&resource)?.pre_start(ids).await;
            prepared.map_err(|e| format!("device plugin PreStartContainer rpc failed with err: {e}"))?;
        }
        Ok(given)
    }

    /// A pod's containers have ended: others may have its devices.
    pub async fn forget(&self, pod: &str) {
        if self.shared.table.lock().take_back(|held| held != pod) {
            self.save_or_say().await;
        }
    }

    /// Takes back what pods have that nobody knows any more.
    pub async fn retain(&self, known: impl Fn(&str) -> bool) {
        if self.shared.table.lock().take_back(known) {
            self.save_or_say().await;
        }
    }

    /// Reads the table, for who lists what pods have.
    pub fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.shared.table.lock())
    }

    /// Where plugins and questions are counted.
    pub fn metrics(&self) -> &DeviceMetrics {
        &self.shared.metrics
    }

    async fn save(&self) -> Result<(), String> {
        let _turn = self.shared.writes.lock().await;
        let (lasting, dir) = (self.shared.table.lock().lasting(), self.shared.dir.clone());
        let written = FILES.run(move || checkpoint::write(&dir, lasting)).await;
        let fault = |e: String| format!("failed to write checkpoint file {:?}: {e}", checkpoint::FILE);
        written.map_err(|e| fault(e.to_string()))?.map_err(|e| fault(e.to_string()))
    }

    async fn save_or_say(&self) {
        if let Err(error) = self.save().await {
            tracing::error!(error, "which devices pods have is not on disk");
        }
    }
}

/// Devices that are taken while their plugin is asked how the container gets them. When the asking is given up or fails,
/// they are free again.
struct Unsettled<'a> {
    devices: &'a Devices,
    whose: &'a Whose,
}

impl Unsettled<'_> {
    fn settle(self, answer: ContainerAllocation) {
        self.devices.shared.table.lock().settled(self.whose, Some(answer));
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let mut table = self.devices.shared.table.lock();
        let is_settled = table
            .of(&self.whose.pod, &self.whose.container)
            .any(|(r, h)| r == self.whose.resource && h.answer.is_some());
        if !is_settled {
            table.settled(self.whose, None);
        }
    }
}
