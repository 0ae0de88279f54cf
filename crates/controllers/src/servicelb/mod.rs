//! The load balancer of services: a service of type LoadBalancer gets the addresses of nodes, on which the service proxy of each node
//! accepts its ports; or with pools one address for each family, which one node announces. Services of another class, and all services while it is disabled, are left to other controllers. The counterpart
//! of upstream's `service-lb-controller` (`k8s.io/cloud-provider/controllers/service`), whose finalizer, events and role it has, without
//! a cloud.
mod choice;
mod pooled;
mod pools;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use kelson_client::{Change, Client, EventRecorder, EventType, ObjectRef, WorkQueue};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::choice::{Assignment, Candidate, Demand, Pooled, ProtocolPort, announcers, assign};
use self::pools::{Grant, Ledger};
use crate::shared::address_pool::AddressPool;
use crate::shared::context::{Context, SyncError, update_value};
use crate::shared::informers::SharedInformer;
use crate::views::{EndpointSliceView, IndexKey, NodeView, PodView, SERVICE_NAME_LABEL, ServiceView};

/// The class of services that are for this controller alone. Services without a class are for it, too.
const CLASS: &str = "kelson.dev/servicelb";
/// Keeps a service until its addresses are released (upstream's name).
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Marks the services to which this controller gave a status and a finalizer, since other load balancers use the same finalizer.
const MANAGED: &str = "servicelb.kelson.dev/managed";
/// Labels of nodes for load balancing: once any node has one with the value `true`, only such nodes are used. The second one is k3s'.
const ENABLE: [&str; 2] = ["servicelb.kelson.dev/enable", "svccontroller.k3s.cattle.io/enablelb"];
/// Labels of nodes and services with the name of a pool. The second one is k3s'.
const POOL: [&str; 2] = ["servicelb.kelson.dev/pool", "svccontroller.k3s.cattle.io/lbpool"];
/// Label of nodes that announce no service (upstream's name).
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The only key: the assignment is one for all services.
const ALL: &str = "services";

