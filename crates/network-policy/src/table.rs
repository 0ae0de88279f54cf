//! The content of one nftables table, as claims on sets, elements, counters and chains, and the transaction that brings
//! the kernel from what it has to what it should have. Pure data; what chains say is [`crate::render`]'s.
//!
//! Several owners may claim one item: pods with the same rules share a chain, policies with the same selector share a
//! set. An item is in the table while it has a claim. Where claims differ (two pods have one address for a moment), the
//! first owner's counts.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use kelson_meta::ObjectKey;

/// Elements in one command.
const ELEMENTS_PER_COMMAND: usize = 256;

/// Who claims an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A policy: its counters, sets and blocks.
    Policy(ObjectKey),
    /// A pod of the cluster: its places in sets.
    Pod(ObjectKey),
    /// A pod of this node: its chains.
    Local(ObjectKey),
}

/// One thing in the table, in the order of creation: chains name sets and counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A named counter.
    Counter(String),
    /// A named set; the value is its specification.
    Set(String),
    /// A chain; the value is its rules, one a line. Names carry a digest of the rules, so a chain never changes.
    Chain(String),
    /// An element of a named set or map; the value is a map's data, empty in a set.
    Element(Arc<str>, String),
}

/// The items of one owner.
pub type Fragment = BTreeMap<Item, Arc<str>>;

/// The table; see the module.
#[derive(Debug)]
pub struct Table {
    /// Family and name: `ip kelson-…-policy`.
    name: String,
    /// Containers and chains that never change, the lines of a table block.
    base: String,
    fragments: HashMap<Owner, Fragment>,
    claims: HashMap<Item, Vec<(Owner, Arc<str>)>>,
    /// The value before, of each item touched since the last transaction was taken.
    touched: BTreeMap<Item, Option<Arc<str>>>,
}

impl Table {
    /// An empty table.
    pub fn new(name: String, base: String) -> Self {
        Self { name, base, fragments: HashMap::new(), claims: HashMap::new(), touched: BTreeMap::new() }
    }

    /// Family and name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes `fragment` all that `owner` claims.
    pub fn replace(&mut self, owner: &Owner, fragment: Fragment) {
        let old = self.fragments.remove(owner).unwrap_or_default();
        for item in old.keys().filter(|item| !fragment.contains_key(*item)) {
            self.release(owner, item);
        }
        for (item, value) in fragment.iter().filter(|(item, value)| old.get(*item) != Some(*value)) {
            self.claim(owner, item, value);
        }
        if !fragment.is_empty() {
            self.fragments.insert(owner.clone(), fragment);
        }
    }

    /// Adds or removes one item of an owner.
    pub fn set(&mut self, owner: &Owner, item: Item, claimed: bool) {
        let fragment = self.fragments.entry(owner.clone()).or_default();
        if claimed {
            let value: Arc<str> = Arc::from("");
            if fragment.insert(item.clone(), Arc::clone(&value)).is_none() {
                self.claim(owner, &item, &value);
            }
        } else if fragment.remove(&item).is_some() {
            self.release(owner, &item);
        }
    }

    fn claim(&mut self, owner: &Owner, item: &Item, value: &Arc<str>) {
        self.touch(item);
        let claims = self.claims.entry(item.clone()).or_default();
        claims.retain(|(o, _)| o != owner);
        let at = claims.partition_point(|(o, _)| o < owner);
        claims.insert(at, (owner.clone(), Arc::clone(value)));
    }

    fn release(&mut self, owner: &Owner, item: &Item) {
        self.touch(item);
        if let Some(claims) = self.claims.get_mut(item) {
            claims.retain(|(o, _)| o != owner);
            if claims.is_empty() {
                self.claims.remove(item);
            }
        }
    }

    fn effective(&self, item: &Item) -> Option<Arc<str>> {
        self.claims.get(item).and_then(|c| c.first()).map(|(_, value)| Arc::clone(value))
    }

    fn touch(&mut self, item: &Item) {
        if !self.touched.contains_key(item) {
            let before = self.effective(item);
            self.touched.insert(item.clone(), before);
        }
    }

    /// The transaction from what the last one made to what is claimed; `None` when nothing changed.
    pub fn take_diff(&mut self) -> Option<Transaction> {
        let touched = std::mem::take(&mut self.touched);
        let mut t = Transaction::default();
        for (item, before) in &touched {
            let after = self.effective(item);
            if *before != after {
                t.change(&self.name, item, before.as_deref(), after.as_deref());
            }
        }
        t.finish(&self.name, "").then_some(t)
    }

    /// The transaction that replaces the whole table, whatever is there.
    pub fn take_full(&mut self) -> Transaction {
        self.touched.clear();
        let mut t = Transaction { script: format!("add table {0}\ndelete table {0}\n", self.name), ..<_>::default() };
        let sorted: BTreeMap<&Item, &str> =
            self.claims.iter().filter_map(|(item, c)| c.first().map(|(_, value)| (item, &**value))).collect();
        for (item, value) in sorted {
            t.change(&self.name, item, None, Some(value));
        }
        t.finish(&self.name, &self.base);
        t.narrows = true;
        t
    }

    /// Every item with its value, for the check of the kernel's table and for tests.
    pub fn items(&self) -> impl Iterator<Item = (&Item, &str)> {
        self.claims.iter().filter_map(|(item, c)| c.first().map(|(_, value)| (item, &**value)))
    }
}

