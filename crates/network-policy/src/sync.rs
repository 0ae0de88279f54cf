//! Watches policies and, once there is a policy, pods and namespaces; applies changes to the kernel, one transaction
//! per family, and deletes connections that are no longer allowed. After a failed transaction the whole table is
//! replaced.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Backoff, Client, Informer, InformerConfig, InformerHandle, Object};
use kelson_meta::ObjectKey;
use kelson_net::guard::TableWatch;
use kelson_net::listing::{self, TableState};
use kelson_net::nft::{self, NftError};
use kelson_net::{Family, conntrack};
use kelson_tasks::{Lane, Tasks};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::config::{Config, table};
use crate::enforcer::Enforcer;
use crate::judge::Connection;
use crate::metrics::Metrics;
use crate::pod::PodFacts;
use crate::policy::{Direction, Policy};
use crate::reports::Reports;
use crate::view::{Namespace, NetworkPolicy, Pod};

/// Changes within this time after a transaction share the next one.
const SYNC_PERIOD_MIN: Duration = Duration::from_millis(10);
/// The back-off after a failed transaction.
const RETRY: Backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(30) };
/// The interval at which the kernel's counters are read for the metrics.
const COUNT_PERIOD: Duration = Duration::from_secs(15);
/// The blocking pool for flows: the kernel may list a hundred thousand of them.
static FLOWS: Lane = Lane::new("policy-conntrack", 1);

/// A pod of this node that has just got its addresses and must not run before its policies are in force.
pub(crate) struct Arrival {
    /// The pod, without addresses.
    pub pod: PodFacts,
    /// The new addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Notified when the rules are in force.
    pub done: oneshot::Sender<()>,
}

/// Changes that watches and the kubelet leave for the loop. Its size is bounded by the number of objects and of
/// starting pods.
#[derive(Default)]
pub(crate) struct Inbox {
    pods: Mutex<HashSet<ObjectKey>>,
    namespaces: Mutex<HashSet<ObjectKey>>,
    policies: Mutex<HashSet<ObjectKey>>,
    arrivals: Mutex<Vec<Arrival>>,
    changed: Notify,
}

impl Inbox {
    /// Adds an arrival for the loop.
    pub fn arrive(&self, arrival: Arrival) {
        self.arrivals.lock().push(arrival);
        self.changed.notify_one();
    }

    fn mark(&self, set: &Mutex<HashSet<ObjectKey>>, key: ObjectKey) {
        set.lock().insert(key);
        self.changed.notify_one();
    }
}

fn informer<T: Object>(
    client: &Client,
    inbox: &Arc<Inbox>,
    tasks: &Tasks,
    set: fn(&Inbox) -> &Mutex<HashSet<ObjectKey>>,
) -> InformerHandle<T> {
    let to = Arc::clone(inbox);
    let mark = move |change: &kelson_client::Change<T>| {
        let object = change.object();
        to.mark(set(&to), ObjectKey::new(object.namespace(), object.name()));
    };
    Informer::<T>::new(client.clone(), InformerConfig::default()).on_change(mark).start_in(tasks)
}

/// The watches that are only needed with policies.
struct Watches {
    pods: InformerHandle<Pod>,
    namespaces: InformerHandle<Namespace>,
}

struct Syncer {
    config: Config,
    client: Client,
    tasks: Tasks,
    metrics: Arc<Metrics>,
    reports: Arc<Reports>,
    inbox: Arc<Inbox>,
    policies: InformerHandle<NetworkPolicy>,
    watches: Option<Watches>,
    enforcer: Enforcer,
    /// Whether the kernel's tables must be replaced.
    stale: bool,
    /// Whether the kernel has tables of this node.
    present: bool,
    /// Arrivals that the next transaction completes.
    waiting: Vec<oneshot::Sender<()>>,
    conntrack_works: bool,
    /// Policies with parts that have no effect, until that is reported.
    unreported: HashSet<ObjectKey>,
}

/// State that survives a restart of the loop.
pub(crate) struct Shared {
    pub inbox: Arc<Inbox>,
    pub metrics: Arc<Metrics>,
    pub reports: Arc<Reports>,
    /// Becomes true when the policies were applied for the first time.
    pub ready: watch::Sender<bool>,
}

