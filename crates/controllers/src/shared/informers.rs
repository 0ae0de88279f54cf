//! Informers shared by all controllers: one cache per type with the indexes that controllers need (namespace,
//! controlling owner, node). A cache starts only if a controller reads it, and all handlers are added before the start.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle};
use kelson_meta::ObjectKey;
use kelson_tasks::Tasks;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use kelson_devices::{ResourceClaimView, ResourceSliceView};

// The rows below name every kind.
use crate::views::*;

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;
type Buckets<T> = HashMap<IndexKey, HashMap<u128, Arc<T>>>;

struct Inner<T> {
    handlers: RwLock<Vec<Handler<T>>>,
    handle: RwLock<Option<InformerHandle<T>>>,
    buckets: RwLock<Buckets<T>>,
    /// Whether any controller reads it.
    wanted: Arc<AtomicBool>,
    config: InformerConfig,
}

/// The informer of one type with its cache and indexes. Cloning is cheap and shares the cache.
///
/// A controller calls [`reader`](Self::reader) or [`on_change`](Self::on_change) in its `start` function, which marks
/// the informer to be started. After the start, [`get`](Self::get), [`list`](Self::list) and [`bucket`](Self::bucket)
/// read the cache. The cache may be older than the API server, so a controller that is about to delete an object reads
/// it from the API server first.
pub struct SharedInformer<T> {
    inner: Arc<Inner<T>>,
    /// Whether the holder of this view reads the informer.
    asked: Arc<AtomicBool>,
}

impl<T> Clone for SharedInformer<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), asked: Arc::clone(&self.asked) }
    }
}

impl<T: Indexed> Default for SharedInformer<T> {
    fn default() -> Self {
        Self::new(InformerConfig::default())
    }
}

impl<T: Indexed> SharedInformer<T> {
    /// Returns an informer that is not started.
    pub fn new(config: InformerConfig) -> Self {
        let wanted: Arc<AtomicBool> = Arc::default();
        let asked = Arc::clone(&wanted);
        Self {
            inner: Arc::new(Inner {
                handlers: RwLock::default(),
                handle: RwLock::default(),
                buckets: RwLock::default(),
                wanted,
                config,
            }),
            asked,
        }
    }

    /// Returns a view for another reader, which waits for the informer only if it reads it.
    fn view(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), asked: Arc::default() }
    }

    fn ask(&self) {
        self.inner.wanted.store(true, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Returns a handle for reading, and marks the informer to be started.
    pub fn reader(&self) -> Self {
        self.ask();
        self.clone()
    }

    /// Calls `f` for every change, in order. It must not block.
    pub fn on_change(&self, f: impl Fn(&Change<T>) + Send + Sync + 'static) {
        self.ask();
        self.inner.handlers.write().push(Box::new(f));
    }

    /// Starts the watch if any controller reads the informer.
    pub(crate) fn start(&self, client: &Client, tasks: &Tasks) {
        if !self.inner.wanted.load(Ordering::Relaxed) {
            return;
        }
        let me = self.clone();
        let informer = Informer::new(client.clone(), self.inner.config.clone()).on_change(move |change| {
            me.reindex(change);
            for h in me.inner.handlers.read().iter() {
                h(change);
            }
        });
        *self.inner.handle.write() = Some(informer.start_in(tasks));
    }

    /// Stops the watch and clears the cache.
    pub(crate) fn stop(&self) {
        *self.inner.handle.write() = None;
        self.inner.handlers.write().clear();
        self.inner.buckets.write().clear();
    }

    pub(crate) async fn synced(&self) {
        if !self.asked.load(Ordering::Relaxed) {
            return;
        }
        let handle = self.inner.handle.read().clone();
        if let Some(h) = handle {
            h.synced().await;
        }
    }

    fn reindex(&self, change: &Change<T>) {
        let mut keys = Vec::new();
        let (old, new) = match change {
            Change::Added(o) => (None, Some(o)),
            Change::Updated { old, new } => (Some(old), Some(new)),
            Change::Deleted(o) => (Some(o), None),
        };
        let mut buckets = self.inner.buckets.write();
        if let Some(o) = old {
            o.index(&mut keys);
            let uid = uid_number(o.uid());
            for k in keys.drain(..) {
                if let Some(bucket) = buckets.get_mut(&k) {
                    bucket.remove(&uid);
                    if bucket.is_empty() {
                        buckets.remove(&k);
                    }
                }
            }
        }
        if let Some(o) = new {
            o.index(&mut keys);
            let uid = uid_number(o.uid());
            for k in keys {
                buckets.entry(k).or_default().insert(uid, Arc::clone(o));
            }
        }
    }

    /// Returns the cached object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.inner.handle.read().as_ref()?.get(key)
    }

    /// Returns all cached objects in no particular order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.inner.handle.read().as_ref().map(InformerHandle::list).unwrap_or_default()
    }

    /// Returns the objects of one index bucket in no particular order.
    pub fn bucket(&self, key: &IndexKey) -> Vec<Arc<T>> {
        self.inner.buckets.read().get(key).map(|b| b.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the objects of one namespace in no particular order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        self.bucket(&IndexKey::Namespace(namespace.to_owned()))
    }

    /// Returns the objects that the owner with this UID controls, and those in the namespace without a controller.
    /// These are the candidates for [`claim_all`](super::ownership::claim_all).
    pub fn owned_or_orphaned(&self, uid: &str, namespace: &str) -> Vec<Arc<T>> {
        let buckets = self.inner.buckets.read();
        let of = |k: &IndexKey| buckets.get(k).into_iter().flat_map(|b| b.values().cloned()).collect::<Vec<_>>();
        let mut all = of(&IndexKey::Controller(uid_number(uid)));
        all.extend(of(&IndexKey::Orphans(namespace.to_owned())));
        all
    }
}

