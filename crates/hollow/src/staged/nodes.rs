//! Which nodes are driven, and the addresses of nodes and of pods on them.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use jiff::Timestamp;
use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle};
use kelson_meta::{Clock, ObjectKey};
use kelson_stages::Surroundings;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde_json::Value;

use super::leases::{Holder, Leases};
use super::settings::{Manage, Settings};
use super::whole::Whole;
use crate::addresses::Addresses;

/// A function that is called for each node that becomes managed.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// The nodes that are driven.
pub struct StagedNodes {
    settings: Settings,
    clock: Arc<dyn Clock>,
    started: Timestamp,
    nodes: OnceLock<InformerHandle<Whole>>,
    /// Those that this process speaks for.
    held: Mutex<HashSet<String>>,
    listeners: Mutex<Vec<Listener>>,
    addresses: Mutex<HashMap<IpNet, Addresses>>,
}

impl StagedNodes {
    /// Follows the nodes, and holds their leases.
    pub fn start(settings: Settings, client: &Client, clock: &Arc<dyn Clock>, tasks: &Tasks) -> Arc<Self> {
        let config = Self::watched(&settings);
        let me = Arc::new(Self {
            settings,
            clock: Arc::clone(clock),
            started: clock.now(),
            nodes: OnceLock::new(),
            held: Mutex::default(),
            listeners: Mutex::default(),
            addresses: Mutex::default(),
        });
        let holder: Arc<dyn Holder> = Arc::<Self>::clone(&me);
        let leases = (me.settings.lease_seconds > 0).then(|| Leases::start(&holder, client, clock, tasks));
        let informer = Informer::<Whole>::new(client.clone(), config).whole_at("/api/v1/nodes");
        let nodes = Arc::clone(&me);
        let informer = informer.on_change(move |change: &Change<Whole>| {
            let (node, gone) = (change.object(), matches!(change, Change::Deleted(_)));
            let name = &node.metadata.name;
            if gone || !nodes.settings.takes(&node.metadata.annotations) {
                nodes.lost(name);
            } else if let Some(leases) = &leases {
                leases.want(name);
            } else {
                nodes.won(name);
            }
        });
        drop(me.nodes.set(informer.start_in(tasks)));
        me
    }

    /// Returns the informer's selection of nodes.
    pub fn watched(settings: &Settings) -> InformerConfig {
        match &settings.manage {
            Manage::All => InformerConfig::default(),
            Manage::One(name) => {
                InformerConfig { fields: format!("metadata.name={name}"), ..InformerConfig::default() }
            }
            Manage::Selected { labels, .. } => InformerConfig { labels: labels.clone(), ..InformerConfig::default() },
        }
    }

    /// Returns the settings from flags and files.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The clock of all.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Calls `f` with the name of each node that is driven from now on.
    pub fn listen(&self, f: impl Fn(&str) + Send + Sync + 'static) {
        self.listeners.lock().push(Box::new(f));
    }

    fn find(&self, node: &str) -> Option<Arc<Whole>> {
        self.nodes.get()?.get(&ObjectKey::new("", node))
    }

    /// The ranges of a node's pods.
    fn ranges(&self, node: &str) -> Vec<IpNet> {
        let node = self.find(node).map(|n| n.object()).unwrap_or_default();
        let spec = &node["spec"];
        let listed = spec["podCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut ranges: Vec<IpNet> = listed.filter_map(|r| r.parse().ok()).collect();
        if ranges.is_empty() {
            ranges.extend(spec["podCIDR"].as_str().and_then(|r| r.parse::<IpNet>().ok()));
        }
        if ranges.is_empty() {
            ranges.push(self.settings.cidr);
        }
        ranges
    }

    /// Records the addresses of a pod, or releases them when the pod is gone.
    pub fn note_pod(&self, pod: &Value, gone: bool) {
        if pod["spec"]["hostNetwork"] == true {
            return;
        }
        let status = &pod["status"];
        let listed = status["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
        let mut ips: Vec<&str> = listed.collect();
        if ips.is_empty() {
            ips.extend(status["podIP"].as_str());
        }
        if ips.is_empty() {
            return;
        }
        let ranges = self.ranges(pod["spec"]["nodeName"].as_str().unwrap_or_default());
        let mut addresses = self.addresses.lock();
        for (ip, range) in ips.into_iter().zip(ranges) {
            let pool = addresses.entry(range).or_insert_with(|| Addresses::new(range, 1));
            if gone { pool.give_back(ip) } else { pool.note(ip) }
        }
    }
}

impl Holder for StagedNodes {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn has(&self, node: &str) -> bool {
        self.held.lock().contains(node)
    }

    fn uid(&self, node: &str) -> Option<String> {
        let node = self.find(node)?;
        self.settings.takes(&node.metadata.annotations).then(|| node.metadata.uid.clone())
    }

    fn won(&self, node: &str) {
        if self.held.lock().insert(node.to_owned()) {
            self.listeners.lock().iter().for_each(|report| report(node));
        }
    }

    fn lost(&self, node: &str) {
        self.held.lock().remove(node);
    }
}

impl Surroundings for StagedNodes {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
    fn started(&self) -> Timestamp {
        self.started
    }
    fn version(&self) -> String {
        kelson_meta::version::GIT_VERSION.to_owned()
    }
    fn node_ip(&self) -> String {
        self.settings.node_ip.clone()
    }
    fn node_name(&self) -> String {
        self.settings.node_name.clone()
    }
    fn node_port(&self) -> u16 {
        self.settings.node_port
    }
    fn node_ips(&self, node: &str) -> Vec<String> {
        let Some(node) = self.find(node) else { return Vec::new() };
        let node = node.object();
        let of = |kind: &str| -> Vec<String> {
            let all = node["status"]["addresses"].as_array().into_iter().flatten();
            all.filter(|a| a["type"] == kind).filter_map(|a| a["address"].as_str()).map(str::to_owned).collect()
        };
        let internal = of("InternalIP");
        if internal.is_empty() { of("ExternalIP") } else { internal }
    }
    fn pod_ips(&self, node: &str) -> Vec<String> {
        let ranges = self.ranges(node);
        let mut addresses = self.addresses.lock();
        let take = |range: IpNet| addresses.entry(range).or_insert_with(|| Addresses::new(range, 1)).take();
        ranges.into_iter().filter_map(take).map(|ip| ip.to_string()).collect()
    }
}
