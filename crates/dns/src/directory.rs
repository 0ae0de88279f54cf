//! An index of the cluster's services and endpoint slices by name and by address.
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_meta::{ObjectKey, ObjectMeta, null_default};
use parking_lot::RwLock;
use serde::Deserialize;

/// The fields of a Service that names depend on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// The metadata of the service.
    pub metadata: ObjectMeta,
    /// The addresses of its names.
    pub spec: ServiceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "null_default")]
    cluster_ips: Vec<String>,
    external_name: String,
    #[serde(deserialize_with = "null_default")]
    ports: Vec<Port>,
}

/// A port with a name, which may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Port {
    /// The name of the port, which may be empty.
    pub name: String,
    /// The protocol: `TCP`, `UDP` or `SCTP`. Empty means TCP.
    pub protocol: String,
    pub port: u16,
}

slim_object!(Service, ResourceType::namespaced("", "v1", "services", "Service"));

/// The fields of an EndpointSlice that names depend on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointSlice {
    /// The metadata of the slice.
    pub metadata: ObjectMeta,
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SliceEndpoint {
    addresses: Vec<String>,
    hostname: Option<String>,
    conditions: Conditions,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
}

slim_object!(EndpointSlice, ResourceType::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"));

/// The target of a service name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Cluster IPs, which the service proxy handles.
    ClusterIps(Vec<IpAddr>),
    /// The endpoints of a headless service.
    Headless,
    /// Another name, which resolvers query next (`ExternalName`).
    External(String),
}

/// The published records of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The target of the name.
    pub target: Target,
    pub ports: Vec<Port>,
}

/// One address of a headless service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    /// The label below the service's name: the endpoint's hostname, or its address with dashes.
    pub hostname: String,
    /// Whether the host name was set explicitly and not generated.
    pub named: bool,
    pub ports: Arc<Vec<Port>>,
}

#[derive(Default)]
struct State {
    services: HashMap<ObjectKey, Arc<Entry>>,
    /// The number of services per namespace, to distinguish an empty response from a name that does not exist.
    namespaces: HashMap<String, usize>,
    /// The endpoints by service and slice name.
    endpoints: HashMap<ObjectKey, BTreeMap<String, Vec<Endpoint>>>,
    /// The services by cluster IP.
    by_cluster_ip: HashMap<IpAddr, ObjectKey>,
    /// The host name and service of each named endpoint address.
    by_endpoint: HashMap<IpAddr, (String, ObjectKey)>,
}

/// The index of services and endpoints. Watchers update it, and DNS servers query it.
#[derive(Default)]
pub struct Directory {
    state: RwLock<State>,
}