/// Runs until dropped.
pub(crate) async fn run(config: Config, client: Client, shared: Shared, tasks: Tasks) {
    let Shared { inbox, metrics, reports, ready } = shared;
    let policies = informer::<NetworkPolicy>(&client, &inbox, &tasks, |i| &i.policies);
    policies.synced().await;
    let dir = config.data_dir.clone();
    let enforcer = Enforcer::new(&config.node_name, &config.families, |family| table(family, &dir));
    let mut syncer = Syncer {
        config,
        client,
        tasks,
        metrics,
        reports,
        inbox,
        policies,
        watches: None,
        enforcer,
        stale: true,
        // An earlier process may have left tables.
        present: true,
        waiting: Vec::new(),
        conntrack_works: true,
        unreported: HashSet::new(),
    };
    syncer.forever(ready).await;
}

impl Syncer {
    async fn forever(&mut self, ready: watch::Sender<bool>) {
        let every = |period| {
            let mut interval = tokio::time::interval_at(Instant::now() + period, period);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let (mut check, mut count) = (every(self.config.check_period), every(COUNT_PERIOD));
        let names: Vec<String> = self.enforcer.tables().map(|(_, table)| table.name().to_owned()).collect();
        // Immediately: until the rules are restored, forbidden packets pass.
        let mut changes = TableWatch::new(names.iter().map(String::as_str), Duration::ZERO);
        let (inbox, mut failures, mut due) = (Arc::clone(&self.inbox), 0u32, true);
        loop {
            if due {
                match self.sync().await {
                    Ok(()) => {
                        failures = 0;
                        ready.send_replace(true);
                    }
                    Err(error) => {
                        failures = failures.saturating_add(1);
                        let delay = RETRY.delay(failures.min(12));
                        tracing::error!(%error, retry_in = ?delay, "applying network policies failed; pods keep their previous rules");
                        self.metrics.failed();
                        tokio::time::sleep(delay).await;
                        continue;
                    }
                }
                tokio::time::sleep(SYNC_PERIOD_MIN).await;
            }
            due = tokio::select! {
                () = inbox.changed.notified() => true,
                () = changes.changed() => self.check().await,
                _ = check.tick() => self.check().await,
                _ = count.tick() => self.count().await,
            };
        }
    }

    async fn sync(&mut self) -> Result<(), NftError> {
        let began = Instant::now();
        self.gather().await;
        let mut narrowed = Vec::new();
        if self.watches.is_none() {
            self.remove_tables().await?;
        } else {
            let full = self.stale;
            // Stale until it is applied, also when this future is dropped in between.
            self.stale = true;
            for (family, table) in self.enforcer.tables() {
                let transaction = if full { Some(table.take_full()) } else { table.take_diff() };
                let Some(transaction) = transaction else { continue };
                tracing::debug!(
                    table = table.name(),
                    bytes = transaction.script.len(),
                    full,
                    "applying network policies"
                );
                transaction.apply().await?;
                if transaction.narrows {
                    narrowed.push(family);
                }
            }
            (self.stale, self.present) = (false, true);
        }
        for waiting in self.waiting.drain(..) {
            // The kubelet may have given up; it retries.
            let _ = waiting.send(());
        }
        self.metrics.synced(began.elapsed());
        for family in narrowed {
            self.end_connections(family).await;
        }
        Ok(())
    }

    /// Passes changes to the enforcer. With the first policy, pods and namespaces are watched as well.
    async fn gather(&mut self) {
        let changed = std::mem::take(&mut *self.inbox.policies.lock());
        for key in changed {
            match self.policies.get(&key) {
                Some(object) => {
                    let policy = Policy::new(&object);
                    if !policy.ineffective(&self.config.families).is_empty() {
                        self.unreported.insert(key);
                    }
                    self.enforcer.set_policy(policy);
                }
                None => self.enforcer.remove_policy(&key),
            }
        }
        if self.watches.is_none() && !self.policies.is_empty() {
            let pods = informer::<Pod>(&self.client, &self.inbox, &self.tasks, |i| &i.pods);
            let namespaces = informer::<Namespace>(&self.client, &self.inbox, &self.tasks, |i| &i.namespaces);
            tokio::join!(pods.synced(), namespaces.synced());
            self.watches = Some(Watches { pods, namespaces });
        }
        if let Some(watches) = &self.watches {
            for key in std::mem::take(&mut *self.inbox.namespaces.lock()) {
                match watches.namespaces.get(&key) {
                    Some(namespace) => self.enforcer.set_namespace(&key.name, namespace.metadata.labels.clone()),
                    None => self.enforcer.remove_namespace(&key.name),
                }
            }
            for key in std::mem::take(&mut *self.inbox.pods.lock()) {
                match watches.pods.get(&key).and_then(|pod| PodFacts::of(&pod)) {
                    Some(pod) => self.enforcer.set_pod(pod),
                    None => self.enforcer.remove_pod(&key),
                }
            }
        }
        for arrival in std::mem::take(&mut *self.inbox.arrivals.lock()) {
            if self.watches.is_some() {
                self.enforcer.assign(arrival.pod, arrival.ips);
            }
            self.waiting.push(arrival.done);
        }
        self.report_ineffective();
    }

    /// Reports parts of policies that have no effect, once for each change of a policy and only from the nodes of the
    /// pods that it selects.
    fn report_ineffective(&mut self) {
        let (cluster, node, families) = (self.enforcer.cluster(), &self.config.node_name, &self.config.families);
        self.unreported.retain(|key| {
            let Some((policy, object)) = cluster.policy(key).zip(self.policies.get(key)) else { return false };
            let mut pods = cluster.pods_in(&key.namespace);
            // An invalid selector selects no pod.
            if !policy.selects.nothing && !pods.any(|pod| pod.node == *node && policy.selects(pod)) {
                return true;
            }
            self.reports.ineffective(&object, &policy.ineffective(families));
            false
        });
    }

    /// Removes the tables, which the kernel does not need without policies.
    async fn remove_tables(&mut self) -> Result<(), NftError> {
        if std::mem::take(&mut self.present) {
            for (_, table) in self.enforcer.tables() {
                match nft::delete_table(table.name()).await {
                    Ok(()) => {}
                    // Without nft there is no table either; the first policy will report that it is missing.
                    Err(NftError::Missing) => {}
                    Err(e) => {
                        self.present = true;
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }

    /// Deletes the tracked connections of this node's pods that policies forbid: their packets would pass as
    /// established.
    async fn end_connections(&mut self, family: Family) {
        let ended = self.delete_forbidden(family).await;
        match ended {
            Ok(0) => {}
            Ok(count) => {
                tracing::info!(count, "closed connections that network policies no longer allow");
                self.metrics.ended(count);
            }
            Err(error) if self.conntrack_works => {
                self.conntrack_works = false;
                tracing::warn!(%error, "closing connections that network policies no longer allow failed; they stay open");
            }
            Err(error) => tracing::debug!(%error, "closing forbidden connections failed"),
        }
    }

    async fn delete_forbidden(&self, family: Family) -> std::io::Result<usize> {
        // Traffic between a pod and its node is always allowed, with any of the node's addresses.
        let host = kelson_net::host_addresses().await.map_err(std::io::Error::other)?;
        let cluster = self.enforcer.cluster().clone();
        let node = self.config.node_name.clone();
        let is_forbidden = move |flow: &conntrack::Flow| {
            let (source, destination) = (flow.from.ip(), flow.answered_by.ip());
            let port = flow.protocol.map(|protocol| (protocol, flow.answered_by.port()));
            let connection = Connection { source, destination, port };
            let forbids = |direction: Direction| {
                let own = if direction == Direction::Egress { source } else { destination };
                cluster.pod_at(own).is_some_and(|pod| pod.node == node)
                    && !cluster.judge(direction, &connection).passes()
            };
            !host.contains(&source) && !host.contains(&destination) && Direction::ALL.into_iter().any(forbids)
        };
        let work = FLOWS.run(move || conntrack::delete_flows(family, &mut |flow| is_forbidden(flow)));
        work.await.unwrap_or_else(|e| Err(std::io::Error::other(e)))
    }

    /// Compares the kernel's tables with the expected ones; returns true when they must be replaced.
    async fn check(&mut self) -> bool {
        if self.watches.is_none() || self.stale {
            return self.stale && self.watches.is_some();
        }
        let (mut changed, mut unreadable) = (Vec::new(), false);
        for (_, table) in self.enforcer.tables() {
            let name = table.name();
            match listing::compare(name, &table.expected()).await {
                TableState::Intact => {}
                TableState::Changed => {
                    tracing::warn!(
                        table = name,
                        "another program changed the rules of network policies; restoring them"
                    );
                    changed.push(name.to_owned());
                }
                TableState::Unreadable(error) => {
                    tracing::warn!(table = name, %error, "reading the rules of network policies failed; replacing them");
                    unreadable = true;
                }
            }
        }
        self.stale = unreadable || !changed.is_empty();
        if !changed.is_empty() {
            self.metrics.repaired();
            self.reports.restored(&changed);
        }
        self.stale
    }

    /// Reads the kernel's counters. Never a reason to sync.
    async fn count(&mut self) -> bool {
        if self.watches.is_some() && !self.stale {
            let mut counters = Vec::new();
            for (_, table) in self.enforcer.tables() {
                counters.push(listing::counters(table.name()).await.unwrap_or_default());
            }
            let policies: Vec<_> = self.enforcer.cluster().policies().cloned().collect();
            self.metrics.read(&policies, &counters);
        }
        false
    }
}
