//! Random histories of pods, namespaces and policies. After each step, the rules as read by an interpreter give the
//! same decision for every connection as a direct evaluation of the API, and the table has no unused items.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kelson_meta::ObjectKey;
use kelson_net::{Family, Protocol};
use kelson_network_policy::enforcer::Enforcer;
use kelson_network_policy::view::NetworkPolicy;
use kelson_network_policy::{Connection, Direction, NamedPort, PodFacts, Policy};
use rand::prelude::*;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::interpreter::Kernel;

const NODE: &str = "here";
const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const HISTORIES: u64 = 24;
const STEPS: usize = 40;

struct World {
    rng: StdRng,
    enforcer: Enforcer,
    kernels: BTreeMap<&'static str, Kernel>,
    policies: Vec<ObjectKey>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut enforcer = Enforcer::new(NODE, &Family::ALL, |family| format!("{} t", family.as_str()));
        let mut kernels = BTreeMap::new();
        for (family, table) in enforcer.tables() {
            let mut kernel = Kernel::default();
            kernel.apply(&table.take_full().script);
            kernels.insert(family.as_str(), kernel);
        }
        Self { rng: StdRng::seed_from_u64(seed), enforcer, kernels, policies: Vec::new() }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.rng).unwrap()
    }

    fn labels(&mut self) -> Value {
        let mut labels = serde_json::Map::new();
        for key in ["app", "tier"] {
            if self.rng.random_bool(0.7) {
                labels.insert(key.into(), self.one(&["x", "y"]).into());
            }
        }
        labels.into()
    }

    fn selector(&mut self) -> Value {
        match self.rng.random_range(0..5) {
            0 => json!({}),
            1 => json!({"matchLabels": {"app": self.one(&["x", "y"])}}),
            2 => json!({"matchExpressions": [{"key": "tier", "operator": self.one(&["Exists", "DoesNotExist"])}]}),
            3 => json!({"matchExpressions": [{"key": "app", "operator": self.one(&["In", "NotIn"]), "values": ["x"]}]}),
            _ => json!({"matchLabels": {"app": "x", "tier": "y"}}),
        }
    }

    fn peers(&mut self) -> Vec<Value> {
        let count = self.rng.random_range(0..3);
        (0..count).map(|_| self.peer()).collect()
    }

    fn peer(&mut self) -> Value {
        match self.rng.random_range(0..6) {
            0 => json!({"podSelector": self.selector()}),
            1 => json!({"namespaceSelector": self.selector()}),
            2 => json!({"podSelector": self.selector(), "namespaceSelector": self.selector()}),
            3 => json!({"ipBlock": {"cidr": "10.42.0.0/28", "except": ["10.42.0.4/30", "10.42.0.6/31"]}}),
            4 => json!({"ipBlock": {"cidr": self.one(&["192.0.2.0/24", "0.0.0.0/0", "10.42.0.2/32"])}}),
            _ => json!({"ipBlock": {"cidr": "fd00::/64", "except": ["fd00::4/126"]}}),
        }
    }

    fn ports(&mut self) -> Vec<Value> {
        let count = self.rng.random_range(0..3);
        let one = |w: &mut Self| match w.rng.random_range(0..5) {
            0 => json!({"port": 80}),
            1 => json!({"protocol": w.one(&["TCP", "UDP", "SCTP"])}),
            2 => json!({"port": 79, "endPort": w.one(&[80, 90]), "protocol": w.one(&["TCP", "UDP"])}),
            3 => json!({"port": 53, "protocol": "UDP"}),
            _ => json!({"port": "web", "protocol": w.one(&["TCP", "UDP"])}),
        };
        (0..count).map(|_| one(self)).collect()
    }

    fn rules(&mut self, peers: &str) -> Vec<Value> {
        let count = self.rng.random_range(0..3);
        (0..count).map(|_| json!({peers: self.peers(), "ports": self.ports()})).collect()
    }

    fn step(&mut self) {
        let namespace = self.one(&NAMESPACES);
        match self.rng.random_range(0..10) {
            0..4 => self.put_pod(namespace),
            4 => {
                let name = format!("p{}", self.rng.random_range(0..4));
                self.enforcer.remove_pod(&ObjectKey::new(namespace, &name));
            }
            5 => {
                let labels = serde_json::from_value(self.labels()).unwrap();
                self.enforcer.set_namespace(namespace, labels);
            }
            6 if self.rng.random_bool(0.2) => self.enforcer.remove_namespace(namespace),
            7 if !self.policies.is_empty() => {
                let key = self.policies.choose(&mut self.rng).unwrap().clone();
                self.enforcer.remove_policy(&key);
            }
            _ => self.put_policy(namespace),
        }
    }

    fn put_pod(&mut self, namespace: &str) {
        let number = self.rng.random_range(0..4u8);
        let index = u8::try_from(NAMESPACES.iter().position(|n| *n == namespace).unwrap()).unwrap();
        // Sometimes the address of another pod, as when an address moves between pods.
        let at = if self.rng.random_bool(0.1) { 1 } else { 1 + index * 4 + number };
        let ips: Vec<IpAddr> = match self.rng.random_range(0..6) {
            0 => Vec::new(),
            1 => vec![IpAddr::from([10, 42, 0, at])],
            _ => vec![IpAddr::from([10, 42, 0, at]), format!("fd00::{at:x}").parse().unwrap()],
        };
        let web = |protocol, number| NamedPort { name: "web".into(), protocol, number };
        let ports = match self.rng.random_range(0..4) {
            0 => Vec::new(),
            1 => vec![web(Protocol::Tcp, 80), web(Protocol::Udp, 81)],
            2 => vec![web(Protocol::Tcp, 81), web(Protocol::Tcp, 85)],
            _ => vec![web(Protocol::Tcp, 80)],
        };
        let labels = serde_json::from_value(self.labels()).unwrap();
        // Each node has its own addresses.
        let node = if at % 3 == 0 { "there" } else { NODE }.to_owned();
        let (namespace, name) = (namespace.to_owned(), format!("p{number}"));
        let pod = PodFacts { namespace, name, labels, ips: ips.clone(), ports, node };
        if self.rng.random_bool(0.2) && pod.node == NODE {
            self.enforcer.assign(PodFacts { ips: Vec::new(), ..pod }, ips);
        } else {
            self.enforcer.set_pod(pod);
        }
    }

    fn put_policy(&mut self, namespace: &str) {
        let name = format!("np{}", self.rng.random_range(0..3));
        let types = self.one(&[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"], &[]]);
        let spec = json!({"podSelector": self.selector(), "policyTypes": types,
            "ingress": self.rules("from"), "egress": self.rules("to")});
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
        let object: NetworkPolicy = serde_json::from_value(object).unwrap();
        self.policies.push(object.metadata.key());
        self.enforcer.set_policy(Policy::new(&object));
    }

    fn sync(&mut self) {
        for (family, table) in self.enforcer.tables() {
            let kernel = self.kernels.get_mut(family.as_str()).unwrap();
            if let Some(transaction) = table.take_diff() {
                kernel.apply(&transaction.script);
            }
            let mut whole = Kernel::default();
            whole.apply(&table.take_full().script);
            assert_eq!(kernel.objects(), whole.objects(), "what changes made, and what the whole is");
        }
    }

    /// Returns the decision by the API: egress if the source is a pod of this node, ingress if the destination is.
    fn allows(&self, c: &Connection) -> bool {
        let cluster = self.enforcer.cluster();
        let is_here = |ip| cluster.pod_at(ip).is_some_and(|pod| pod.node == NODE);
        (!is_here(c.source) || cluster.judge(Direction::Egress, c).passes())
            && (!is_here(c.destination) || cluster.judge(Direction::Ingress, c).passes())
    }

    /// Compares every pair of a few ends, with a few ports each; returns the number of allowed and denied ones.
    fn compare(&self, seed: u64, step: usize) -> (usize, usize) {
        let (mut allowed, mut denied) = (0, 0);
        for family in ["ip", "ip6"] {
            let ends: Vec<IpAddr> = (1..=13)
                .map(|n| match family {
                    "ip" => IpAddr::from([10, 42, 0, n]),
                    _ => format!("fd00::{n:x}").parse().unwrap(),
                })
                .chain(["192.0.2.9".parse().unwrap()].into_iter().filter(|_| family == "ip"))
                .collect();
            let ports = [
                None,
                Some((Protocol::Tcp, 80)),
                Some((Protocol::Tcp, 85)),
                Some((Protocol::Udp, 81)),
                Some((Protocol::Sctp, 9)),
            ];
            for (source, destination) in ends.iter().flat_map(|s| ends.iter().map(move |d| (*s, *d))) {
                for port in ports {
                    let c = Connection { source, destination, port };
                    let expected = self.allows(&c);
                    let decided = self.kernels[family].forwards(&c);
                    assert_eq!(decided, expected, "seed {seed}, step {step}: {c:?}");
                    if expected { allowed += 1 } else { denied += 1 }
                }
            }
        }
        (allowed, denied)
    }
}

#[test]
fn rules_decide_as_the_api_says() {
    let (mut allowed, mut denied) = (0, 0);
    for seed in 0..HISTORIES {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            let steps = world.rng.random_range(1..4);
            (0..steps).for_each(|_| world.step());
            world.sync();
            if step % 4 == 3 {
                let (a, d) = world.compare(seed, step);
                (allowed, denied) = (allowed + a, denied + d);
            }
        }
    }
    assert!(allowed > 10_000 && denied > 10_000, "allowed {allowed}, denied {denied}: the histories say too little");
}

