//! The content of one nftables table, as claims on sets, counters, chains and elements, and the transaction that
//! changes the kernel's content to the desired one. Pure data, for every crate that maintains a table: those write the
//! rules, and [`crate::nft`] runs `nft`.
//!
//! Several owners may claim one item: pods with the same rules share a chain, two services may have the same external
//! address. An item is in the table while it has a claim. If claims differ, the first owner's value is used, and
//! another owner gets the item when the first releases it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::Hash;
use std::sync::Arc;

use kelson_tasks::Lane;

use crate::batch::{self, Batch, Subject, SubjectChange};
use crate::listing::{DYNAMIC, TableContent};
use crate::nft::{self, NftError};

/// The kernel takes one transaction at a time, and may be busy with another program's.
static NFTABLES: Lane = Lane::new("nftables", 1);

/// The maximum number of elements in one command, which keeps lines short.
const ELEMENTS_PER_COMMAND: usize = 256;

/// An item of a table, in the order of creation: chains refer to sets and counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A named counter.
    Counter(String),
    /// A named set; the value is its specification. A set is never changed in place: its name must contain what its
    /// specification depends on.
    Set(String),
    /// A chain; the value is its rules, one per line.
    Chain(String),
    /// An element of a named set or map; the value is a map's data, empty for a set.
    Element(Arc<str>, String),
}

impl Item {
    fn subject(&self) -> Subject<'_> {
        match self {
            Self::Element(set, key) => Subject::Element(set, key),
            Self::Chain(name) => Subject::Chain(name),
            Self::Counter(_) | Self::Set(_) => Subject::Other,
        }
    }
}

/// The items of one owner.
pub type Fragment = BTreeMap<Item, Arc<str>>;

/// The desired content of one nftables table, with claims of owners `O`.
///
/// Owners replace their claims with [`Table::replace`]; [`Table::take_diff`] returns the transaction since the last
/// one, and [`Table::take_full`] one that replaces the whole table after an error or a change by another program.
/// [`Table::expected`] is what a listing of the table must show. The type does no I/O, so tests can compare
/// transactions with a model of the kernel.
#[derive(Debug)]
pub struct Table<O> {
    /// Family and name: `ip kelson-…-proxy`.
    name: String,
    /// Containers and chains that never change, as lines of a table block.
    base: String,
    /// The specifications of the sets and maps in `base`, by name.
    base_sets: HashMap<String, String>,
    fragments: HashMap<O, Fragment>,
    claims: HashMap<Item, Vec<(O, Arc<str>)>>,
    /// The previous value of each item changed since the last transaction.
    touched: BTreeMap<Item, Option<Arc<str>>>,
}

impl<O: Clone + Ord + Hash> Table<O> {
    /// Creates an empty table; `name` is family and name, `base` the lines of its block that never change.
    pub fn new(name: String, base: String) -> Self {
        let base_sets = sets_of(&base);
        let (fragments, claims, touched) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        Self { name, base, base_sets, fragments, claims, touched }
    }

    /// Returns family and name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Replaces all claims of `owner` by `fragment`. Returns the items for which another owner's claim has precedence.
    pub fn replace(&mut self, owner: &O, fragment: Fragment) -> Vec<Item> {
        let old = self.fragments.remove(owner).unwrap_or_default();
        for item in old.keys().filter(|item| !fragment.contains_key(*item)) {
            self.release(owner, item);
        }
        let mut contested = Vec::new();
        for (item, value) in fragment.iter().filter(|(item, value)| old.get(*item) != Some(*value)) {
            if !self.claim(owner, item, value) {
                contested.push(item.clone());
            }
        }
        if !fragment.is_empty() {
            self.fragments.insert(owner.clone(), fragment);
        }
        contested
    }