/// A script for `nft -f -`: one transaction.
#[derive(Debug, Default)]
pub struct Transaction {
    /// The commands, in an order in which nothing is named before it exists or deleted while it is named.
    pub script: String,
    /// Whether a connection that was allowed before may be forbidden now.
    pub narrows: bool,
    removed: BTreeMap<Arc<str>, Vec<String>>,
    block: String,
    added: BTreeMap<Arc<str>, Vec<String>>,
    flushed: String,
    deleted: String,
    deleted_last: String,
}

impl Transaction {
    fn change(&mut self, table: &str, item: &Item, before: Option<&str>, after: Option<&str>) {
        match item {
            Item::Counter(name) if after.is_some() => _ = writeln!(self.block, "  counter {name} {{ }}"),
            Item::Counter(name) => _ = writeln!(self.deleted_last, "delete counter {table} {name}"),
            Item::Set(name) => match after {
                Some(spec) => _ = writeln!(self.block, "  set {name} {{ {spec} }}"),
                None => _ = writeln!(self.deleted_last, "delete set {table} {name}"),
            },
            Item::Chain(name) => match after {
                Some(rules) => _ = writeln!(self.block, "  chain {name} {{\n{rules}\n  }}"),
                None => {
                    // The rules name sets: they go before the sets do.
                    let _ = writeln!(self.flushed, "flush chain {table} {name}");
                    let _ = writeln!(self.deleted, "delete chain {table} {name}");
                }
            },
            Item::Element(set, key) => {
                self.narrows |= before.is_some() || after.is_some_and(|data| !data.is_empty());
                if before.is_some() {
                    self.removed.entry(Arc::clone(set)).or_default().push(key.clone());
                }
                match after {
                    None => {}
                    Some("") => self.added.entry(Arc::clone(set)).or_default().push(key.clone()),
                    Some(data) => {
                        self.added.entry(Arc::clone(set)).or_default().push(format!("{key} : {data}"));
                    }
                }
            }
        }
    }

    /// Puts the parts in order; false when there is nothing to do.
    fn finish(&mut self, table: &str, base: &str) -> bool {
        elements(&mut self.script, "delete", table, &self.removed);
        if !base.is_empty() || !self.block.is_empty() {
            let _ = writeln!(self.script, "table {table} {{\n{base}{}}}", self.block);
        }
        elements(&mut self.script, "add", table, &self.added);
        for part in [&self.flushed, &self.deleted, &self.deleted_last] {
            self.script.push_str(part);
        }
        !self.script.is_empty()
    }
}

fn elements(script: &mut String, verb: &str, table: &str, all: &BTreeMap<Arc<str>, Vec<String>>) {
    for (set, list) in all {
        for some in list.chunks(ELEMENTS_PER_COMMAND) {
            let _ = writeln!(script, "{verb} element {table} {set} {{ {} }}", some.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(set: &str, key: &str) -> Item {
        Item::Element(Arc::from(set), key.to_owned())
    }

    fn pod(name: &str) -> Owner {
        Owner::Pod(ObjectKey::new("n", name))
    }

    #[test]
    fn an_item_stays_while_it_has_a_claim() {
        let mut table = Table::new("ip t".into(), String::new());
        table.set(&pod("a"), element("s", "10.0.0.1"), true);
        table.set(&pod("b"), element("s", "10.0.0.1"), true);
        let first = table.take_diff().expect("added");
        assert_eq!((first.script.as_str(), first.narrows), ("add element ip t s { 10.0.0.1 }\n", false));
        table.set(&pod("a"), element("s", "10.0.0.1"), false);
        assert!(table.take_diff().is_none(), "b claims it still");
        table.set(&pod("b"), element("s", "10.0.0.1"), false);
        let last = table.take_diff().expect("removed");
        assert_eq!((last.script.as_str(), last.narrows), ("delete element ip t s { 10.0.0.1 }\n", true));
    }

    #[test]
    fn sets_come_before_the_chains_that_name_them_and_go_after() {
        let mut table = Table::new("ip t".into(), String::new());
        let fragment = Fragment::from([
            (Item::Chain("c".into()), Arc::from("    ip saddr @s return")),
            (Item::Set("s".into()), Arc::from("type ipv4_addr;")),
            (element("egress", "10.0.0.1"), Arc::from("jump c")),
        ]);
        table.replace(&pod("a"), fragment);
        let made = table.take_diff().expect("made");
        let expected = "table ip t {\n  set s { type ipv4_addr; }\n  chain c {\n    ip saddr @s return\n  }\n}\n\
            add element ip t egress { 10.0.0.1 : jump c }\n";
        assert_eq!((made.script.as_str(), made.narrows), (expected, true));
        table.replace(&pod("a"), Fragment::new());
        let gone = table.take_diff().expect("gone").script;
        let expected =
            "delete element ip t egress { 10.0.0.1 }\nflush chain ip t c\ndelete chain ip t c\ndelete set ip t s\n";
        assert_eq!(gone, expected);
    }

    #[test]
    fn the_first_owner_has_an_address_that_two_claim() {
        let mut table = Table::new("ip t".into(), String::new());
        let claim = |chain: &str| Fragment::from([(element("m", "10.0.0.1"), Arc::from(chain))]);
        table.replace(&pod("b"), claim("jump b"));
        assert!(table.take_diff().is_some());
        table.replace(&pod("a"), claim("jump a"));
        let script = table.take_diff().expect("changed").script;
        let expected = "delete element ip t m { 10.0.0.1 }\nadd element ip t m { 10.0.0.1 : jump a }\n";
        assert_eq!(script, expected);
    }
}
