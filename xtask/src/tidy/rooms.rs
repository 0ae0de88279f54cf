//! Imports between the rooms of a crate point down: in the tables of rooms of ARCHITECTURE.md, the lowest first, a file
//! imports from its own row and those above.
use std::collections::HashMap;

use super::imports;
use super::tree::Tree;

/// Returns imports of a room from one that is below it in its table, and tables without a crate.
pub fn faults(tree: &Tree) -> Vec<String> {
    let text = tree.other("ARCHITECTURE.md").unwrap_or_default();
    let mut found = Vec::new();
    for table in tables(&text) {
        if table.ranks.is_empty() || !tree.crates().contains(table.krate) {
            found.push(format!("ARCHITECTURE.md: a table of rooms without rooms, or of no crate: {:?}", table.krate));
            continue;
        }
        for (from, to) in imports::between(tree, table.krate, |room| table.ranks.get(room).copied()) {
            found.push(format!("crates/{}/src/{from} imports from {to}, which stands below it", table.krate));
        }
    }
    found
}

/// A table of rooms: the row of each room.
#[derive(Debug, PartialEq, Eq)]
struct Table<'a> {
    krate: &'a str,
    ranks: HashMap<&'a str, usize>,
}

/// Returns the tables whose first column is called room. A table belongs to the crate that was named last:
/// `crates/NAME/src`.
fn tables(text: &str) -> Vec<Table<'_>> {
    let (mut found, mut krate, mut within) = (Vec::new(), "", false);
    for line in text.lines() {
        for (_, rest) in line.match_indices("`crates/").map(|(at, head)| line.split_at(at + head.len())) {
            if let Some((name, _)) = rest.split_once("/src`") {
                krate = name;
            }
        }
        if line.starts_with("| room") {
            found.push(Table { krate, ranks: HashMap::new() });
            within = true;
        } else if !line.starts_with('|') {
            within = false;
        } else if let Some(table) = found.last_mut().filter(|_| within) {
            let cell = line.trim_start_matches('|').split('|').next().unwrap_or_default();
            let row = table.ranks.values().max().map_or(0, |last| last + 1);
            for room in cell.split('`').skip(1).step_by(2) {
                table.ranks.insert(room.trim_end_matches('/').trim_end_matches(".rs"), row);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ranks() {
        let text = "Folders of `crates/a/src`.\n\n| room | holds |\n|---|---|\n| `pod.rs` | x |\n| `b/`, `c/` | `d/` |\n\n\
                    | crate | role |\n|---|---|\n| `e` | x |\n\n| room (`crates/f/src`) | holds |\n|---|---|\n| `g` | x |\n";
        let table = |krate, ranks: &[(&'static str, usize)]| Table { krate, ranks: ranks.iter().copied().collect() };
        assert_eq!(tables(text), [table("a", &[("pod", 0), ("b", 1), ("c", 1)]), table("f", &[("g", 0)])]);
    }
}
