//! Reads back what is in a table of the kernel, as far as the check needs it.

use std::collections::BTreeMap;

use kelson_net::nft::{self, NftError};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ruleset::Counts;

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    chain: Option<Chain>,
    rule: Option<Rule>,
    set: Option<Set>,
    map: Option<Set>,
}

#[derive(Deserialize)]
struct Chain {
    name: String,
    hook: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Rule {
    chain: String,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    #[serde(default)]
    elem: Vec<IgnoredAny>,
}

/// Counts what is in a table, in the form of [`crate::ruleset::RuleSet::expected`]: without base chains and without the
/// content of affinity sets. `fixed` are the chains that do not belong to services.
///
/// # Errors
/// See [`NftError`]; [`NftError::Refused`] when there is no such table.
pub async fn count(table: &str, fixed: &[&str]) -> Result<Counts, NftError> {
    Ok(counts(&nft::list_table(table).await?, fixed)?)
}

fn counts(listing: &[u8], fixed: &[&str]) -> Result<Counts, serde_json::Error> {
    let listing: Listing = serde_json::from_slice(listing)?;
    let mut counts = Counts::default();
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for entry in listing.nftables {
        if let Some(chain) = entry.chain.filter(|c| c.hook.is_none() && !fixed.contains(&c.name.as_str())) {
            counts.rules.insert(chain.name, 0);
        }
        if let Some(rule) = entry.rule {
            *rules.entry(rule.chain).or_default() += 1;
        }
        if let Some(set) = entry.set.or(entry.map) {
            if set.name.starts_with("affinity-") {
                counts.sets += 1;
            } else if !set.elem.is_empty() {
                counts.elements.insert(set.name, set.elem.len());
            }
        }
    }
    for (chain, count) in &mut counts.rules {
        *count = rules.get(chain).copied().unwrap_or_default();
    }
    Ok(counts)
}
