//! The state of the cluster for network policies: pods with their addresses, namespaces with their labels, and
//! policies. Pure data, updated by the watches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use kelson_meta::{LabelMap, LabelSelector, ObjectKey};

use crate::pod::PodFacts;
use crate::policy::{Direction, Policy};

/// The pods, namespaces and policies of a cluster, and which connections they allow.
///
/// It is updated change by change, in any order, and [`Cluster::judge`] reads it. A pod is found by its address, since
/// a packet has nothing else.
///
/// ```
/// use kelson_network_policy::{Cluster, Connection, Direction, PodFacts};
///
/// let mut cluster = Cluster::default();
/// let ip = "10.42.0.5".parse().unwrap();
/// cluster.set_pod(PodFacts { namespace: "shop".into(), name: "db".into(), ips: vec![ip], ..PodFacts::default() });
/// let source = "192.0.2.1".parse().unwrap();
/// let connection = Connection { source, destination: ip, port: None };
/// assert!(cluster.judge(Direction::Ingress, &connection).passes(), "no policy selects the pod");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    namespaces: HashMap<String, LabelMap>,
    pods: BTreeMap<ObjectKey, PodFacts>,
    by_ip: HashMap<IpAddr, BTreeSet<ObjectKey>>,
    policies: BTreeMap<ObjectKey, Arc<Policy>>,
}

impl Cluster {
    /// Adds or updates a pod; returns the previous facts.
    pub fn set_pod(&mut self, pod: PodFacts) -> Option<PodFacts> {
        let key = pod.key();
        let before = self.remove_pod(&key);
        for ip in &pod.ips {
            self.by_ip.entry(*ip).or_default().insert(key.clone());
        }
        self.pods.insert(key, pod);
        before
    }

    /// Removes a pod; returns its facts.
    pub fn remove_pod(&mut self, key: &ObjectKey) -> Option<PodFacts> {
        let pod = self.pods.remove(key)?;
        for ip in &pod.ips {
            if let Some(keys) = self.by_ip.get_mut(ip) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_ip.remove(ip);
                }
            }
        }
        Some(pod)
    }

    /// Sets the labels of a namespace; returns false when they were the same.
    pub fn set_namespace(&mut self, name: &str, labels: LabelMap) -> bool {
        self.namespaces.insert(name.to_owned(), labels.clone()).is_none_or(|before| before != labels)
    }

    /// Removes a namespace; returns false when it was not known.
    pub fn remove_namespace(&mut self, name: &str) -> bool {
        self.namespaces.remove(name).is_some()
    }

    /// Adds or updates a policy; returns the previous one.
    pub fn set_policy(&mut self, policy: Arc<Policy>) -> Option<Arc<Policy>> {
        self.policies.insert(policy.key.clone(), policy)
    }

    /// Removes a policy and returns it.
    pub fn remove_policy(&mut self, key: &ObjectKey) -> Option<Arc<Policy>> {
        self.policies.remove(key)
    }

    /// Returns the facts of the pod with this key.
    pub fn pod(&self, key: &ObjectKey) -> Option<&PodFacts> {
        self.pods.get(key)
    }

    /// Returns all pods, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.values()
    }

    /// Returns the pods of a namespace.
    pub fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a PodFacts> {
        let from = ObjectKey::new(namespace, "");
        self.pods.range(from..).map(|(_, pod)| pod).take_while(move |pod| pod.namespace == namespace)
    }

    /// Returns the pods with an address: usually one, but two while an address moves between pods.
    pub fn pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &PodFacts> {
        self.by_ip.get(&ip).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// Returns the first pod with an address.
    pub fn pod_at(&self, ip: IpAddr) -> Option<&PodFacts> {
        self.pods_at(ip).next()
    }

    /// Returns the policy with this key.
    pub fn policy(&self, key: &ObjectKey) -> Option<&Arc<Policy>> {
        self.policies.get(key)
    }

    /// Returns all policies, by namespace and name.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// Returns the policies that select a pod, by name.
    pub fn policies_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a Arc<Policy>> {
        let from = ObjectKey::new(&pod.namespace, "");
        let own = self.policies.range(from..).map(|(_, policy)| policy);
        own.take_while(|policy| policy.key.namespace == pod.namespace).filter(|policy| policy.selects(pod))
    }

    /// Reports whether policies apply to a pod in a direction.
    pub fn is_isolated(&self, pod: &PodFacts, direction: Direction) -> bool {
        self.policies_of(pod).any(|policy| policy.rules(direction).is_some())
    }

    /// Reports whether a namespace is known and has matching labels.
    pub fn namespace_matches(&self, selector: &LabelSelector, name: &str) -> bool {
        self.namespaces.get(name).is_some_and(|labels| selector.matches(labels))
    }
}
