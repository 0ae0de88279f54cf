//! The desired content of one table, as claims of services on chains, sets and elements, and the transaction that brings
//! the kernel from what it has to what is desired. Pure data: what the rules say is [`crate::render`]'s, running `nft`
//! is [`crate::nft`]'s.
//!
//! Two services may claim one element (the same external address and port): the first by namespace and name has it, and
//! the other gets it when the first goes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use kelson_meta::ObjectKey;

/// Elements in one command: keeps lines short enough to read.
const ELEMENTS_PER_COMMAND: usize = 256;

/// The named sets and maps of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Container {
    /// Every cluster address.
    ClusterIps,
    /// Endpoints of this node with themselves.
    Hairpin,
    /// Address, protocol and port to the chain that answers.
    ServiceIps,
    /// Protocol and node port to the chain that answers.
    ServiceNodePorts,
    /// What to refuse, by address.
    NoEndpointServices,
    /// What to refuse, by node port.
    NoEndpointNodePorts,
    /// Who must pass a list of source ranges.
    FirewallIps,
}

impl Container {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ClusterIps,
        Self::Hairpin,
        Self::ServiceIps,
        Self::ServiceNodePorts,
        Self::NoEndpointServices,
        Self::NoEndpointNodePorts,
        Self::FirewallIps,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClusterIps => "cluster-ips",
            Self::Hairpin => "hairpin",
            Self::ServiceIps => "service-ips",
            Self::ServiceNodePorts => "service-nodeports",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::FirewallIps => "firewall-ips",
        }
    }
}

/// One thing in the table. The order is that of creation: sets before the chains that use them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A named set; the value is its specification.
    Set(String),
    /// A chain; the value is its rules, one a line.
    Chain(String),
    /// An element; the value is a map's data, empty in a set.
    Element(Container, String),
}

/// What one service wants.
pub type Fragment = BTreeMap<Item, Arc<str>>;

/// The table. See the module's words.
#[derive(Debug)]
pub struct RuleSet {
    /// Family and name of the table: `ip kelson-…-proxy`.
    table: String,
    /// What does not depend on services: containers and base chains, in a table block.
    base: String,
    fragments: HashMap<ObjectKey, Fragment>,
    claims: HashMap<Item, Vec<(ObjectKey, Arc<str>)>>,
    /// What was there before, of everything touched since the last transaction was made.
    touched: BTreeMap<Item, Option<Arc<str>>>,
}

impl RuleSet {
    /// An empty one; `table` is family and name, `base` the lines inside its block that never change.
    pub fn new(table: String, base: String) -> Self {
        Self { table, base, fragments: HashMap::new(), claims: HashMap::new(), touched: BTreeMap::new() }
    }

    /// Family and name.
    pub fn table(&self) -> &str {
        &self.table
    }

    fn effective(&self, item: &Item) -> Option<Arc<str>> {
        self.claims.get(item).and_then(|c| c.first()).map(|(_, value)| Arc::clone(value))
    }

    /// Makes `fragment` all that `owner` wants. Returns elements that another service has.
    pub fn replace(&mut self, owner: &ObjectKey, fragment: Fragment) -> Vec<Item> {
        let old = self.fragments.remove(owner).unwrap_or_default();
        for item in old.keys().filter(|i| !fragment.contains_key(*i)) {
            self.touch(item);
            if let Some(claims) = self.claims.get_mut(item) {
                claims.retain(|(o, _)| o != owner);
                if claims.is_empty() {
                    self.claims.remove(item);
                }
            }
        }
        let mut refused = Vec::new();
        for (item, value) in fragment.iter().filter(|(i, v)| old.get(*i) != Some(*v)) {
            self.touch(item);
            let claims = self.claims.entry(item.clone()).or_default();
            claims.retain(|(o, _)| o != owner);
            let at = claims.partition_point(|(o, _)| o < owner);
            claims.insert(at, (owner.clone(), Arc::clone(value)));
            if claims[0].1 != *value {
                refused.push(item.clone());
            }
        }
        if !fragment.is_empty() {
            self.fragments.insert(owner.clone(), fragment);
        }
        refused
    }

    fn touch(&mut self, item: &Item) {
        if !self.touched.contains_key(item) {
            let before = self.effective(item);
            self.touched.insert(item.clone(), before);
        }
    }

    /// The services that want something.
    pub fn owners(&self) -> impl Iterator<Item = &ObjectKey> {
        self.fragments.keys()
    }

