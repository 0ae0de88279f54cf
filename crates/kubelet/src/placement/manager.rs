//! Manager of exclusive CPUs and memory: assigns them, writes checkpoints, and returns the placement of containers.
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_meta::Quantity;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, watch};

use super::checkpoint::{self, CPU_FILE, CpuState, MEMORY_FILE, MemoryState};
use super::cpus::{CpuTable, PlacementRefusal, is_guaranteed_by_container, whole_cpus};
use super::hints::{Alignment, NumaHint, ResourceHints};
use super::layout::MachineLayout;
use super::memory::{MemoryBlock, MemoryTable};
use super::sysfs;
use crate::cgroups::placed::ContainerPlacement;
use crate::config::cpuset::CpuSet;
use crate::config::placement::PlacementConfig;
use crate::metrics::PlacementMetrics;
use crate::pod::Member;

/// Manager of exclusive CPUs and memory. Clones share the state.
#[derive(Clone)]
pub struct Placement {
    shared: Arc<SharedPlacement>,
}

struct SharedPlacement {
    dir: PathBuf,
    nodes: Vec<u32>,
    alignment: Option<Alignment>,
    tables: Mutex<PlacedTables>,
    /// Serializes the placement of pods, so that free resources stay free until they are assigned.
    turn: tokio::sync::Mutex<()>,
    /// Serializes writes of checkpoints; each writes the newest state.
    writes: tokio::sync::Mutex<()>,
    changes: watch::Sender<()>,
    metrics: Arc<PlacementMetrics>,
}

struct PlacedTables {
    cpus: Option<CpuTable>,
    memory: Option<MemoryTable>,
    /// UIDs of the pods that were placed since this kubelet started.
    placed: HashSet<String>,
}

/// Resources that the node reserves, which the policies need at start.
#[derive(Clone, Debug, Default)]
pub struct NodeReservation {
    /// Reserved amounts by resource; for memory including the hard eviction threshold.
    pub amounts: BTreeMap<String, Quantity>,
    /// Memory of the machine in bytes.
    pub machine_memory: u64,
}

fn cpu_policy(config: &PlacementConfig) -> &'static str {
    if config.has_own_cpus { "static" } else { "none" }
}

fn memory_policy(config: &PlacementConfig) -> &'static str {
    if config.has_own_memory { "Static" } else { "None" }
}

impl Placement {
    /// Creates the manager for this machine, with the checkpoints in `dir`.
    ///
    /// # Errors
    /// The machine does not support the configuration, or a checkpoint is damaged or of another policy.
    pub async fn open(
        config: &PlacementConfig,
        dir: &Path,
        kept: NodeReservation,
        metrics: Arc<PlacementMetrics>,
    ) -> Result<Self, String> {
        let (of, from) = (config.clone(), dir.to_owned());
        let opened = FILES.run(move || {
            let layout = match sysfs::read(Path::new("/sys/devices/system"), kept.machine_memory) {
                // Without exclusive resources the topology is not needed.
                Err(_) if of == PlacementConfig::default() => MachineLayout::default(),
                other => other?,
            };
            let tables = tables(&of, &layout, &from, &kept)?;
            Ok::<_, String>((layout, tables))
        });
        let (layout, tables) = opened.await.map_err(|e| e.to_string())??;
        let alignment = Alignment::of(config, &layout.nodes)?;
        let placement = Self::with(dir, (layout.node_ids(), alignment), tables, metrics);
        placement.save().await?;
        placement.count();
        Ok(placement)
    }

    /// Creates a manager that assigns nothing.
    pub fn none(dir: &Path, metrics: Arc<PlacementMetrics>) -> Self {
        let tables = PlacedTables { cpus: None, memory: None, placed: HashSet::new() };
        Self::with(dir, (Vec::new(), None), tables, metrics)
    }

    fn with(
        dir: &Path,
        (nodes, alignment): (Vec<u32>, Option<Alignment>),
        tables: PlacedTables,
        metrics: Arc<PlacementMetrics>,
    ) -> Self {
        Self {
            shared: Arc::new(SharedPlacement {
                dir: dir.to_owned(),
                nodes,
                alignment,
                tables: Mutex::new(tables),
                turn: tokio::sync::Mutex::default(),
                writes: tokio::sync::Mutex::default(),
                changes: watch::channel(()).0,
                metrics,
            }),
        }
    }

