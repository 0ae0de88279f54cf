//! The device manager: assigns devices to containers, writes the checkpoint, and reports the inventory.
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
use super::table::{DeviceCount, DeviceHolder, DeviceOffer, DeviceRequest, Table};
use crate::dra::health::Health;
use crate::metrics::DeviceMetrics;
use crate::placement::hints::ResourceHints;
use crate::placement::numa::NodeMask;
use crate::pod::{self, Member, Role};

/// The device manager. It asks plugins how to pass devices to containers, records assignments in a [`Table`], and writes them to a
/// checkpoint. [`Devices::allocate`] is called before a pod's containers start and [`Devices::forget`] after they ended. Clones share the
/// state.
#[derive(Clone)]
pub struct Devices {
    shared: Arc<SharedPlugins>,
}

struct SharedPlugins {
    /// Directory of sockets and checkpoint.
    dir: PathBuf,
    metrics: Arc<DeviceMetrics>,
    table: Mutex<Table>,
    clients: Mutex<HashMap<String, DevicePluginClient>>,
    /// Serializes writes of the checkpoint; each writes the newest state.
    writes: tokio::sync::Mutex<()>,
    changes: watch::Sender<()>,
}

/// Allocation for one pod, container by container.
#[derive(Debug, Default)]
pub struct PodDeviceAllocation {
    /// Whether existing devices must be healthy, because the containers start again.
    starts_anew: bool,
    /// Devices of the pod's earlier init containers, by resource.
    own: BTreeMap<String, BTreeSet<String>>,
    /// Whether anything was allocated.
    changed: bool,
}

impl PodDeviceAllocation {
    /// Starts an allocation. `starts_anew`: existing devices must be healthy.
    pub fn new(starts_anew: bool) -> Self {
        Self { starts_anew, ..Self::default() }
    }
}

/// Parameters by which a container gets its devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceAllocation {
    /// Environment variables; the container's own ones override them.
    pub env: Vec<(String, String)>,
    /// Mounts of host paths.
    pub mounts: Vec<cri::Mount>,
    /// Device files of the host.
    pub devices: Vec<cri::Device>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Devices by their CDI names.
    pub cdi_devices: Vec<cri::CdiDevice>,
}

impl DeviceAllocation {
    /// Adds a plugin's response. Of conflicting entries the first one applies, like in upstream.
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
    /// Reads the checkpoint in `dir`. A damaged checkpoint is logged and ignored, like in upstream.
    pub async fn open(dir: PathBuf, metrics: Arc<DeviceMetrics>) -> Self {
        let (from, now) = (dir.clone(), Instant::now());
        let table = match FILES.run(move || checkpoint::read(&from, now)).await {
            Ok(Ok(table)) => table,
            Ok(Err(error)) => {
                tracing::error!(%error, dir = %dir.display(), "cannot read the device checkpoint; starting without assignments");
                Table::default()
            }
            Err(_) => Table::default(),
        };
        Self::with(table, dir, metrics)
    }

    /// Creates a device manager with this table.
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

    /// Notifies when the inventory or the health of devices may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }

    /// Directory of plugin sockets.
    pub fn dir(&self) -> &std::path::Path {
        &self.shared.dir
    }

    /// Capacity and allocatable number of devices, by resource.
    pub fn amounts(&self) -> BTreeMap<String, DeviceCount> {
        self.shared.table.lock().amounts(Instant::now())
    }

    /// Health of a container's devices, by resource.
    pub fn health(&self, pod: &str, container: &str) -> Vec<(String, Vec<(String, Health)>)> {
        self.shared.table.lock().health(pod, container)
    }

    /// UIDs of pods with devices.
    pub fn holders(&self) -> BTreeSet<String> {
        self.shared.table.lock().holders()
    }

    /// Resources that plugins advertise or advertised to the previous kubelet.
    pub fn offered(&self) -> BTreeSet<String> {
        self.shared.table.lock().offered()
    }

    /// Registers a plugin's resource.
    ///
    /// # Errors
    /// There are too many resources.
    pub fn registered(&self, resource: &str, client: DevicePluginClient, options: PluginOptions) -> Result<(), String> {
        self.shared.table.lock().registered(resource, options)?;
        self.shared.clients.lock().insert(resource.to_owned(), client);
        Ok(())
    }

    /// Replaces the devices of a plugin.
    pub async fn listed(&self, resource: &str, devices: Vec<Device>) {
        let changed = self.shared.table.lock().listed(resource, devices);
        if changed {
            self.shared.changes.send_replace(());
            self.save_or_say().await;
        }
    }

    /// Records that a plugin is gone.
    pub fn gone(&self, resource: &str) {
        self.shared.table.lock().gone(resource, Instant::now());
        self.shared.changes.send_replace(());
    }

