//! Watches services, slices and the own node, and updates the kernel's tables to what [`crate::render`] returns:
//! changes are collected, one transaction per family contains the difference, and after a failed one the whole table is
//! replaced.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Backoff, Change, Client, Informer, InformerConfig, InformerHandle};
use kelson_meta::{Clock, ObjectKey};
use kelson_net::guard::TableWatch;
use kelson_net::listing::{self, TableState};
use kelson_net::nft::NftError;
use kelson_net::table::Table;
use kelson_tasks::{Lane, Tasks};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::{Config, table};
use crate::flows::Frontends;
use crate::health::{Health, Listeners};
use crate::metrics::Metrics;
use crate::model::{EndpointSlice, Family, LABEL_HEADLESS, LABEL_PROXY_NAME, LABEL_ZONE, Node, Service, TrafficPolicy};
use crate::render::{self, Options};
use crate::service::{self, NodeInfo};

/// The time for which the first sync waits for the node's zone; without it hints by zone do not apply.
const NODE_WAIT: Duration = Duration::from_secs(2);
/// The back-off after a failed transaction.
const RETRY: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) };
/// A change that is not applied for longer than this makes `/healthz` fail (upstream: twice the sync period).
const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);
/// The time to collect further changes by other programs after the first one.
const GATHER: Duration = Duration::from_millis(500);
/// The blocking pool for flows: the kernel may list a hundred thousand of them.
static FLOWS: Lane = Lane::new("conntrack", 1);

/// Changes that the watches leave for the loop.
struct Inbox {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    families: Vec<Family>,
    health: Arc<Health>,
    dirty: Mutex<HashSet<ObjectKey>>,
    /// Slices by service, then by name.
    slices: Mutex<HashMap<ObjectKey, BTreeMap<String, Arc<EndpointSlice>>>>,
    everything: Notify,
    changed: Notify,
}

impl Inbox {
    fn mark(&self, service: ObjectKey) {
        self.health.queued();
        self.metrics.queued(&self.families, self.clock.now());
        let pending = {
            let mut dirty = self.dirty.lock();
            dirty.insert(service);
            dirty.len()
        };
        self.metrics.set_pending(pending);
        self.changed.notify_one();
    }

    fn service(&self, change: &Change<Service>) {
        self.metrics.service_changed();
        self.mark(change.object().metadata.key());
    }

    fn slice(&self, change: &Change<EndpointSlice>) {
        self.metrics.endpoints_changed();
        let take = |slice: &EndpointSlice| {
            let Some(service) = slice.service() else { return };
            let mut all = self.slices.lock();
            if let Some(of) = all.get_mut(&service) {
                of.remove(&slice.metadata.name);
                if of.is_empty() {
                    all.remove(&service);
                }
            }
            drop(all);
            self.mark(service);
        };
        let put = |slice: &Arc<EndpointSlice>| {
            let Some(service) = slice.service() else { return };
            self.slices
                .lock()
                .entry(service.clone())
                .or_default()
                .insert(slice.metadata.name.clone(), Arc::clone(slice));
            self.mark(service);
        };
        match change {
            Change::Added(slice) => put(slice),
            Change::Updated { old, new } => {
                if old.service() != new.service() {
                    take(old);
                }
                put(new);
            }
            Change::Deleted(slice) => take(slice),
        }
    }

    fn slices_of(&self, service: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        self.slices.lock().get(service).map(|of| of.values().cloned().collect()).unwrap_or_default()
    }
}

/// The table of one family.
struct FamilyTable {
    family: Family,
    rules: Table<ObjectKey>,
    /// Whether the kernel's state is unknown, so that the next transaction replaces the table.
    stale: bool,
    frontends: HashMap<ObjectKey, Frontends>,
    /// UDP addresses whose flows must be checked after the next transaction.
    unflushed: Frontends,
}

struct Syncer {
    config: Config,
    options: Options,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    listeners: Listeners,
    inbox: Arc<Inbox>,
    services: InformerHandle<Service>,
    node: InformerHandle<Node>,
    node_info: NodeInfo,
    tables: Vec<FamilyTable>,
    conntrack_works: bool,
}

/// The dependencies of the proxy besides the kernel.
pub(crate) struct Effects {
    /// The client of the API, with the proxy's identity.
    pub client: Client,
    /// The clock for changes and syncs.
    pub clock: Arc<dyn Clock>,
    /// The metrics, which survive a restart of the loop.
    pub metrics: Arc<Metrics>,
}

