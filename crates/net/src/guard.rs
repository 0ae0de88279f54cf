//! Notices when another program changes tables of nftables that this one keeps: `nft flush ruleset`, which is the first line of
//! many `/etc/nftables.conf`, takes all of them away. Putting them back is the owner's; see [`TableGuard::damaged`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::events::{RulesetChange, RulesetEvents};
use crate::nft::{self, NftError};

/// How long further changes are waited for once one was seen: a script of `nft` tells of each of its lines.
const GATHER: Duration = Duration::from_millis(250);
/// How often the tables are looked at where the kernel tells of no changes.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A table to be watched over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedTable {
    /// Family and name, such as `ip kelson-1`.
    pub table: String,
    /// Sets and maps of it whose elements change as pods come and go, by their names.
    pub changing: Vec<String>,
}

impl GuardedTable {
    /// The name without the family.
    fn name(&self) -> &str {
        self.table.split(' ').next_back().unwrap_or_default()
    }
}

/// Watches over tables. What counts as damage is any difference from what [`TableGuard::remember`] saw, but for the elements of
/// sets that change.
#[derive(Debug)]
pub struct TableGuard {
    tables: Vec<GuardedTable>,
    /// Other tables whose changes are of interest, by name.
    others: Vec<String>,
    known: BTreeMap<String, Value>,
    events: Option<RulesetEvents>,
    /// When the guarded tables are looked at next; events bring it forward.
    look_at: Option<Instant>,
    others_changed: bool,
}

/// What was noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesetDamage {
    /// Guarded tables that are missing or different, with their families.
    pub tables: Vec<String>,
    /// Whether one of the other tables changed in any way.
    pub others: bool,
}

impl TableGuard {
    /// Guards `tables`, and listens for changes of `others` (names without families). Changes are heard from now on; where the
    /// kernel tells of none, the tables are looked at now and then.
    pub fn new(tables: Vec<GuardedTable>, others: Vec<String>) -> Self {
        let events = RulesetEvents::subscribe()
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot watch nftables; checking the tables every {LOOK_EVERY:?}");
            })
            .ok();
        Self { tables, others, known: BTreeMap::new(), events, look_at: None, others_changed: false }
    }

    /// Takes the tables as they are now for what they should be. To be called once they are made.
    ///
    /// # Errors
    /// A table cannot be listed.
    pub async fn remember(&mut self) -> Result<(), NftError> {
        for guarded in &self.tables {
            let listed = nft::list_table(&guarded.table).await?;
            self.known.insert(guarded.table.clone(), normal(&listed, &guarded.changing)?);
        }
        self.look_at = None;
        Ok(())
    }

    /// Waits until a guarded table is not what it was, or another table of interest changed. Dropping the future loses nothing.
    pub async fn damaged(&mut self) -> RulesetDamage {
        loop {
            let damage = self.look().await;
            if damage != RulesetDamage::default() {
                return damage;
            }
            let next = self.look_at.unwrap_or_else(|| Instant::now() + LOOK_EVERY);
            let Some(events) = &mut self.events else {
                self.look_at = Some(next);
                tokio::time::sleep_until(next).await;
                continue;
            };
            let told = match self.look_at {
                Some(at) => tokio::time::timeout_at(at, events.next()).await.ok(),
                None => Some(events.next().await),
            };
            match told {
                None => {}
                Some(Ok(changes)) => changes.iter().for_each(|c| self.heard(c)),
                Some(Err(error)) => {
                    tracing::warn!(%error, "watching nftables failed; checking the tables every {LOOK_EVERY:?}");
                    self.events = None;
                    self.look_at = Some(Instant::now());
                }
            }
        }
    }

    fn heard(&mut self, change: &RulesetChange) {
        let is_guarded = |table: &String| self.tables.iter().any(|g| g.name() == table);
        let (guarded, other) = match change {
            // What others add to a guarded table takes nothing away from it.
            RulesetChange::Added { table } => (false, self.others.contains(table)),
            RulesetChange::Removed { table } => (is_guarded(table), self.others.contains(table)),
            RulesetChange::Lost => (true, !self.others.is_empty()),
        };
        self.others_changed |= other;
        if guarded || other {
            self.look_at.get_or_insert(Instant::now() + GATHER);
        }
    }

    /// Looks at the tables if it is time to.
    async fn look(&mut self) -> RulesetDamage {
        let mut damage = RulesetDamage::default();
        if self.look_at.is_none_or(|at| Instant::now() < at) {
            return damage;
        }
        for guarded in &self.tables {
            let Some(known) = self.known.get(&guarded.table) else { continue };
            let same = match nft::list_table(&guarded.table).await {
                Ok(listed) => normal(&listed, &guarded.changing).is_ok_and(|now| now == *known),
                Err(error) => {
                    tracing::debug!(table = guarded.table, %error, "listing a guarded nftables table failed");
                    false
                }
            };
            if !same {
                damage.tables.push(guarded.table.clone());
            }
        }
        // Only now: a future that is dropped in between looks again.
        self.look_at = None;
        damage.others = std::mem::take(&mut self.others_changed);
        damage
    }
}

/// A listing without what differs from one look to the next: versions, handles, counters, and elements of sets that change.
fn normal(listed: &[u8], changing: &[String]) -> Result<Value, serde_json::Error> {
    let mut listed: Value = serde_json::from_slice(listed)?;
    let entries = listed.get_mut("nftables").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        strip(entry);
        let sets = ["set", "map"].into_iter();
        for set in sets.filter_map(|kind| entry.get(kind).cloned().map(|set| (kind, set))).collect::<Vec<_>>() {
            let (kind, set) = set;
            let is_changing = set["name"].as_str().is_some_and(|name| changing.iter().any(|c| c == name));
            if is_changing && let Some(set) = entry[kind].as_object_mut() {
                set.remove("elem");
            }
        }
    }
    Ok(listed)
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for key in ["metainfo", "handle", "counter"] {
                fields.remove(key);
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_changes_by_itself_is_no_damage() {
        let listing = |handle: u32, packets: u32, elements: Value, verdict: &str| {
            let rule = json!({"family": "ip", "table": "t", "chain": "c", "handle": handle,
                "expr": [{"counter": {"packets": packets, "bytes": 1}}, {verdict: null}]});
            let changing = json!({"family": "ip", "name": "ports", "table": "t", "handle": handle, "elem": elements});
            let fixed = json!({"family": "ip", "name": "same", "table": "t", "handle": 3, "elem": [1]});
            let all = json!({"nftables": [{"metainfo": {"version": handle}}, {"table": {"name": "t", "handle": handle}},
                {"map": changing}, {"set": fixed}, {"rule": rule}]});
            normal(all.to_string().as_bytes(), &["ports".to_owned()]).unwrap()
        };
        let before = listing(1, 5, json!([["tcp", 80]]), "drop");
        assert_eq!(listing(7, 900, json!([]), "drop"), before);
        assert_ne!(listing(1, 5, json!([["tcp", 80]]), "accept"), before);
        let fewer = json!({"nftables": [{"table": {"name": "t"}}]}).to_string();
        assert_ne!(normal(fewer.as_bytes(), &[]).unwrap(), before);
        assert!(normal(b"nonsense", &[]).is_err());
    }
}