macro_rules! informers {
    ($($(#[$doc:meta])* $field:ident : $type:ty = $config:expr;)*) => {
        /// All shared informers. One that no controller reads is never started.
        pub struct Informers {
            $($(#[$doc])* pub $field: SharedInformer<$type>,)*
            /// Cancelled once the watches have been started.
            started: CancellationToken,
        }
        impl Default for Informers {
            fn default() -> Self {
                Self { $($field: SharedInformer::new($config),)* started: CancellationToken::new() }
            }
        }
        impl Informers {
            pub(crate) fn start(&self, client: &Client, tasks: &Tasks) {
                $(self.$field.start(client, tasks);)*
                self.started.cancel();
            }
            pub(crate) fn stop(&self) {
                $(self.$field.stop();)*
            }
            /// Returns the informers for one controller. [`synced`](Self::synced) then waits only for those that it
            /// reads, so that a kind that cannot be listed delays only its readers.
            pub(crate) fn view(&self) -> Self {
                Self { $($field: self.$field.view(),)* started: self.started.clone() }
            }
            /// Waits until every informer that is read through this view has its initial list.
            pub async fn synced(&self) {
                // Workers are spawned before the watches, so an informer without a watch must not count as synced.
                self.started.cancelled().await;
                $(self.$field.synced().await;)*
            }
        }
    };
}

fn all() -> InformerConfig {
    InformerConfig::default()
}

informers! {
    pods: PodView = all();
    replica_sets: ReplicaSetView = all();
    replication_controllers: ReplicationControllerView = all();
    deployments: DeploymentView = all();
    jobs: JobView = all();
    daemon_sets: DaemonSetView = all();
    stateful_sets: StatefulSetView = all();
    resource_quotas: ResourceQuotaView = all();
    /// Histories of daemon sets and stateful sets.
    controller_revisions: ControllerRevisionView = all();
    cron_jobs: CronJobView = all();
    budgets: BudgetView = all();
    pod_autoscalers: PodAutoscalerView = all();
    namespaces: NamespaceView = all();
    nodes: NodeView = all();
    leases: LeaseView = InformerConfig { namespace: "kube-node-lease".into(), ..all() };
    services: ServiceView = all();
    endpoint_slices: EndpointSliceView = all();
    /// The Endpoints of `v1`.
    endpoints: EndpointsView = all();
    service_accounts: ServiceAccountView = all();
    /// The `kube-root-ca.crt` ConfigMap of each namespace.
    root_cas: ConfigMapView = InformerConfig { fields: "metadata.name=kube-root-ca.crt".into(), ..all() };
    /// The `cluster-info` ConfigMap that joining nodes read.
    cluster_info: ConfigMapView = InformerConfig {
        namespace: "kube-public".into(), fields: "metadata.name=cluster-info".into(), ..all()
    };
    /// Legacy service account token secrets.
    token_secrets: SecretView = InformerConfig { fields: "type=kubernetes.io/service-account-token".into(), ..all() };
    /// Bootstrap token secrets.
    bootstrap_secrets: SecretView = InformerConfig {
        namespace: "kube-system".into(), fields: "type=bootstrap.kubernetes.io/token".into(), ..all()
    };
    /// Persistent volume claims.
    claims: ClaimView = all();
    volumes: VolumeView = all();
    /// Attachments of volumes to nodes.
    attachments: AttachmentView = all();
    /// CSI drivers of volumes.
    csi_drivers: CsiDriverView = all();
    storage_classes: StorageClassView = all();
    /// Classes of volume attributes.
    volume_attributes_classes: VolumeAttributesClassView = all();
    /// Certificate signing requests.
    csrs: CsrView = all();
    cluster_roles: ClusterRoleView = all();
    /// Claims for devices (dynamic resource allocation).
    resource_claims: ResourceClaimView = all();
    resource_claim_templates: ResourceClaimTemplateView = all();
    /// Devices that drivers offer.
    resource_slices: ResourceSliceView = all();
    /// Validating admission policies.
    policies: PolicyView = all();
    /// Service address ranges.
    service_cidrs: ServiceCidrView = all();
    /// Allocated service addresses.
    ip_addresses: IpAddressView = all();
}
