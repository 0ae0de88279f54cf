//! Reads a table from the kernel: to find changes by other programs, and to read its counters.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::nft::{self, NftError};

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    chain: Option<ListedChain>,
    rule: Option<ListedRule>,
    set: Option<ListedSet>,
    map: Option<ListedSet>,
    counter: Option<ListedCounter>,
}

#[derive(Deserialize)]
struct ListedChain {
    name: String,
}

#[derive(Deserialize)]
struct ListedRule {
    chain: String,
}

#[derive(Deserialize)]
struct ListedSet {
    name: String,
    /// A string, or a list of strings.
    #[serde(default)]
    flags: Value,
    #[serde(default)]
    elem: Vec<IgnoredAny>,
}

impl ListedSet {
    fn is_dynamic(&self) -> bool {
        let is = |flag: &Value| flag.as_str() == Some(DYNAMIC);
        is(&self.flags) || self.flags.as_array().into_iter().flatten().any(is)
    }
}

#[derive(Deserialize)]
struct ListedCounter {
    name: String,
    packets: u64,
}

/// The flag of a set that packets change.
pub(crate) const DYNAMIC: &str = "dynamic";

/// The size of a table's content: enough to detect that another program removed or added something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableContent {
    /// The number of rules by chain.
    pub rules: BTreeMap<String, usize>,
    /// The number of elements by set or map; `None` for a set that packets change.
    pub elements: BTreeMap<String, Option<usize>>,
}

/// Reads the size of a table's content (`ip NAME`).
async fn content(table: &str) -> Result<TableContent, NftError> {
    Ok(parse_content(&nft::list_table(table).await?)?)
}

/// The state of a table, compared with what its owner put into the kernel.
#[derive(Debug)]
pub enum TableState {
    /// The kernel has what the owner put there.
    Intact,
    /// Another program changed or removed the table.
    Changed,
    /// The table could not be read: it may be intact or not, and no other program needs to be the reason.
    Unreadable(NftError),
}

/// Reads a table (`ip NAME`) and compares it with the content that its owner put there.
pub async fn compare(table: &str, expected: &TableContent) -> TableState {
    TableState::of(content(table).await, expected)
}

impl TableState {
    pub(crate) fn of<T: PartialEq>(found: Result<T, NftError>, expected: &T) -> Self {
        match found {
            Ok(found) if found == *expected => Self::Intact,
            Ok(_) => Self::Changed,
            Err(error) if error.is_missing_table() => Self::Changed,
            Err(error) => Self::Unreadable(error),
        }
    }
}

/// Reads the packets of a table's named counters. Rules and elements are not read, so the cost does not grow with them.
///
/// # Errors
/// See [`NftError`]; [`NftError::Refused`] when the table does not exist.
pub async fn counters(table: &str) -> Result<HashMap<String, u64>, NftError> {
    let listing: Listing = serde_json::from_slice(&nft::list_counters(table).await?)?;
    let counters = listing.nftables.into_iter().filter_map(|entry| entry.counter);
    Ok(counters.map(|counter| (counter.name, counter.packets)).collect())
}

fn parse_content(listing: &[u8]) -> Result<TableContent, serde_json::Error> {
    let listing: Listing = serde_json::from_slice(listing)?;
    let mut content = TableContent::default();
    for entry in listing.nftables {
        if let Some(chain) = entry.chain {
            content.rules.entry(chain.name).or_default();
        }
        if let Some(rule) = entry.rule {
            *content.rules.entry(rule.chain).or_default() += 1;
        }
        if let Some(set) = entry.set.or(entry.map) {
            let count = (!set.is_dynamic()).then_some(set.elem.len());
            content.elements.insert(set.name, count);
        }
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_listing_is_counted_but_for_what_packets_change() {
        let set =
            |name: &str, flags: Value, elem: Value| json!({"name": name, "table": "t", "flags": flags, "elem": elem});
        let listing = json!({"nftables": [{"metainfo": {"version": "1"}}, {"table": {"name": "t"}},
            {"chain": {"name": "a", "table": "t"}}, {"chain": {"name": "b", "table": "t", "hook": "forward"}},
            {"rule": {"chain": "b", "expr": []}}, {"rule": {"chain": "b", "expr": []}},
            {"set": set("clients", json!(["timeout", "dynamic"]), json!(["192.0.2.1"]))},
            {"set": set("also", json!("dynamic"), json!([]))},
            {"set": set("blocks", json!(["interval"]), json!([{"range": [1, 2]}]))},
            {"map": {"name": "m", "elem": [["192.0.2.1", {"jump": "a"}]]}}, {"set": {"name": "empty"}}]});
        let found = parse_content(listing.to_string().as_bytes()).unwrap();
        let named = |all: &[(&str, Option<usize>)]| all.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect();
        let elements = [("clients", None), ("also", None), ("blocks", Some(1)), ("m", Some(1)), ("empty", Some(0))];
        let rules = BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 2)]);
        assert_eq!(found, TableContent { rules, elements: named(&elements) });
    }

    #[test]
    fn only_another_content_or_no_table_is_a_change_by_another_program() {
        let content =
            |rules: usize| TableContent { rules: [("c".to_owned(), rules)].into(), elements: BTreeMap::new() };
        let refused = |output: &str| Err(NftError::Refused(output.to_owned()));
        let state = |found| match TableState::of(found, &content(2)) {
            TableState::Intact => "intact",
            TableState::Changed => "changed",
            TableState::Unreadable(_) => "unreadable",
        };
        assert_eq!(state(Ok(content(2))), "intact");
        assert_eq!(state(Ok(content(1))), "changed");
        assert_eq!(state(refused("Error: No such file or directory\nlist table ip t\n              ^")), "changed");
        assert_eq!(state(refused("netlink: Error: cache initialization failed: Too many open files")), "unreadable");
        assert_eq!(state(Err(NftError::Timeout)), "unreadable");
        assert_eq!(state(Err(std::io::Error::from(std::io::ErrorKind::WouldBlock).into())), "unreadable");
    }
}
