//! What is known of the cluster: pods with their addresses, namespaces with their labels, and policies. Pure data, kept
//! up to date by whoever watches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use kelson_meta::{LabelMap, LabelSelector, ObjectKey};

use crate::pod::PodFacts;
use crate::policy::{Direction, Policy};

/// The pods, namespaces and policies of a cluster, and who may reach whom.
///
/// It is filled change by change, in any order, and [`Cluster::judge`] reads it. A pod is found by its address, since that is
/// all that a packet shows.
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
    /// Adds or changes a pod; gives the facts before.
    pub fn set_pod(&mut self, pod: PodFacts) -> Option<PodFacts> {
        let key = pod.key();
        let before = self.remove_pod(&key);
        for ip in &pod.ips {
            self.by_ip.entry(*ip).or_default().insert(key.clone());
        }
        self.pods.insert(key, pod);
        before
    }

    /// Forgets a pod; gives its facts.
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

    /// Sets the labels of a namespace; false when they were the same.
    pub fn set_namespace(&mut self, name: &str, labels: LabelMap) -> bool {
        self.namespaces.insert(name.to_owned(), labels.clone()).is_none_or(|before| before != labels)
    }

    /// Forgets a namespace; false when it was not known.
    pub fn remove_namespace(&mut self, name: &str) -> bool {
        self.namespaces.remove(name).is_some()
    }

    /// Adds or changes a policy; gives the one before.
    pub fn set_policy(&mut self, policy: Arc<Policy>) -> Option<Arc<Policy>> {
        self.policies.insert(policy.key.clone(), policy)
    }

    /// Forgets a policy; gives it.
    pub fn remove_policy(&mut self, key: &ObjectKey) -> Option<Arc<Policy>> {
        self.policies.remove(key)
    }

    /// The facts of the pod with this key.
    pub fn pod(&self, key: &ObjectKey) -> Option<&PodFacts> {
        self.pods.get(key)
    }

    /// All pods, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.values()
    }

    /// The pods of a namespace.
    pub fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a PodFacts> {
        let from = ObjectKey::new(namespace, "");
        self.pods.range(from..).map(|(_, pod)| pod).take_while(move |pod| pod.namespace == namespace)
    }

    /// The pods with an address: one, but for the moment in which an address changes hands.
    pub fn pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &PodFacts> {
        self.by_ip.get(&ip).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// The first pod with an address.
    pub fn pod_at(&self, ip: IpAddr) -> Option<&PodFacts> {
        self.pods_at(ip).next()
    }

    /// The policy with this key.
    pub fn policy(&self, key: &ObjectKey) -> Option<&Arc<Policy>> {
        self.policies.get(key)
    }

    /// All policies, by namespace and name.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// The policies that select a pod, by name.
    pub fn policies_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a Arc<Policy>> {
        let from = ObjectKey::new(&pod.namespace, "");
        let own = self.policies.range(from..).map(|(_, policy)| policy);
        own.take_while(|policy| policy.key.namespace == pod.namespace).filter(|policy| policy.selects(pod))
    }

    /// Whether policies apply to a pod in a direction.
    pub fn is_isolated(&self, pod: &PodFacts, direction: Direction) -> bool {
        self.policies_of(pod).any(|policy| policy.rules(direction).is_some())
    }

    /// Whether a namespace is known and has matching labels.
    pub fn namespace_matches(&self, selector: &LabelSelector, name: &str) -> bool {
        self.namespaces.get(name).is_some_and(|labels| selector.matches(labels))
    }
}
