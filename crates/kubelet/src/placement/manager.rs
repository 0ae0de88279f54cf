//! Who has which processors and how much memory of which part of the machine, as the kubelet works with it: gives them, keeps what it
//! gave on disk, and says where a container runs.
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
use super::hints::{Alignment, NumaHint, Wishes};
use super::layout::MachineLayout;
use super::memory::{MemoryBlock, MemoryTable};
use super::sysfs;
use crate::cgroups::placed::Placed;
use crate::config::cpuset::CpuSet;
use crate::config::placement::PlacementConfig;
use crate::metrics::PlacementMetrics;
use crate::pod::Member;

/// What is placed; cheap to clone.
#[derive(Clone)]
pub struct Placement {
    shared: Arc<SharedPlacement>,
}

struct SharedPlacement {
    dir: PathBuf,
    nodes: Vec<u32>,
    alignment: Option<Alignment>,
    tables: Mutex<PlacedTables>,
    /// One pod is placed at a time: what one sees free, it gets.
    turn: tokio::sync::Mutex<()>,
    /// One writes at a time, and always the newest.
    writes: tokio::sync::Mutex<()>,
    changes: watch::Sender<()>,
    metrics: Arc<PlacementMetrics>,
}

struct PlacedTables {
    cpus: Option<CpuTable>,
    memory: Option<MemoryTable>,
    /// Pods that were placed since this kubelet started.
    placed: HashSet<String>,
}

/// What the node keeps for itself, by which the policies start.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// What is reserved, by resource, and of memory also what is free before pods are evicted.
    pub amounts: BTreeMap<String, Quantity>,
    /// Memory of the machine, bytes.
    pub machine_memory: u64,
}

fn cpu_policy(config: &PlacementConfig) -> &'static str {
    if config.has_own_cpus { "static" } else { "none" }
}

fn memory_policy(config: &PlacementConfig) -> &'static str {
    if config.has_own_memory { "Static" } else { "None" }
}

impl Placement {
    /// As configured for this machine, with what the last kubelet left in `dir`.
    ///
    /// # Errors
    /// When the machine cannot have it, or what was left is damaged or of another policy.
    pub async fn open(
        config: &PlacementConfig,
        dir: &Path,
        kept: Kept,
        metrics: Arc<PlacementMetrics>,
    ) -> Result<Self, String> {
        let (of, from) = (config.clone(), dir.to_owned());
        let opened = FILES.run(move || {
            let layout = match sysfs::read(Path::new("/sys/devices/system"), kept.machine_memory) {
                // Who wants nothing of it needs not know how the machine is built.
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

    /// Nobody has anything to himself.
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

    /// The numbers of the machine's parts.
    pub fn nodes(&self) -> &[u32] {
        &self.shared.nodes
    }
    /// How what a container gets is brought together; `None`: it is not.
    pub fn alignment(&self) -> Option<&Alignment> {
        self.shared.alignment.as_ref()
    }
    /// What is counted.
    pub fn metrics(&self) -> &PlacementMetrics {
        &self.shared.metrics
    }
    /// Changes whenever others may have processors that some had.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }
    /// Nobody else places a pod until this is dropped.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.shared.turn.lock().await
    }
    /// Whether anybody has processors of his own here.
    pub fn gives_cpus(&self) -> bool {
        self.shared.tables.lock().cpus.is_some()
    }

    /// Where processors and memory could come from that a container wants.
    pub fn hints(&self, pod: &Pod, c: &Container) -> Vec<Wishes> {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().map(|t| t.hints(pod, c));
        cpus.into_iter().chain(tables.memory.as_ref().map(|t| t.hints(pod, c))).collect()
    }

    /// The same for a whole pod.
    pub fn pod_hints(&self, pod: &Pod) -> Vec<Wishes> {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().map(|t| t.pod_hints(pod));
        cpus.into_iter().chain(tables.memory.as_ref().map(|t| t.pod_hints(pod))).collect()
    }

    /// Gives a container processors and memory, from where `hint` says.
    ///
    /// # Errors
    /// Why it cannot have them.
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

    /// Whether this kubelet has placed the pod.
    pub fn is_placed(&self, uid: &str) -> bool {
        self.shared.tables.lock().placed.contains(uid)
    }

    /// A pod is placed: what it got is on disk when this returns, and others make room.
    ///
    /// # Errors
    /// When it could not be written.
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

    /// A container is about to start: what only steps before it had is no longer theirs.
    pub async fn starts(&self, pod: &Pod, container: &str) {
        let changed = self.shared.tables.lock().memory.as_mut().is_some_and(|t| t.starts(pod, container));
        if changed && let Err(error) = self.save().await {
            tracing::error!(error, "which memory pods have is not on disk");
        }
    }

    /// A pod's containers have ended, or it is not placed after all: others may have what it had.
    pub async fn forget(&self, uid: &str) {
        self.retain(|pod| pod != uid).await;
    }

    /// Takes back what pods have that nobody knows any more.
    pub async fn retain(&self, known: impl Fn(&str) -> bool) {
        let changed = {
            let mut tables = self.shared.tables.lock();
            tables.placed.retain(|pod| known(pod));
            let cpus = tables.cpus.as_mut().is_some_and(|t| !t.take_back(&known).is_empty());
            tables.memory.as_mut().is_some_and(|t| t.take_back(&known)) || cpus
        };
        if changed {
            if let Err(error) = self.save().await {
                tracing::error!(error, "which processors and memory pods have is not on disk");
            }
            self.count();
            self.shared.changes.send_replace(());
        }
    }

    /// Where a container runs.
    pub fn placed(&self, uid: &str, container: &str) -> Placed {
        let tables = self.shared.tables.lock();
        let mut placed = Placed::default();
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

    /// Whether a container of the pod has processors of its own.
    pub fn has_own_cpus(&self, uid: &str) -> bool {
        self.shared.tables.lock().cpus.as_ref().is_some_and(|t| t.held().contains_key(uid))
    }

    /// The processors and the memory that a container has to itself, for who lists what pods have.
    pub fn listed(&self, uid: &str, container: &str) -> (CpuSet, Vec<MemoryBlock>) {
        let tables = self.shared.tables.lock();
        let cpus = tables.cpus.as_ref().and_then(|t| t.of(uid, container).cloned());
        let memory = tables.memory.as_ref().and_then(|t| t.of(uid, container).cloned());
        (cpus.unwrap_or_default(), memory.unwrap_or_default())
    }

    /// What could be given if nobody had any.
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

/// The tables of the policies that are on, as they were left.
fn tables(config: &PlacementConfig, layout: &MachineLayout, dir: &Path, kept: &Kept) -> Result<PlacedTables, String> {
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