impl Directory {
    /// Returns the service with this name.
    pub fn service(&self, key: &ObjectKey) -> Option<Arc<Entry>> {
        self.state.read().services.get(key).cloned()
    }
    /// Returns the ready endpoints of a service from all its slices, without duplicate addresses.
    pub fn endpoints(&self, key: &ObjectKey) -> Vec<Endpoint> {
        let state = self.state.read();
        let mut all: Vec<Endpoint> =
            state.endpoints.get(key).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect();
        all.sort_by(|a, b| (a.address, &a.hostname).cmp(&(b.address, &b.hostname)));
        all.dedup_by(|a, b| a.address == b.address && a.hostname == b.hostname && a.ports == b.ports);
        all
    }
    /// Returns whether the namespace has any service.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.state.read().namespaces.contains_key(namespace)
    }
    /// Returns the service with this cluster IP.
    pub fn service_at(&self, address: IpAddr) -> Option<ObjectKey> {
        self.state.read().by_cluster_ip.get(&address).cloned()
    }
    /// Returns the host name and the service of a named endpoint with this address.
    pub fn endpoint_at(&self, address: IpAddr) -> Option<(String, ObjectKey)> {
        self.state.read().by_endpoint.get(&address).cloned()
    }

    /// Adds or updates a service.
    pub fn put_service(&self, service: &Service) {
        let key = service.metadata.key();
        let entry = entry(&service.spec);
        let mut s = self.state.write();
        s.forget_addresses(&key);
        if let Target::ClusterIps(ips) = &entry.target {
            for ip in ips {
                s.by_cluster_ip.insert(*ip, key.clone());
            }
        }
        if s.services.insert(key.clone(), Arc::new(entry)).is_none() {
            *s.namespaces.entry(key.namespace).or_insert(0) += 1;
        }
    }

    /// Removes a service.
    pub fn remove_service(&self, key: &ObjectKey) {
        let mut s = self.state.write();
        s.forget_addresses(key);
        if s.services.remove(key).is_some()
            && let Some(n) = s.namespaces.get_mut(&key.namespace)
        {
            *n -= 1;
            if *n == 0 {
                s.namespaces.remove(&key.namespace);
            }
        }
    }

    /// Adds, updates or removes a slice.
    pub fn put_slice(&self, slice: &EndpointSlice, exists: bool) {
        let Some(service) = slice.metadata.labels.get("kubernetes.io/service-name") else { return };
        let key = ObjectKey::new(&slice.metadata.namespace, service);
        let fresh = if exists { endpoints(slice) } else { Vec::new() };
        let mut s = self.state.write();
        let s = &mut *s;
        let slices = s.endpoints.entry(key.clone()).or_default();
        let old = slices.remove(&slice.metadata.name).unwrap_or_default();
        for e in old.iter().filter(|e| e.named) {
            if s.by_endpoint.get(&e.address).is_some_and(|(_, k)| *k == key) {
                s.by_endpoint.remove(&e.address);
            }
        }
        for e in fresh.iter().filter(|e| e.named) {
            s.by_endpoint.insert(e.address, (e.hostname.clone(), key.clone()));
        }
        if exists {
            slices.insert(slice.metadata.name.clone(), fresh);
        } else if slices.is_empty() {
            s.endpoints.remove(&key);
        }
    }
}

impl State {
    fn forget_addresses(&mut self, key: &ObjectKey) {
        if let Some(old) = self.services.get(key)
            && let Target::ClusterIps(ips) = &old.target
        {
            for ip in ips {
                self.by_cluster_ip.remove(ip);
            }
        }
    }
}

fn entry(spec: &ServiceSpec) -> Entry {
    // A service that was an alias before may still have the external name, so only its type counts.
    let target = if spec.kind == "ExternalName" {
        Target::External(spec.external_name.clone())
    } else if spec.cluster_ip == "None" {
        Target::Headless
    } else {
        let listed = spec.cluster_ips.iter().chain((spec.cluster_ips.is_empty()).then_some(&spec.cluster_ip));
        Target::ClusterIps(listed.filter_map(|ip| ip.parse().ok()).collect())
    };
    Entry { target, ports: spec.ports.clone() }
}

fn endpoints(slice: &EndpointSlice) -> Vec<Endpoint> {
    let ports = Arc::new(slice.ports.clone().unwrap_or_default());
    let mut out = Vec::new();
    for e in slice.endpoints.iter().flatten().filter(|e| e.conditions.ready != Some(false)) {
        for address in e.addresses.iter().filter_map(|a| a.parse::<IpAddr>().ok()) {
            let hostname = e.hostname.clone().unwrap_or_else(|| address.to_string().replace(['.', ':'], "-"));
            out.push(Endpoint { address, hostname, named: e.hostname.is_some(), ports: Arc::clone(&ports) });
        }
    }
    out
}

/// Keeps a directory up to date until the handles are dropped.
pub fn watch(client: &Client, directory: &Arc<Directory>) -> (InformerHandle<Service>, InformerHandle<EndpointSlice>) {
    let d = Arc::clone(directory);
    let services = Informer::<Service>::new(client.clone(), InformerConfig::default())
        .on_change(move |c| match c {
            Change::Added(s) | Change::Updated { new: s, .. } => d.put_service(s),
            Change::Deleted(s) => d.remove_service(&s.metadata.key()),
        })
        .start();
    let d = Arc::clone(directory);
    let slices = Informer::<EndpointSlice>::new(client.clone(), InformerConfig::default())
        .on_change(move |c| d.put_slice(c.object(), !matches!(c, Change::Deleted(_))))
        .start();
    (services, slices)
}