    /// Numbers of the NUMA nodes.
    pub fn nodes(&self) -> &[u32] {
        &self.shared.nodes
    }
    /// The topology manager's policy; `None` if there is no alignment.
    pub fn alignment(&self) -> Option<&Alignment> {
        self.shared.alignment.as_ref()
    }
    /// Metrics of placement.
    pub fn metrics(&self) -> &PlacementMetrics {
        &self.shared.metrics
    }
    /// Notifies when the shared pool changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }
    /// Locks placement: no other pod is placed until the guard is dropped.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.shared.turn.lock().await
    }
    /// Returns whether exclusive CPUs are assigned.
    pub fn gives_cpus(&self) -> bool {
        self.shared.tables.lock().cpus.is_some()
    }

    /// NUMA hints for the CPUs and memory of one container.
    pub fn hints(&self, pod: &Pod, c: &Container) -> Vec<ResourceHints> {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().map(|t| t.hints(pod, c));
        cpus.into_iter().chain(tables.memory.as_ref().map(|t| t.hints(pod, c))).collect()
    }

    /// NUMA hints for a whole pod.
    pub fn pod_hints(&self, pod: &Pod) -> Vec<ResourceHints> {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().map(|t| t.pod_hints(pod));
        cpus.into_iter().chain(tables.memory.as_ref().map(|t| t.pod_hints(pod))).collect()
    }

    /// Assigns CPUs and memory to a container, according to `hint`.
    ///
    /// # Errors
    /// Why the request cannot be met.
    pub fn allocate(&self, pod: &Pod, m: &Member<'_>, hint: NumaHint) -> Result<(), PlacementRefusal> {
        let metrics = &self.shared.metrics;
        let mut tables = self.shared.tables.lock();
        if let Some(table) = &mut tables.cpus {
            let given = table.allocate(pod, m, hint);
            if whole_cpus(pod, &m.container) > 0 {
                metrics.cpus_asked(table.is_by_core(), given.is_ok());
            }
            if let Some(cpus) = given?
                && table.shares_cache(&cpus)
            {
                metrics.bounded("container", "uncore_cache", true);
            }
        }
        if let Some(table) = &mut tables.memory {
            let given = table.allocate(pod, m, hint);
            if is_guaranteed_by_container(pod) {
                metrics.memory_asked(given.is_ok());
            }
            given?;
        }
        Ok(())
    }

    /// Returns whether this kubelet has placed the pod.
    pub fn is_placed(&self, uid: &str) -> bool {
        self.shared.tables.lock().placed.contains(uid)
    }

    /// Completes the placement of a pod: writes the checkpoints and notifies the containers of the shared pool.
    ///
    /// # Errors
    /// A checkpoint cannot be written.
    pub async fn done(&self, uid: &str) -> Result<(), PlacementRefusal> {
        let is_anything = {
            let mut tables = self.shared.tables.lock();
            tables.placed.insert(uid.to_owned());
            let of_cpus = tables.cpus.as_ref().is_some_and(|t| t.held().contains_key(uid));
            of_cpus || tables.memory.as_ref().is_some_and(|t| t.held().contains_key(uid))
        };
        if is_anything {
            self.save().await.map_err(PlacementRefusal::unexpected)?;
            self.count();
            self.shared.changes.send_replace(());
        }
        Ok(())
    }

    /// Called when a container is about to start: releases memory that only earlier init containers needed.
    pub async fn starts(&self, pod: &Pod, container: &str) {
        let changed = self.shared.tables.lock().memory.as_mut().is_some_and(|t| t.starts(pod, container));
        if changed && let Err(error) = self.save().await {
            tracing::error!(error, "cannot write the memory manager's checkpoint");
        }
    }

    /// Releases the resources of a pod that ended or whose placement failed.
    pub async fn forget(&self, uid: &str) {
        self.retain(|pod| pod != uid).await;
    }

    /// Releases the resources of unknown pods.
    pub async fn retain(&self, known: impl Fn(&str) -> bool) {
        let changed = {
            let mut tables = self.shared.tables.lock();
            tables.placed.retain(|pod| known(pod));
            let cpus = tables.cpus.as_mut().is_some_and(|t| !t.take_back(&known).is_empty());
            tables.memory.as_mut().is_some_and(|t| t.take_back(&known)) || cpus
        };
        if changed {
            if let Err(error) = self.save().await {
                tracing::error!(error, "cannot write the checkpoints of CPU and memory managers");
            }
            self.count();
            self.shared.changes.send_replace(());
        }
    }

    /// Returns the placement of a container.
    pub fn placed(&self, uid: &str, container: &str) -> ContainerPlacement {
        let tables = self.shared.tables.lock();
        let mut placed = ContainerPlacement::default();
        if let Some(table) = &tables.cpus {
            let own = table.of(uid, container);
            placed.has_own_cpus = own.is_some();
            placed.cpus = own.unwrap_or_else(|| table.shared()).to_string();
        }
        if let Some(blocks) = tables.memory.as_ref().and_then(|t| t.of(uid, container)) {
            let nodes: std::collections::BTreeSet<u32> = blocks.iter().flat_map(|b| b.nodes.iter().copied()).collect();
            placed.memory_nodes = nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        }
        placed
    }

    /// Returns whether a container of the pod has exclusive CPUs.
    pub fn has_own_cpus(&self, uid: &str) -> bool {
        self.shared.tables.lock().cpus.as_ref().is_some_and(|t| t.held().contains_key(uid))
    }

    /// Returns the exclusive CPUs and memory of a container, for the PodResources API.
    pub fn listed(&self, uid: &str, container: &str) -> (CpuSet, Vec<MemoryBlock>) {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().and_then(|t| t.of(uid, container).cloned());
        let memory = tables.memory.as_ref().and_then(|t| t.of(uid, container).cloned());
        (cpus.unwrap_or_default(), memory.unwrap_or_default())
    }

    /// Returns the CPUs and memory that could be assigned if none were.
    pub fn allocatable(&self) -> (CpuSet, Vec<MemoryBlock>) {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().map(CpuTable::allocatable);
        (cpus.unwrap_or_default(), tables.memory.as_ref().map(MemoryTable::allocatable).unwrap_or_default())
    }

    fn count(&self) {
        if let Some(table) = &self.shared.tables.lock().cpus {
            self.shared.metrics.shared(table.free().len(), &table.by_node());
        }
    }

    async fn save(&self) -> Result<(), String> {
        let _turn = self.shared.writes.lock().await;
        let (cpus, memory) = {
            let tables = self.shared.tables.lock();
            let cpus = match &tables.cpus {
                Some(t) => CpuState::new("static", t.shared(), t.held()),
                None => CpuState::new("none", &CpuSet::default(), &BTreeMap::new()),
            };
            let memory = match &tables.memory {
                Some(t) => MemoryState::new("Static", t.nodes(), t.held()),
                None => MemoryState::new("None", &BTreeMap::new(), &BTreeMap::new()),
            };
            (cpus, memory)
        };
        let dir = self.shared.dir.clone();
        let written = FILES.run(move || {
            checkpoint::write(&dir, CPU_FILE, &cpus)?;
            checkpoint::write(&dir, MEMORY_FILE, &memory)
        });
        let fault = |e: String| format!("could not write checkpoint: {e}");
        written.await.map_err(|e| fault(e.to_string()))?.map_err(fault)
    }
}