#[test]
fn without_pods_and_policies_the_table_is_as_it_began() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let begun: Vec<_> = world.kernels.values().map(Kernel::objects).collect();
        (0..60).for_each(|_| world.step());
        world.sync();
        let pods: Vec<ObjectKey> = world.enforcer.cluster().pods().map(PodFacts::key).collect();
        pods.iter().for_each(|key| world.enforcer.remove_pod(key));
        let policies: Vec<ObjectKey> = world.enforcer.cluster().policies().map(|p| p.key.clone()).collect();
        policies.iter().for_each(|key| world.enforcer.remove_policy(key));
        world.sync();
        let ended: Vec<_> = world.kernels.values().map(Kernel::objects).collect();
        assert_eq!(ended, begun, "seed {seed}");
    }
}

/// The transaction of one changed label does not grow with the number of policies and pods.
#[test]
fn one_label_is_a_small_transaction() {
    let mut enforcer = Enforcer::new(NODE, &[Family::V4], |_| "ip t".to_owned());
    enforcer.set_namespace("a", serde_json::from_value(json!({})).unwrap());
    for n in 0..1000u16 {
        let labels = json!({"app": format!("x{n}")});
        let selector = json!({"matchLabels": labels});
        let spec = json!({"podSelector": selector, "ingress": [{"from": [{"podSelector": selector}]}]});
        let object = json!({"metadata": {"name": format!("np{n}"), "namespace": "a"}, "spec": spec});
        enforcer.set_policy(Policy::new(&serde_json::from_value(object).unwrap()));
        let [high, low] = n.to_be_bytes();
        let ips = vec![IpAddr::from([10, 42, high, low])];
        let labels = serde_json::from_value(labels).unwrap();
        let pod = PodFacts { namespace: "a".into(), name: format!("p{n}"), labels, ips, ..PodFacts::default() };
        enforcer.set_pod(PodFacts { node: NODE.into(), ..pod });
    }
    let (_, table) = enforcer.tables().next().unwrap();
    assert!(table.take_diff().unwrap().script.lines().count() > 3000);
    let labels = serde_json::from_value(json!({"app": "x1"})).unwrap();
    let ips = vec![IpAddr::from([10, 42, 0, 0])];
    let pod = PodFacts { namespace: "a".into(), name: "p0".into(), labels, ips, ..PodFacts::default() };
    enforcer.set_pod(PodFacts { node: NODE.into(), ..pod });
    let (_, table) = enforcer.tables().next().unwrap();
    let script = table.take_diff().unwrap().script;
    // From one set to another, and from one chain to another, whose last user it was.
    assert_eq!(script.lines().count(), 6, "{script}");
}
