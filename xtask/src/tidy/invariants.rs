//! Every invariant and every promise names what holds it: each row of the tables of invariants in ARCHITECTURE.md and
//! `docs/internals/invariants.md`, and of the promises in `docs/security.md`, has in its last column, in backticks, names of tests (functions,
//! `area::test` of the black-box suite, files of tests) or of lints. A name that does not exist is a fault.
use super::tree::Tree;

/// The documents with rows, and the first column of their tables.
const TABLES: [(&str, &str); 4] = [
    ("ARCHITECTURE.md", "| invariant |"),
    ("docs/internals/invariants.md", "| invariant |"),
    ("docs/internals/invariants.md", "| report |"),
    ("docs/security.md", "| promise |"),
];

/// Rows that nothing holds, and names that do not exist.
pub fn faults(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let lints: String = ["Cargo.toml", "clippy.toml"].iter().filter_map(|p| tree.other(p).ok()).collect();
    for (path, head) in TABLES {
        let rows = rows(&tree.other(path).unwrap_or_default(), head);
        if rows.is_empty() {
            found.push(format!("{path} has no table {head}"));
        }
        for (row, names) in rows {
            let missing: Vec<&str> =
                names.iter().filter(|n| !is_there(tree, n) && !lints.contains(*n)).map(String::as_str).collect();
            if names.is_empty() || !missing.is_empty() {
                let start: String = row.chars().take(60).collect();
                found.push(format!("{path}: no test or lint {} for: {start}…", missing.join(", ")));
            }
        }
    }
    found
}

fn is_there(tree: &Tree, name: &str) -> bool {
    let (test, black_box) = (format!("fn {name}("), format!("name: \"{name}\""));
    let holds = |f: &super::tree::File| f.code.contains(&test) || f.is_test() && f.text.contains(&black_box);
    tree.files.iter().any(|f| holds(f) || name.ends_with(".rs") && f.path.ends_with(name))
}

/// The rows of the tables that begin with `head`: the first cell, and the names in the last one.
fn rows(text: &str, head: &str) -> Vec<(String, Vec<String>)> {
    let (mut found, mut within) = (Vec::new(), false);
    for line in text.lines() {
        within = line.starts_with('|') && (within || line.starts_with(head));
        if !within || line.starts_with(head) || line.starts_with("|---") {
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let names = cells.last().map(|tests| tests.split('`').skip(1).step_by(2).map(str::to_owned).collect());
        found.push((cells.first().copied().unwrap_or_default().to_owned(), names.unwrap_or_default()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_tables() {
        let text = "| other | x |\n|---|---|\n| o | p |\n\n| promise | defence | test |\n|---|---|---|\n| a | `code` b | `x`, `y` |\n\
                    | c | d | e |\n";
        let rows = rows(text, "| promise |");
        assert_eq!(rows, [("a".to_owned(), vec!["x".to_owned(), "y".to_owned()]), ("c".to_owned(), Vec::new())]);
    }
}