    /// Adds or removes one item of an owner, without a value.
    pub fn set(&mut self, owner: &O, item: Item, claimed: bool) {
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

    /// Adds a claim; returns false if another owner's value is used.
    fn claim(&mut self, owner: &O, item: &Item, value: &Arc<str>) -> bool {
        self.touch(item);
        let claims = self.claims.entry(item.clone()).or_default();
        claims.retain(|(o, _)| o != owner);
        let at = claims.partition_point(|(o, _)| o < owner);
        claims.insert(at, (owner.clone(), Arc::clone(value)));
        claims[0].1 == *value
    }

    fn release(&mut self, owner: &O, item: &Item) {
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

    /// Returns the owners with claims.
    pub fn owners(&self) -> impl Iterator<Item = &O> {
        self.fragments.keys()
    }

    /// Returns the transaction since the last one; `None` when nothing changed.
    pub fn take_diff(&mut self) -> Option<Transaction> {
        let touched = std::mem::take(&mut self.touched);
        let (mut parts, mut changes) = (Parts::default(), Vec::new());
        for (item, before) in &touched {
            let claims = self.claims.get(item).and_then(|claims| claims.first());
            let (before, after) = (before.as_deref(), claims.map(|(_, value)| &**value));
            if before != after {
                parts.change(&self.name, item, before, after);
                changes.push(SubjectChange { subject: item.subject(), before, after });
            }
        }
        let script = parts.script(&self.name, "");
        let batch = batch::encode(&self.name, |set| self.specification(set), &changes);
        (!script.is_empty()).then_some(Transaction { script, narrows: parts.narrows, batch })
    }

    /// The specification of a set or map.
    fn specification(&self, set: &str) -> Option<&str> {
        let claimed = || self.claims.get(&Item::Set(set.to_owned()))?.first().map(|(_, value)| &**value);
        self.base_sets.get(set).map(String::as_str).or_else(claimed)
    }

    /// Returns a transaction that replaces the whole table, whatever its content is.
    pub fn take_full(&mut self) -> Transaction {
        self.touched.clear();
        let mut parts = Parts::default();
        let sorted: BTreeMap<&Item, &str> = self.items().collect();
        for (item, value) in sorted {
            parts.change(&self.name, item, None, Some(value));
        }
        let (name, body) = (&self.name, parts.script(&self.name, &self.base));
        let script = format!("add table {name}\ndelete table {name}\n{body}");
        Transaction { script, narrows: true, batch: None }
    }

    /// Returns every item with its value.
    fn items(&self) -> impl Iterator<Item = (&Item, &str)> {
        self.claims.iter().filter_map(|(item, c)| c.first().map(|(_, value)| (item, &**value)))
    }

    /// Returns the expected size of the kernel's table after the last transaction.
    pub fn expected(&self) -> TableContent {
        let mut content = content_of(&self.base);
        for (item, value) in self.items() {
            match item {
                Item::Chain(name) => _ = content.rules.insert(name.clone(), value.lines().count()),
                Item::Set(name) => add_set(&mut content, name, value),
                Item::Element(set, _) => {
                    if let Some(count) = content.elements.entry(set.to_string()).or_insert(Some(0)) {
                        *count += 1;
                    }
                }
                Item::Counter(_) => {}
            }
        }
        content
    }
}

/// Adds a set without elements, unless it has some.
fn add_set(content: &mut TableContent, name: &str, specification: &str) {
    let dynamic = specification.split([' ', ',', ';']).any(|word| word == DYNAMIC);
    let count = content.elements.entry(name.to_owned()).or_insert(Some(0));
    if dynamic {
        *count = None;
    }
}

/// The specifications of the sets and maps in the lines of a table block.
fn sets_of(block: &str) -> HashMap<String, String> {
    let set = |line: &str| {
        let (kind, rest) = line.trim().split_once(' ')?;
        let (name, specification) = rest.split_once(" { ").filter(|_| matches!(kind, "set" | "map"))?;
        Some((name.to_owned(), specification.strip_suffix(" }")?.to_owned()))
    };
    block.lines().filter_map(set).collect()
}

/// Parses the lines of a table block.
fn content_of(block: &str) -> TableContent {
    let mut content = TableContent::default();
    let mut chain: Option<(&str, usize)> = None;
    for line in block.lines().map(str::trim) {
        match (line.split(' ').collect::<Vec<_>>().as_slice(), &mut chain) {
            (["chain", name, "{"], None) => chain = Some((*name, 0)),
            (["set" | "map", name, "{", ..], None) => add_set(&mut content, name, line),
            (["}"], Some((name, rules))) => {
                content.rules.insert((*name).to_owned(), *rules);
                chain = None;
            }
            // The hook of a base chain.
            (["type", ..] | [""], _) | (_, None) => {}
            (_, Some((_, rules))) => *rules += 1,
        }
    }
    content
}

/// A script for `nft -f -`: one transaction.
#[derive(Debug, Default)]
pub struct Transaction {
    /// The commands, ordered so that nothing is used before it exists or deleted while it is used.
    pub script: String,
    /// Whether an element was removed, or one of a map added or changed: in a table that decides what may pass, a
    /// packet that passed before may be dropped now.
    pub narrows: bool,
    /// The same for the kernel, where it is a small change of a known kind.
    batch: Option<Batch>,
}

impl Transaction {
    /// Whether the kernel can take it without `nft`, whose cost grows with the number of chains in the table.
    pub fn is_direct(&self) -> bool {
        self.batch.is_some()
    }

    /// Applies it, without `nft` where that is possible.
    ///
    /// # Errors
    /// See [`NftError`]; nothing was changed then.
    pub async fn apply(&self) -> Result<(), NftError> {
        if let Some(batch) = self.batch.clone() {
            let sent = NFTABLES.run(move || batch::send(&batch)).await;
            match sent.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
                Ok(()) => return Ok(()),
                // nft says what is wrong, if anything is.
                Err(error) => tracing::debug!(%error, "the kernel rejected a batch of nftables; running nft"),
            }
        }
        nft::apply(&self.script).await
    }
}

/// The commands of a transaction by their kind, in the order that the kernel accepts.
#[derive(Default)]
struct Parts {
    narrows: bool,
    removed: BTreeMap<Arc<str>, Vec<String>>,
    flushed: String,
    block: String,
    added: BTreeMap<Arc<str>, Vec<String>>,
    deleted: String,
    deleted_last: String,
}

impl Parts {
    fn change(&mut self, table: &str, item: &Item, before: Option<&str>, after: Option<&str>) {
        match item {
            Item::Counter(name) if after.is_some() => _ = writeln!(self.block, "  counter {name} {{ }}"),
            Item::Counter(name) => _ = writeln!(self.deleted_last, "delete counter {table} {name}"),
            Item::Set(name) => match after {
                Some(spec) => _ = writeln!(self.block, "  set {name} {{ {spec} }}"),
                None => _ = writeln!(self.deleted_last, "delete set {table} {name}"),
            },
            Item::Chain(name) => {
                if before.is_some() {
                    // Rules refer to sets, so they are removed before the sets.
                    let _ = writeln!(self.flushed, "flush chain {table} {name}");
                }
                let _ = match after {
                    Some(rules) => writeln!(self.block, "  chain {name} {{\n{rules}\n  }}"),
                    None => writeln!(self.deleted, "delete chain {table} {name}"),
                };
            }
            Item::Element(set, key) => self.change_element(set, key, before, after),
        }
    }