/// Runs until dropped.
pub(crate) async fn run(config: Config, effects: Effects, ready: watch::Sender<bool>, tasks: Tasks) {
    let Effects { client, clock, metrics } = effects;
    let health = Arc::new(Health::new(Arc::clone(&clock), HEALTH_TIMEOUT, Arc::clone(&metrics)));
    let inbox = Arc::new(Inbox {
        clock: Arc::clone(&clock),
        metrics: Arc::clone(&metrics),
        families: config.families(),
        health: Arc::clone(&health),
        dirty: Mutex::default(),
        slices: Mutex::default(),
        everything: Notify::new(),
        changed: Notify::new(),
    });
    let labels = format!("!{LABEL_HEADLESS},!{LABEL_PROXY_NAME}");
    let selected = InformerConfig { labels, ..InformerConfig::default() };
    let to = Arc::clone(&inbox);
    let services = Informer::<Service>::new(client.clone(), selected.clone()).on_change(move |c| to.service(c)).start();
    let to = Arc::clone(&inbox);
    let slices = Informer::<EndpointSlice>::new(client.clone(), selected).on_change(move |c| to.slice(c)).start();
    let own = InformerConfig { fields: format!("metadata.name={}", config.node_name), ..InformerConfig::default() };
    let to = Arc::clone(&inbox);
    let node = Informer::<Node>::new(client, own).on_change(move |_| to.everything.notify_one()).start();

    services.synced().await;
    slices.synced().await;
    // Hints are an optimization; a node that does not exist yet must not delay its services.
    let _ = tokio::time::timeout(NODE_WAIT, node.synced()).await;
    let options = config.options();
    let new_table = |family: Family| FamilyTable {
        family,
        rules: Table::new(table(family, &config.data_dir), render::base(family, &options)),
        stale: true,
        frontends: HashMap::new(),
        unflushed: Frontends::default(),
    };
    let mut syncer = Syncer {
        tables: config.families().into_iter().map(new_table).collect(),
        listeners: Listeners::new(Arc::clone(&health), &config, tasks),
        options,
        node_info: NodeInfo { name: config.node_name.clone(), ..NodeInfo::default() },
        config,
        clock,
        metrics,
        health,
        inbox,
        services,
        node,
        conntrack_works: true,
    };
    syncer.read_node();
    syncer.forever(ready).await;
    drop(slices);
}

impl Syncer {
    async fn forever(&mut self, ready: watch::Sender<bool>) {
        let mut failures = 0u32;
        let mut check = tokio::time::interval_at(Instant::now() + self.config.check_period, self.config.check_period);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut due = true;
        let inbox = Arc::clone(&self.inbox);
        let mut timeouts = Some(self.config.tcp_timeouts);
        let mut changes = TableWatch::new(self.tables.iter().map(|t| t.rules.name()), GATHER);
        loop {
            if due {
                match self.sync().await {
                    Ok(()) => {
                        failures = 0;
                        // The first rules that translate load the kernel's connection tracking.
                        if let Some(timeouts) = timeouts.take() {
                            timeouts.apply().await;
                        }
                        ready.send_replace(true);
                    }
                    Err(e) => {
                        failures = failures.saturating_add(1);
                        let delay = RETRY.delay(failures.min(12));
                        tracing::warn!(error = %e, retry_seconds = delay.as_secs(), "applying service rules failed; retrying");
                        tokio::time::sleep(delay).await;
                        continue;
                    }
                }
                tokio::time::sleep(self.config.min_sync_period).await;
            }
            due = tokio::select! {
                () = inbox.changed.notified() => true,
                () = inbox.everything.notified() => self.read_node(),
                _ = check.tick() => self.check().await,
                () = changes.changed() => self.check().await,
            };
        }
    }

    /// Reads the own node's zone and addresses; when they changed, every service is due.
    fn read_node(&mut self) -> bool {
        let Some(node) = self.node.get(&ObjectKey::new("", &self.config.node_name)) else { return false };
        let of = |kind: &str| {
            let addresses = node.status.addresses.iter().filter(|a| a.kind == kind);
            addresses.filter_map(|a| a.address.parse().ok()).collect()
        };
        let read = NodeInfo {
            name: self.config.node_name.clone(),
            zone: node.metadata.labels.get(LABEL_ZONE).cloned().unwrap_or_default(),
            internal_ips: of("InternalIP"),
            external_ips: of("ExternalIP"),
        };
        if read == self.node_info {
            return false;
        }
        self.node_info = read;
        let mut dirty = self.inbox.dirty.lock();
        dirty.extend(self.services.list().iter().map(|s| s.metadata.key()));
        true
    }

