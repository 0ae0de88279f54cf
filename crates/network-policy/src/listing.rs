//! Reads a table of the kernel back: to find changes that another program made, and to count decisions.

use std::collections::{BTreeMap, HashMap};

use kelson_net::nft::{self, NftError};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::table::{Item, Table};

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
    #[serde(default)]
    elem: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct ListedCounter {
    name: String,
    packets: u64,
}

/// What is in a table: rules by chain, elements by set, packets by counter.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    rules: BTreeMap<String, usize>,
    elements: BTreeMap<String, usize>,
    /// Packets by the name of the counter.
    pub counters: HashMap<String, u64>,
}

/// Reads a table.
///
/// # Errors
/// See [`NftError`]; [`NftError::Refused`] when there is no such table.
pub(crate) async fn read(table: &str) -> Result<Content, NftError> {
    Ok(content(&nft::list_table(table).await?)?)
}

fn content(listing: &[u8]) -> Result<Content, serde_json::Error> {
    let listing: Listing = serde_json::from_slice(listing)?;
    let mut content = Content::default();
    for entry in listing.nftables {
        if let Some(chain) = entry.chain {
            content.rules.entry(chain.name).or_default();
        }
        if let Some(rule) = entry.rule {
            *content.rules.entry(rule.chain).or_default() += 1;
        }
        if let Some(set) = entry.set.or(entry.map) {
            content.elements.insert(set.name, set.elem.len());
        }
        if let Some(counter) = entry.counter {
            content.counters.insert(counter.name, counter.packets);
        }
    }
    Ok(content)
}

impl Content {
    /// Whether the kernel has what `table` says, by the numbers of rules and elements. `base_rules` is the number of
    /// rules in the base chain.
    pub fn is_of(&self, table: &Table, base: (&str, usize)) -> bool {
        let mut rules = BTreeMap::from([(base.0.to_owned(), base.1)]);
        let mut elements: BTreeMap<String, usize> = BTreeMap::new();
        for (item, value) in table.items() {
            match item {
                Item::Chain(name) => _ = rules.insert(name.clone(), value.lines().count()),
                Item::Set(name) => _ = elements.entry(name.clone()).or_default(),
                Item::Element(set, _) => *elements.entry(set.to_string()).or_default() += 1,
                Item::Counter(_) => {}
            }
        }
        let filled = |all: &BTreeMap<String, usize>| -> BTreeMap<String, usize> {
            all.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.clone(), *count)).collect()
        };
        self.rules == rules && filled(&self.elements) == filled(&elements)
    }
}