    /// Assigns devices to all containers of a pod and writes the checkpoint. Existing assignments stay; with `starts_anew` their devices
    /// must be healthy.
    ///
    /// # Errors
    /// Why the assignment is impossible, in upstream's words.
    pub async fn allocate(&self, pod: &Pod, starts_anew: bool) -> Result<(), String> {
        let mut turn = PodDeviceAllocation::new(starts_anew);
        for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
            self.allocate_for(pod, &m, None, &mut turn).await?;
        }
        self.allocated(&turn).await
    }

    /// Assigns devices to one container, from these NUMA nodes if possible.
    ///
    /// # Errors
    /// As for [`Devices::allocate`].
    pub async fn allocate_for(
        &self,
        pod: &Pod,
        m: &Member<'_>,
        near: Option<NodeMask>,
        turn: &mut PodDeviceAllocation,
    ) -> Result<(), String> {
        for (resource, wanted) in self.asks(&m.container) {
            let whose = DeviceHolder { pod: pod::uid(pod).to_owned(), container: m.container.name.clone(), resource };
            let of_steps = turn.own.entry(whose.resource.clone()).or_default();
            let ask = DeviceRequest { wanted, own: of_steps, near };
            turn.changed |= self.give(&whose, &ask, turn.starts_anew).await?;
            let now = self.shared.table.lock().held(&whose);
            if m.role == Role::Init {
                of_steps.extend(now);
            } else {
                // A sidecar keeps its devices.
                of_steps.retain(|id| !now.contains(id));
            }
        }
        Ok(())
    }

    /// Writes the checkpoint if this allocation changed anything.
    ///
    /// # Errors
    /// The checkpoint cannot be written.
    pub async fn allocated(&self, turn: &PodDeviceAllocation) -> Result<(), String> {
        if turn.changed { self.save().await } else { Ok(()) }
    }

    /// NUMA hints for the devices of one container.
    pub fn hints(&self, pod: &Pod, m: &Member<'_>, turn: &PodDeviceAllocation, nodes: &[u32]) -> ResourceHints {
        let (none, asks) = (BTreeSet::new(), self.asks(&m.container));
        let whose = (pod::uid(pod), Some(m.container.name.as_str()));
        let hints = |(resource, wanted): (String, usize)| {
            let ask = DeviceRequest { wanted, own: turn.own.get(&resource).unwrap_or(&none), near: None };
            let hints = self.shared.table.lock().hints(whose, &resource, &ask, nodes);
            (resource, hints)
        };
        asks.into_iter().map(hints).collect()
    }

    /// NUMA hints for all devices of a pod.
    pub fn pod_hints(&self, pod: &Pod, nodes: &[u32]) -> ResourceHints {
        let mut names: BTreeSet<String> = BTreeSet::new();
        for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
            names.extend(self.asks(&m.container).into_iter().map(|(resource, _)| resource));
        }
        let none = BTreeSet::new();
        let hints = |resource: String| {
            // For devices, requests equal limits.
            let wanted = usize::try_from(pod::pod_request(pod, &resource).value()).unwrap_or(0);
            let ask = DeviceRequest { wanted, own: &none, near: None };
            let hints = self.shared.table.lock().hints((pod::uid(pod), None), &resource, &ask, nodes);
            (resource, hints)
        };
        names.into_iter().map(hints).collect()
    }

    /// Returns the container's requests of plugin resources.
    fn asks(&self, c: &Container) -> Vec<(String, usize)> {
        let table = self.shared.table.lock();
        let limits = c.resources.iter().flat_map(|r| r.limits.iter().flatten());
        let number = |amount| usize::try_from(pod::quantity(amount).value()).unwrap_or(0);
        let asks = limits.filter(|(name, _)| table.offers(name)).map(|(name, amount)| (name.clone(), number(amount)));
        asks.filter(|(_, wanted)| *wanted > 0).collect()
    }

    async fn give(&self, whose: &DeviceHolder, ask: &DeviceRequest<'_>, starts_anew: bool) -> Result<bool, String> {
        let offer = self.shared.table.lock().offer(whose, ask, starts_anew)?;
        let DeviceOffer::From(mut choice) = offer else { return Ok(false) };
        let client = self.client(&whose.resource)?;
        let began = Instant::now();
        let mut preferred = Vec::new();
        let needed = ask.wanted - choice.own.len();
        // If there are more near devices than needed, the plugin's preference selects among them; if all near ones are taken, among the
        // others.
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
        let answer = PendingAllocation { devices: self, whose };
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

    /// Returns the parameters for a container that is about to start, after plugins prepared its devices.
    ///
    /// # Errors
    /// A plugin failed.
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

    /// Releases a pod's devices after its containers ended.
    pub async fn forget(&self, pod: &str) {
        if self.shared.table.lock().take_back(|held| held != pod) {
            self.save_or_say().await;
        }
    }

    /// Releases the devices of unknown pods.
    pub async fn retain(&self, known: impl Fn(&str) -> bool) {
        if self.shared.table.lock().take_back(known) {
            self.save_or_say().await;
        }
    }

    /// Reads the table, for the PodResources API.
    pub fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.shared.table.lock())
    }

    /// Metrics of plugins and PodResources requests.
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
            tracing::error!(error, "cannot write the device checkpoint");
        }
    }
}

/// Devices that are assigned provisionally while their plugin is asked. They are released if the call fails or is abandoned.
struct PendingAllocation<'a> {
    devices: &'a Devices,
    whose: &'a DeviceHolder,
}

impl PendingAllocation<'_> {
    fn settle(self, answer: ContainerAllocation) {
        self.devices.shared.table.lock().settled(self.whose, Some(answer));
    }
}

impl Drop for PendingAllocation<'_> {
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
