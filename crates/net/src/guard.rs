//! Detects changes by other programs of nftables tables that this program maintains: `nft flush ruleset`, the first
//! line of many `/etc/nftables.conf`, removes all of them. Their owner restores them: [`TableGuard`] compares tables
//! that do not change with their previous state, and [`TableWatch`] reports that tables which change all the time must
//! be compared.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::events::{RulesetChange, RulesetEvents};
use crate::listing::TableState;
use crate::nft::{self, NftError};

/// The time to collect further changes after the first one: each line of an `nft` script is reported.
const GATHER: Duration = Duration::from_millis(250);
/// The interval of comparisons if the kernel reports no changes.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The pause before a table that could not be read is read again.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// The changes of nftables by other programs. If the kernel reports none, anything may have changed every
/// [`LOOK_EVERY`].
#[derive(Debug)]
struct Changes {
    events: Option<RulesetEvents>,
    look_at: Instant,
}

impl Changes {
    /// Subscribes in the network namespace of this thread.
    fn subscribe() -> Self {
        let events = RulesetEvents::subscribe().inspect_err(|error| {
            tracing::warn!(%error, "the kernel reports no changes of nftables; tables are compared every {LOOK_EVERY:?}");
        });
        Self { events: events.ok(), look_at: Instant::now() + LOOK_EVERY }
    }

    /// Waits for the next changes. Dropping the future loses nothing.
    async fn next(&mut self) -> Vec<RulesetChange> {
        if let Some(events) = &mut self.events {
            match events.next().await {
                Ok(changes) => return changes,
                Err(error) => {
                    tracing::warn!(%error, "the kernel reports no more changes of nftables; tables are compared every {LOOK_EVERY:?}");
                    self.events = None;
                    self.look_at = Instant::now();
                }
            }
        }
        tokio::time::sleep_until(self.look_at).await;
        self.look_at = Instant::now() + LOOK_EVERY;
        vec![RulesetChange::Lost]
    }
}

/// Returns the name of a table without its family.
fn name_of(table: &str) -> &str {
    table.split(' ').next_back().unwrap_or_default()
}

/// Detects changes by other programs in tables whose owner changes them all the time. The content is not compared,
/// since only the owner knows what it should be.
#[derive(Debug)]
pub struct TableWatch {
    /// Names without families.
    tables: Vec<String>,
    gather: Duration,
    changes: Changes,
    /// When detected changes are reported.
    report_at: Option<Instant>,
}

impl TableWatch {
    /// Watches tables, named with their families. Changes within `gather` after the first one are reported with it.
    pub fn new<'a>(tables: impl Iterator<Item = &'a str>, gather: Duration) -> Self {
        let tables = tables.map(|table| name_of(table).to_owned()).collect();
        Self { tables, gather, changes: Changes::subscribe(), report_at: None }
    }

    /// Waits until another program has changed something in one of the tables, or may have. Dropping the future loses
    /// nothing.
    pub async fn changed(&mut self) {
        while self.report_at.is_none_or(|at| Instant::now() < at) {
            let next = self.changes.next();
            let changes = match self.report_at {
                Some(at) => tokio::time::timeout_at(at, next).await.unwrap_or_default(),
                None => next.await,
            };
            let concerns = |change: &RulesetChange| match change {
                RulesetChange::Added { table }
                | RulesetChange::Removed { table }
                | RulesetChange::Elements { table } => self.tables.contains(table),
                RulesetChange::Lost => true,
            };
            if changes.iter().any(concerns) {
                self.report_at.get_or_insert(Instant::now() + self.gather);
            }
        }
        self.report_at = None;
    }
}

/// A table to guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedTable {
    /// Family and name, such as `ip kelson-1`.
    pub table: String,
    /// The names of its sets and maps whose elements change with pods.
    pub changing: Vec<String>,
}

impl GuardedTable {
    fn name(&self) -> &str {
        name_of(&self.table)
    }
}

/// Guards tables. Any difference from the state at [`TableGuard::remember`] counts as damage, except elements of
/// changing sets.
#[derive(Debug)]
pub struct TableGuard {
    tables: Vec<GuardedTable>,
    /// Names of other tables whose changes are reported.
    others: Vec<String>,
    known: BTreeMap<String, Value>,
    changes: Changes,
    /// The time of the next comparison of the guarded tables; events make it earlier.
    look_at: Option<Instant>,
    others_changed: bool,
}

/// The changes that were detected in a ruleset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesetDamage {
    /// Guarded tables that are missing or different, with their families.
    pub tables: Vec<String>,
    /// Whether one of the other tables changed in any way.
    pub others: bool,
}

impl TableGuard {
    /// Guards `tables`, and listens for changes of `others` (names without families). Changes are detected from now on;
    /// if the kernel reports none, the tables are compared every 30 seconds.
    pub fn new(tables: Vec<GuardedTable>, others: Vec<String>) -> Self {
        let changes = Changes::subscribe();
        Self { tables, others, known: BTreeMap::new(), changes, look_at: None, others_changed: false }
    }

    /// Records the current state of the tables as the right one. Must be called after they were created.
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

    /// Waits until a guarded table differs, or another table changed. Dropping the future loses nothing.
    pub async fn damaged(&mut self) -> RulesetDamage {
        loop {
            let damage = self.look().await;
            if damage != RulesetDamage::default() {
                return damage;
            }
            let next = self.changes.next();
            let changes = match self.look_at {
                Some(at) => tokio::time::timeout_at(at, next).await.unwrap_or_default(),
                None => next.await,
            };
            changes.iter().for_each(|change| self.heard(change));
        }
    }

    fn heard(&mut self, change: &RulesetChange) {
        let is_guarded = |table: &str| self.tables.iter().any(|g| g.name() == table);
        let (guarded, other) = match change {
            // These change with pods.
            RulesetChange::Elements { .. } => (false, false),
            // An addition to a guarded table removes nothing from it.
            RulesetChange::Added { table } => (false, self.others.contains(table)),
            RulesetChange::Removed { table } => (is_guarded(table), self.others.contains(table)),
            RulesetChange::Lost => (true, !self.others.is_empty()),
        };
        self.others_changed |= other;
        if guarded || other {
            self.look_at.get_or_insert(Instant::now() + GATHER);
        }
    }

    /// Compares the tables if it is time to.
    async fn look(&mut self) -> RulesetDamage {
        let mut damage = RulesetDamage::default();
        if self.look_at.is_none_or(|at| Instant::now() < at) {
            return damage;
        }
        let mut again = None;
        for guarded in &self.tables {
            let Some(known) = self.known.get(&guarded.table) else { continue };
            let listed = nft::list_table(&guarded.table).await;
            let found = listed.and_then(|listed| Ok(normal(&listed, &guarded.changing)?));
            match TableState::of(found, known) {
                TableState::Intact => {}
                TableState::Changed => damage.tables.push(guarded.table.clone()),
                TableState::Unreadable(error) => {
                    tracing::warn!(table = guarded.table, %error, retry_in = ?READ_AGAIN, "reading an nftables table failed");
                    again = Some(Instant::now() + READ_AGAIN);
                }
            }
        }
        // Only now, so that a future that is dropped before compares again.
        self.look_at = again;
        damage.others = std::mem::take(&mut self.others_changed);
        damage
    }
}

/// Returns a listing without parts that differ between comparisons: versions, handles, counters, and elements of
/// changing sets.
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
    fn counters_are_not_damage() {
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