    async fn sync(&mut self) -> Result<(), NftError> {
        let began = self.clock.now();
        let dirty = std::mem::take(&mut *self.inbox.dirty.lock());
        for key in &dirty {
            self.refresh(key);
        }
        for table in &mut self.tables {
            let transaction = if table.stale { Some(table.rules.take_full()) } else { table.rules.take_diff() };
            let Some(transaction) = transaction else { continue };
            let (start, full) = (Instant::now(), table.stale);
            let bytes = transaction.script.len();
            tracing::debug!(table = table.rules.name(), bytes, full = table.stale, "applying rules");
            // Stale until it is applied, also when this future is dropped in between.
            table.stale = true;
            transaction.apply().await.inspect_err(|_| self.metrics.failed(table.family))?;
            table.stale = false;
            self.metrics.synced(table.family, start.elapsed(), full);
        }
        self.tables.iter().for_each(|t| self.metrics.in_sync(t.family, self.clock.now()));
        self.metrics.set_pending(self.inbox.dirty.lock().len());
        self.health.synced(began);
        self.flush_flows().await;
        Ok(())
    }

    /// Renders one service again.
    fn refresh(&mut self, key: &ObjectKey) {
        let service = self.services.get(key).filter(|s| !service::is_ignored(s));
        let slices = if service.is_some() { self.inbox.slices_of(key) } else { Vec::new() };
        let slices = || slices.iter().map(Arc::as_ref);
        for table in &mut self.tables {
            let plans = service.as_ref().map(|s| service::plan(s, slices(), table.family, &self.node_info));
            let plans = plans.unwrap_or_default();
            let fragment = render::fragment(table.family, &plans, &self.options);
            for item in table.rules.replace(key, fragment) {
                tracing::warn!(
                    namespace = key.namespace,
                    name = key.name,
                    ?item,
                    "another service already uses this address; ignoring it here"
                );
            }
            let mut frontends = Frontends::default();
            plans.iter().for_each(|p| frontends.add(p));
            let old = table.frontends.remove(key).unwrap_or_default();
            let changed = frontends.changed_since(&old);
            table.unflushed.addresses.extend(changed.addresses);
            table.unflushed.node_ports.extend(changed.node_ports);
            if !frontends.is_empty() {
                table.frontends.insert(key.clone(), frontends);
            }
        }
        let checked = service
            .filter(|s| s.spec.health_check_node_port != 0 && s.spec.external_traffic_policy == TrafficPolicy::Local);
        let wanted = checked.map(|s| (s.spec.health_check_node_port, service::local_ready(slices(), &self.node_info)));
        self.listeners.set(key, wanted);
    }

    /// Deletes UDP flows to removed endpoints. A kernel that does not support it is logged once; flows then time out.
    async fn flush_flows(&mut self) {
        for table in &mut self.tables {
            let frontends = std::mem::take(&mut table.unflushed);
            if frontends.is_empty() {
                continue;
            }
            let (family, node_ips, nets) =
                (table.family, self.config.node_ips.clone(), self.config.nodeport_addresses.clone());
            let is_node = move |ip: IpAddr| {
                if nets.is_empty() { node_ips.contains(&ip) } else { nets.iter().any(|n| n.contains(&ip)) }
            };
            let work = FLOWS.run(move || frontends.flush(family, &is_node));
            match work.await.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
                Ok(count) => self.metrics.flows_deleted(family, count),
                Err(error) if self.conntrack_works => {
                    self.conntrack_works = false;
                    tracing::warn!(%error, "deleting stale UDP conntrack entries failed; they expire by themselves");
                }
                Err(error) => tracing::debug!(%error, "deleting stale UDP conntrack entries failed"),
            }
        }
    }

    /// Compares the kernel's tables with the expected ones; returns true when one must be replaced.
    async fn check(&mut self) -> bool {
        for table in &mut self.tables {
            let name = table.rules.name();
            match listing::compare(name, &table.rules.expected()).await {
                TableState::Intact => continue,
                TableState::Changed => {
                    tracing::warn!(table = name, "another program changed the service rules; restoring them");
                    self.metrics.restored(table.family);
                }
                TableState::Unreadable(error) => {
                    tracing::warn!(table = name, %error, "reading the service rules failed; replacing them");
                }
            }
            table.stale = true;
        }
        self.tables.iter().any(|t| t.stale)
    }
}