/// Creates the tables of the enabled policies from the checkpoints.
fn tables(
    config: &PlacementConfig,
    layout: &MachineLayout,
    dir: &Path,
    kept: &NodeReservation,
) -> Result<PlacedTables, String> {
    let fault = |why: String| format!("{why}: please drain this node and remove the policy state file");
    let of_cpus = CpuState::read(dir, cpu_policy(config))?;
    let of_memory = MemoryState::read(dir, memory_policy(config))?;
    let layout = Arc::new(layout.clone());
    let mut tables = PlacedTables { cpus: None, memory: None, placed: HashSet::new() };
    if config.has_own_cpus {
        let milli = kept.amounts.get("cpu").map_or(0, |q| q.milli_value());
        let amount = usize::try_from(milli).unwrap_or(0).div_ceil(1000);
        let fresh = CpuTable::new(Arc::clone(&layout), config.cpu_options, amount, &config.reserved_cpus)?;
        tables.cpus = Some(match of_cpus {
            Some((shared, held)) => fresh.restored(shared, held).map_err(fault)?,
            None => fresh,
        });
    }
    if config.has_own_memory {
        let fresh = MemoryTable::new(&layout, &config.reserved_memory, &kept.amounts)?;
        tables.memory = Some(match of_memory {
            Some(state) => fresh.restored(state.nodes, state.held).map_err(fault)?,
            None => fresh,
        });
    }
    Ok(tables)
}