    /// The transaction from what the last one made to what is desired; `None` when that is the same.
    pub fn take_diff(&mut self) -> Option<String> {
        let touched = std::mem::take(&mut self.touched);
        let mut t = Transaction::default();
        for (item, before) in &touched {
            let after = self.effective(item);
            if *before != after {
                t.change(&self.table, item, before.as_deref(), after.as_deref());
            }
        }
        t.text(&self.table, "")
    }

    /// The transaction that makes the whole table anew, whatever is there.
    pub fn take_full(&mut self) -> String {
        self.touched.clear();
        let mut t = Transaction::default();
        let sorted: BTreeMap<&Item, &str> =
            self.claims.iter().filter_map(|(i, c)| c.first().map(|(_, v)| (i, &**v))).collect();
        for (item, value) in sorted {
            t.change(&self.table, item, None, Some(value));
        }
        let table = &self.table;
        let body = t.text(table, &self.base).unwrap_or_default();
        format!("add table {table}\ndelete table {table}\n{body}")
    }

    /// What a listing of the table must count: rules by service chain, elements by container.
    pub fn expected(&self) -> Counts {
        let mut counts = Counts::default();
        for (item, claims) in &self.claims {
            match item {
                Item::Chain(name) => {
                    let rules = claims.first().map_or(0, |(_, rules)| rules.lines().count());
                    counts.rules.insert(name.clone(), rules);
                }
                Item::Element(container, _) => *counts.elements.entry(container.name().to_owned()).or_default() += 1,
                Item::Set(_) => counts.sets += 1,
            }
        }
        counts
    }
}

/// How much of what a table holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rules by chain; base chains are not counted.
    pub rules: BTreeMap<String, usize>,
    /// Elements by named set or map; empty ones are absent.
    pub elements: BTreeMap<String, usize>,
    /// Sets that remember which client uses which endpoint.
    pub sets: usize,
}

/// The parts of a script in the order in which the kernel takes them: nothing is named before it exists, nothing goes
/// before the last that names it.
#[derive(Default)]
struct Transaction {
    removed: BTreeMap<Container, Vec<String>>,
    flushed: String,
    block: String,
    added: BTreeMap<Container, Vec<String>>,
    deleted: String,
    deleted_sets: String,
}

impl Transaction {
    fn change(&mut self, table: &str, item: &Item, before: Option<&str>, after: Option<&str>) {
        match item {
            Item::Set(name) => match after {
                Some(spec) => {
                    // A set cannot be changed in place; its name carries what its specification depends on.
                    let _ = writeln!(self.block, "  set {name} {{ {spec} }}");
                }
                None => {
                    let _ = writeln!(self.deleted_sets, "delete set {table} {name}");
                }
            },
            Item::Chain(name) => {
                if before.is_some() {
                    let _ = writeln!(self.flushed, "flush chain {table} {name}");
                }
                if let Some(rules) = after {
                    let _ = writeln!(self.block, "  chain {name} {{\n{rules}\n  }}");
                } else {
                    let _ = writeln!(self.deleted, "delete chain {table} {name}");
                }
            }
            Item::Element(container, key) => {
                if before.is_some() {
                    self.removed.entry(*container).or_default().push(key.clone());
                }
                match after {
                    None => {}
                    Some("") => self.added.entry(*container).or_default().push(key.clone()),
                    Some(data) => self.added.entry(*container).or_default().push(format!("{key} : {data}")),
                }
            }
        }
    }

    fn text(&self, table: &str, base: &str) -> Option<String> {
        let mut script = String::new();
        elements(&mut script, "delete", table, &self.removed);
        script.push_str(&self.flushed);
        if !base.is_empty() || !self.block.is_empty() {
            let _ = writeln!(script, "table {table} {{\n{base}{}}}", self.block);
        }
        elements(&mut script, "add", table, &self.added);
        script.push_str(&self.deleted);
        script.push_str(&self.deleted_sets);
        (!script.is_empty()).then_some(script)
    }
}

fn elements(script: &mut String, verb: &str, table: &str, all: &BTreeMap<Container, Vec<String>>) {
    for (container, list) in all {
        for some in list.chunks(ELEMENTS_PER_COMMAND) {
            let _ = writeln!(script, "{verb} element {table} {} {{ {} }}", container.name(), some.join(", "));
        }
    }
}