    fn change_element(&mut self, set: &Arc<str>, key: &str, before: Option<&str>, after: Option<&str>) {
        self.narrows |= before.is_some() || after.is_some_and(|data| !data.is_empty());
        if before.is_some() {
            self.removed.entry(Arc::clone(set)).or_default().push(key.to_owned());
        }
        let element = match after {
            None => return,
            Some("") => key.to_owned(),
            Some(data) => format!("{key} : {data}"),
        };
        self.added.entry(Arc::clone(set)).or_default().push(element);
    }

    /// Returns the parts in order; empty when there is nothing to do.
    fn script(&self, table: &str, base: &str) -> String {
        let mut script = String::new();
        elements(&mut script, "delete", table, &self.removed);
        script.push_str(&self.flushed);
        if !base.is_empty() || !self.block.is_empty() {
            let _ = writeln!(script, "table {table} {{\n{base}{}}}", self.block);
        }
        elements(&mut script, "add", table, &self.added);
        script.push_str(&self.deleted);
        script.push_str(&self.deleted_last);
        script
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

    fn empty() -> Table<&'static str> {
        Table::new("ip t".into(), String::new())
    }

    #[test]
    fn an_item_stays_while_it_has_a_claim() {
        let mut table = empty();
        table.set(&"a", element("s", "10.0.0.1"), true);
        table.set(&"b", element("s", "10.0.0.1"), true);
        let first = table.take_diff().expect("added");
        assert_eq!((first.script.as_str(), first.narrows), ("add element ip t s { 10.0.0.1 }\n", false));
        table.set(&"a", element("s", "10.0.0.1"), false);
        assert!(table.take_diff().is_none(), "b claims it still");
        table.set(&"b", element("s", "10.0.0.1"), false);
        let last = table.take_diff().expect("removed");
        assert_eq!((last.script.as_str(), last.narrows), ("delete element ip t s { 10.0.0.1 }\n", true));
    }