struct LoadBalancer {
    enabled: bool,
    pools: Vec<AddressPool>,
    /// The addresses of pools that were decided.
    ledger: Mutex<Ledger>,
    clock: Arc<dyn Clock>,
    client: Client,
    events: EventRecorder,
    services: SharedInformer<ServiceView>,
    nodes: SharedInformer<NodeView>,
    slices: SharedInformer<EndpointSliceView>,
    pods: SharedInformer<PodView>,
    /// The last problem of each service, which gets one event.
    problems: Mutex<HashMap<ObjectKey, String>>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let (client, i) = (ctx.client(), &ctx.informers);
    let me = Arc::new(LoadBalancer {
        enabled: ctx.config.service_load_balancer,
        pools: ctx.config.load_balancer_pools.clone(),
        ledger: Mutex::default(),
        clock: Arc::clone(&ctx.clock),
        events: ctx.recorder(&client, "service-controller"),
        client,
        services: i.services.reader(),
        nodes: i.nodes.reader(),
        slices: i.endpoint_slices.reader(),
        pods: i.pods.reader(),
        problems: Mutex::default(),
    });
    let queue: WorkQueue<&'static str> = WorkQueue::default();
    let q = queue.clone();
    me.services.on_change(move |change| {
        let concerns = |s: &Arc<ServiceView>| s.spec.r#type == "LoadBalancer" || is_managed(s);
        if both(change).into_iter().any(concerns) {
            q.add(ALL);
        }
    });
    let q = queue.clone();
    me.nodes.on_change(move |change| {
        let is_same = |old: &NodeView, new: &NodeView| facts(old) == facts(new);
        if !matches!(change, Change::Updated { old, new } if is_same(old, new)) {
            q.add(ALL);
        }
    });
    let (q, services) = (queue.clone(), me.services.clone());
    me.slices.on_change(move |change| {
        let slice = change.object();
        let Some(name) = slice.metadata.labels.get(SERVICE_NAME_LABEL) else { return };
        let is_local = || {
            let service = services.get(&ObjectKey::new(&slice.metadata.namespace, name.as_str()));
            service.is_some_and(|s| s.spec.r#type == "LoadBalancer" && s.spec.external_traffic_policy == "Local")
        };
        if is_kubernetes(&slice.metadata.namespace, name) || is_local() {
            q.add(ALL);
        }
    });
    let q = queue.clone();
    me.pods.on_change(move |change| {
        let held = |pod: &PodView| (pod.spec.node_name.clone(), pod.is_terminal());
        let has_ports = both(change).into_iter().any(|pod| host_ports(pod).next().is_some());
        if has_ports && !matches!(change, Change::Updated { old, new } if held(old) == held(new)) {
            q.add(ALL);
        }
    });
    ctx.run_queue(&queue, 1, move |_| {
        let me = Arc::clone(&me);
        async move { me.sync().await }
    });
}

/// The states that a change has of its object.
fn both<T>(change: &Change<T>) -> Vec<&Arc<T>> {
    match change {
        Change::Added(one) | Change::Deleted(one) => vec![one],
        Change::Updated { old, new } => vec![old, new],
    }
}

fn is_managed(service: &ServiceView) -> bool {
    service.metadata.annotations.contains_key(MANAGED)
}

fn is_kubernetes(namespace: &str, name: &str) -> bool {
    namespace == "default" && name == "kubernetes"
}

fn label(labels: &kelson_meta::LabelMap, names: [&str; 2]) -> Option<String> {
    names.iter().find_map(|name| labels.get(*name)).filter(|value| !value.is_empty()).map(|value| value.to_string())
}

/// The ports of a node that a pod has.
fn host_ports(pod: &PodView) -> impl Iterator<Item = ProtocolPort> {
    let containers = pod.spec.containers.iter().chain(pod.spec.init_containers.iter());
    containers
        .flat_map(|c| &c.ports)
        .filter_map(|p| Some((protocol(&p.protocol), u16::try_from(p.host_port).ok().filter(|n| *n > 0)?)))
}

fn protocol(name: &str) -> String {
    if name.is_empty() { "TCP".to_owned() } else { name.to_owned() }
}

/// Returns the facts of a node, without ports of pods. Returns `None` for a node that announces nothing.
fn facts(node: &NodeView) -> Option<Candidate> {
    let labels = &node.metadata.labels;
    let is_ready = node.status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True");
    if !is_ready || node.metadata.is_deleting() || labels.contains_key(EXCLUDE) {
        return None;
    }
    let of = |kind: &str| -> Vec<IpAddr> {
        let addresses = node.status.addresses.iter().filter(|a| a.r#type == kind);
        addresses.filter_map(|a| a.address.parse().ok()).collect()
    };
    let mut taken = BTreeMap::new();
    if let Ok(port) = u16::try_from(node.status.daemon_endpoints.kubelet_endpoint.port)
        && port > 0
    {
        taken.insert(("TCP".to_owned(), port), "the kubelet".to_owned());
    }
    Some(Candidate {
        name: node.metadata.name.clone(),
        internal: of("InternalIP"),
        external: of("ExternalIP"),
        enabled: label(labels, ENABLE).is_some_and(|value| value == "true"),
        pool: label(labels, POOL),
        is_cordoned: node.spec.unschedulable,
        taken,
    })
}

impl LoadBalancer {
    fn is_ours(&self, service: &ServiceView) -> bool {
        let class = service.spec.load_balancer_class.as_deref();
        self.enabled
            && service.spec.r#type == "LoadBalancer"
            && !service.metadata.is_deleting()
            && class.is_none_or(|class| class == CLASS)
    }

    async fn sync(&self) -> Result<(), SyncError> {
        let services = self.services.list();
        let assignments = match self.pools.is_empty() {
            true => {
                let demands = services.iter().filter(|s| self.is_ours(s)).map(|s| self.demand(s)).collect();
                assign(demands, &self.candidates())
            }
            false => self.assign_from_pools(&services),
        };
        self.problems.lock().retain(|key, _| assignments.contains_key(key));
        let mut failed = Ok(());
        for service in services {
            let done = match assignments.get(&service.metadata.key()) {
                Some(assignment) => self.ensure(&service, assignment).await,
                None if is_managed(&service) => self.release(&service).await,
                None => Ok(()),
            };
            match done {
                Err(SyncError::Client(error)) if error.is_not_found() => {}
                Err(error) => failed = Err(error),
                Ok(()) => {}
            }
        }
        failed
    }

    /// Assigns addresses of the pools, and the nodes that announce them.
    fn assign_from_pools(&self, services: &[Arc<ServiceView>]) -> BTreeMap<ObjectKey, Assignment> {
        let (mut claims, mut mistakes) = (Vec::new(), BTreeMap::new());
        for service in services {
            let (claim, mistake) = pooled::claim(service, self.is_ours(service));
            mistakes.extend(mistake.map(|mistake| (claim.key.clone(), mistake)));
            claims.push(claim);
        }
        let mut grants = self.ledger.lock().grant(claims, &self.pools);
        for (key, mistake) in mistakes {
            grants.entry(key).and_modify(|grant| grant.shortage = Some(mistake));
        }
        let has_address =
            |s: &&Arc<ServiceView>| grants.get(&s.metadata.key()).is_some_and(|g| !g.addresses.is_empty());
        let served = services.iter().filter(has_address);
        let demands = served.map(|s| (self.demand(s), pooled::announcer(s).map(String::from))).collect();
        let announcers = announcers(demands, &self.candidates());
        let assignment = |(key, grant): (ObjectKey, Grant)| {
            let pooled = Pooled { announcer: announcers.get(&key).cloned(), shortage: grant.shortage };
            (key, Assignment { addresses: grant.addresses, conflicts: Vec::new(), pooled: Some(pooled) })
        };
        grants.into_iter().map(assignment).collect()
    }

    /// The nodes that announce services, sorted by name, with the ports that they cannot give away.
    fn candidates(&self) -> Vec<Candidate> {
        let mut servers: Vec<(IpAddr, u16)> = Vec::new();
        for slice in self.slices.in_namespace("default") {
            if slice.metadata.labels.get(SERVICE_NAME_LABEL).is_some_and(|name| is_kubernetes("default", name)) {
                let ports: Vec<u16> = slice.ports.iter().filter_map(|p| u16::try_from(p.port?).ok()).collect();
                let addresses = slice.endpoints.iter().flat_map(|e| &e.addresses).filter_map(|a| a.parse().ok());
                servers.extend(addresses.flat_map(|ip: IpAddr| ports.iter().map(move |port| (ip, *port))));
            }
        }
        let mut all: Vec<Candidate> = self.nodes.list().iter().filter_map(|node| facts(node)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for node in &mut all {
            for (ip, port) in &servers {
                if node.internal.contains(ip) || node.external.contains(ip) {
                    node.taken.insert(("TCP".to_owned(), *port), "the API server".to_owned());
                }
            }
            for pod in self.pods.bucket(&IndexKey::Node(node.name.clone())) {
                if !pod.is_terminal() {
                    let holder = || format!("pod {}", pod.metadata.key());
                    node.taken.extend(host_ports(&pod).map(|port| (port, holder())));
                }
            }
        }
        all
    }

    fn demand(&self, service: &ServiceView) -> Demand {
        let (meta, spec) = (&service.metadata, &service.spec);
        let port = |p: &crate::views::ServicePortView| Some((protocol(&p.protocol), u16::try_from(p.port).ok()?));
        let local = (spec.external_traffic_policy == "Local").then(|| {
            let mut slices = self.slices.in_namespace(&meta.namespace);
            slices.retain(|s| s.metadata.labels.get(SERVICE_NAME_LABEL).is_some_and(|name| **name == *meta.name));
            let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
            let ready = endpoints.filter(|e| e.conditions.ready != Some(false));
            ready.filter_map(|e| e.node_name.clone()).collect::<BTreeSet<String>>()
        });
        Demand {
            created: meta.creation_timestamp.clone(),
            key: meta.key(),
            families: spec.ip_families.clone(),
            ports: spec.ports.iter().filter_map(port).collect(),
            pool: label(&meta.labels, POOL),
            local,
        }
    }

    /// Writes the addresses of a service, with the finalizer.
    async fn ensure(&self, service: &ServiceView, assignment: &Assignment) -> Result<(), SyncError> {
        let about = ObjectRef::of(service);
        let wanted: Vec<String> = assignment.addresses.iter().map(ToString::to_string).collect();
        let ingress = &service.status.load_balancer.ingress;
        let have: Vec<&str> = ingress.iter().map(|i| i.ip.as_str()).collect();
        let is_marked = is_managed(service) && service.metadata.finalizers.iter().any(|f| f == FINALIZER);
        self.report(service, &about, assignment);
        let is_shown = pooled::is_shown(service, assignment);
        if is_marked && is_shown && have == wanted && ingress.iter().all(|i| i.ip_mode == "VIP") {
            return Ok(());
        }
        let is_new = have.is_empty() && !wanted.is_empty();
        if is_new {
            self.events.event(&about, EventType::Normal, "EnsuringLoadBalancer", "Ensuring load balancer");
        }
        self.write(service, |object| {
            let finalizers = &mut object["metadata"]["finalizers"];
            match finalizers.as_array_mut() {
                Some(list) if list.iter().any(|f| f == FINALIZER) => {}
                Some(list) => list.push(FINALIZER.into()),
                None => *finalizers = json!([FINALIZER]),
            }
            object["metadata"]["annotations"][MANAGED] = "true".into();
            let ingress: Vec<Value> = wanted.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
            object["status"]["loadBalancer"] = if ingress.is_empty() { json!({}) } else { json!({"ingress": ingress}) };
            pooled::show(object, assignment, &format_seconds(self.clock.now()));
        })
        .await?;
        if is_new {
            self.events.event(&about, EventType::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
        } else if have != wanted {
            let message = "Updated load balancer with new hosts";
            self.events.event(&about, EventType::Normal, "UpdatedLoadBalancer", message);
        }
        if let Some(node) = assignment.announcer().filter(|node| pooled::announcer(service) != Some(*node)) {
            let message = format!("Announcing the addresses from node {node}");
            self.events.event(&about, EventType::Normal, "NodeAssigned", message);
        }
        Ok(())
    }

    /// Reports a problem once, until it is another one.
    fn report(&self, service: &ServiceView, about: &ObjectRef, assignment: &Assignment) {
        let conflicts: Vec<String> = assignment.conflicts.iter().map(ToString::to_string).collect();
        let pooled = assignment.pooled.as_ref();
        let (reason, message) = if let Some(shortage) = pooled.and_then(|pooled| pooled.shortage.as_ref()) {
            ("SyncLoadBalancerFailed", format!("Error syncing load balancer: {shortage}"))
        } else if !conflicts.is_empty() {
            ("SyncLoadBalancerFailed", format!("not announced by all nodes: {}", conflicts.join("; ")))
        } else if assignment.addresses.is_empty() || pooled.is_some_and(|pooled| pooled.announcer.is_none()) {
            ("UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer".to_owned())
        } else {
            self.problems.lock().remove(&service.metadata.key());
            return;
        };
        if self.problems.lock().insert(service.metadata.key(), message.clone()).as_ref() != Some(&message) {
            self.events.event(about, EventType::Warning, reason, message);
        }
    }

    /// Removes what this controller gave to a service.
    async fn release(&self, service: &ServiceView) -> Result<(), SyncError> {
        let about = ObjectRef::of(service);
        self.events.event(&about, EventType::Normal, "DeletingLoadBalancer", "Deleting load balancer");
        self.write(service, |object| {
            if let Some(list) = object["metadata"]["finalizers"].as_array_mut() {
                list.retain(|f| f != FINALIZER);
            }
            if let Some(map) = object["metadata"]["annotations"].as_object_mut() {
                map.remove(MANAGED);
            }
            object["status"]["loadBalancer"] = json!({});
            pooled::show(object, &Assignment::default(), "");
        })
        .await?;
        self.ledger.lock().release(&service.metadata.key());
        self.events.event(&about, EventType::Normal, "DeletedLoadBalancer", "Deleted load balancer");
        Ok(())
    }

    /// Updates the status, with metadata, unless the service changed since it was read.
    async fn write(&self, service: &ServiceView, change: impl FnOnce(&mut Value)) -> Result<(), SyncError> {
        let meta = &service.metadata;
        let (namespace, name, seen) = (&meta.namespace, &meta.name, &meta.resource_version);
        update_value::<ServiceView>(&self.client, namespace, name, "status", seen, change).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
