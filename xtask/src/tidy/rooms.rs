//! Imports between the rooms of a crate point down: in the table of rooms in the documentation of its `lib.rs` or `main.rs`, the
//! lowest first, a file imports from its own row and those above.
use std::collections::HashMap;

use super::imports;
use super::tree::{File, Tree};

/// Imports that lead from a room to one below it in its table, rooms that do not exist, and the absence of all tables.
pub fn faults(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let mut crates = 0usize;
    for file in tree.files.iter().filter(|f| f.path.ends_with("src/lib.rs") || f.path.ends_with("src/main.rs")) {
        let Some(ranks) = table(&file.text) else { continue };
        crates += 1;
        let missing = ranks.keys().filter(|room| !is_there(tree, file, room));
        found.extend(
            missing.map(|room| format!("{}: the table of rooms names {room}, which does not exist", file.path)),
        );
        for (from, to) in imports::between(tree, &file.krate, |room| ranks.get(room).copied()) {
            found.push(format!("{}: {from} imports from {to}, which is below it in the table of rooms", file.krate));
        }
    }
    if crates == 0 {
        found.push("no crate has a table of rooms".to_owned());
    }
    found
}

fn is_there(tree: &Tree, root: &File, room: &str) -> bool {
    let folder = root.path.trim_end_matches("lib.rs").trim_end_matches("main.rs");
    let (file, within) = (format!("{folder}{room}.rs"), format!("{folder}{room}/"));
    tree.files.iter().any(|f| f.path == file || f.path.starts_with(&within))
}

/// The row of each room; `None` where the head of the file has no table whose first column is called room.
fn table(text: &str) -> Option<HashMap<&str, usize>> {
    let head = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_start);
    let rows = head.skip_while(|line| !line.starts_with("| room")).skip(2).take_while(|line| line.starts_with('|'));
    let mut ranks = HashMap::new();
    for (rank, row) in rows.enumerate() {
        let cell = row.trim_start_matches('|').split('|').next().unwrap_or_default();
        for room in cell.split('`').skip(1).step_by(2) {
            ranks.insert(room.trim_end_matches('/'), rank);
        }
    }
    (!ranks.is_empty()).then_some(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ranks() {
        let text = "//! A.\n//!\n//! # Rooms\n//!\n//! | room | holds |\n//! |---|---|\n//! | `pod` | x |\n\
                    //! | `b/`, `c/` | `d/` |\n//!\n//! More.\nmod pod;\n";
        assert_eq!(table(text), Some(HashMap::from([("pod", 0), ("b", 1), ("c", 1)])));
        assert_eq!(table("//! A.\n\n/// | room | holds |\n/// |---|---|\n/// | `x` | y |\n"), None);
    }
}