    #[test]
    fn sets_come_before_the_chains_that_name_them_and_go_after() {
        let mut table = empty();
        let fragment = Fragment::from([
            (Item::Chain("c".into()), Arc::from("    ip saddr @s return")),
            (Item::Set("s".into()), Arc::from("type ipv4_addr;")),
            (element("egress", "10.0.0.1"), Arc::from("jump c")),
        ]);
        table.replace(&"a", fragment);
        let made = table.take_diff().expect("made");
        let expected = "table ip t {\n  set s { type ipv4_addr; }\n  chain c {\n    ip saddr @s return\n  }\n}\n\
            add element ip t egress { 10.0.0.1 : jump c }\n";
        assert_eq!((made.script.as_str(), made.narrows), (expected, true));
        table.replace(&"a", Fragment::new());
        let gone = table.take_diff().expect("gone").script;
        let expected =
            "delete element ip t egress { 10.0.0.1 }\nflush chain ip t c\ndelete chain ip t c\ndelete set ip t s\n";
        assert_eq!(gone, expected);
    }

    #[test]
    fn the_first_owner_has_an_address_that_two_claim() {
        let mut table = empty();
        let claim = |chain: &str| Fragment::from([(element("m", "10.0.0.1"), Arc::from(chain))]);
        assert_eq!(table.replace(&"b", claim("jump b")), []);
        assert!(table.take_diff().is_some());
        assert_eq!(table.replace(&"a", claim("jump a")), []);
        let script = table.take_diff().expect("changed").script;
        let expected = "delete element ip t m { 10.0.0.1 }\nadd element ip t m { 10.0.0.1 : jump a }\n";
        assert_eq!(script, expected);
        assert_eq!(table.replace(&"c", claim("jump c")), [element("m", "10.0.0.1")], "the last owner does not get it");
        assert!(table.take_diff().is_none());
    }

    #[test]
    fn a_table_knows_what_the_kernel_should_hold() {
        let base = "  map m { type ipv4_addr : verdict; }\n  chain base {\n    type filter hook forward priority 0; \
            policy accept;\n    ip saddr vmap @m\n  }\n";
        let mut table = Table::new("ip t".into(), base.into());
        let fragment = Fragment::from([
            (Item::Chain("c".into()), Arc::from("return\ndrop")),
            (Item::Set("clients".into()), Arc::from("type ipv4_addr; flags dynamic,timeout;")),
            (Item::Set("s".into()), Arc::from("type ipv4_addr;")),
            (element("m", "10.0.0.1"), Arc::from("jump c")),
            (Item::Counter("n".into()), Arc::from("")),
        ]);
        table.replace(&"a", fragment);
        let rules = BTreeMap::from([("base".to_owned(), 1), ("c".to_owned(), 2)]);
        let elements = [("m", Some(1)), ("clients", None), ("s", Some(0))];
        let elements = elements.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        assert_eq!(table.expected(), TableContent { rules, elements });
    }
}
