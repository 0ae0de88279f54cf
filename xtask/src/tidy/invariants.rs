//! Every invariant of ARCHITECTURE.md names what enforces it: `Held by: ` and, in backticks, names of tests (functions,
//! or `area::test` of the black-box suite) and lints. So does every row of `docs/security.md`, which may also name
//! files of tests. An unknown name is an error.
use super::tree::Tree;

const HOLDERS: &str = "Held by:";

/// Returns invariants without enforcement, and names that do not exist.
pub fn faults(tree: &Tree) -> Vec<String> {
    let text = tree.other("ARCHITECTURE.md").unwrap_or_default();
    let mut found = Vec::new();
    let invariants = invariants(&text);
    if invariants.is_empty() {
        found.push("ARCHITECTURE.md has no invariants".to_owned());
    }
    let lints: String = ["Cargo.toml", "clippy.toml"].iter().filter_map(|p| tree.other(p).ok()).collect();
    for invariant in invariants {
        let start: String = invariant.chars().take(60).collect();
        let names: Vec<&str> = match invariant.split_once(HOLDERS) {
            Some((_, holders)) => holders.split('`').skip(1).step_by(2).collect(),
            None => Vec::new(),
        };
        if names.is_empty() {
            found.push(format!("nothing holds: {start}…"));
        }
        for name in names {
            if !is_there(tree, name) && !lints.contains(name) {
                found.push(format!("there is no test or lint {name}, which should hold: {start}…"));
            }
        }
    }
    found.extend(promises(&tree.other("docs/security.md").unwrap_or_default()).into_iter().filter_map(
        |(promise, names)| {
            let missing: Vec<&str> = names.iter().filter(|name| !is_there(tree, name)).map(String::as_str).collect();
            let fault = names.is_empty() || !missing.is_empty();
            fault.then(|| format!("docs/security.md: no test {} for: {promise}", missing.join(", ")))
        },
    ));
    found
}

fn is_there(tree: &Tree, name: &str) -> bool {
    let (test, black_box) = (format!("fn {name}("), format!("name: \"{name}\""));
    let holds = |f: &super::tree::File| f.code.contains(&test) || f.is_test() && f.text.contains(&black_box);
    tree.files.iter().any(|f| holds(f) || name.ends_with(".rs") && f.path.ends_with(name))
}

/// Returns the rows of the tables: the promise, and the names in the last column.
fn promises(text: &str) -> Vec<(String, Vec<String>)> {
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise "));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let names = cells.last().map(|tests| tests.split('`').skip(1).step_by(2).map(str::to_owned).collect());
        (cells.first().copied().unwrap_or_default().to_owned(), names.unwrap_or_default())
    })
    .collect()
}

/// Returns the points of the section, each on one line.
fn invariants(text: &str) -> Vec<String> {
    let Some((_, section)) = text.split_once("\n## Invariants\n") else { return Vec::new() };
    let section = section.split("\n## ").next().unwrap_or_default();
    let points = section.split("\n- ").skip(1);
    points.map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_promises() {
        let text = "| promise | defence | test |\n|---|---|---|\n| a | `code` b | `x`, `y` |\n| c | d | e |\n";
        let promises = promises(text);
        assert_eq!(promises[0], ("a".to_owned(), vec!["x".to_owned(), "y".to_owned()]));
        assert_eq!(promises[1], ("c".to_owned(), Vec::new()));
    }

    #[test]
    fn points_of_the_section() {
        let text = "# A\n## Invariants\n\n- One\n  line. Held by: `a`, `b`.\n- Two.\n\n## Next\n- Three\n";
        assert_eq!(invariants(text), ["One line. Held by: `a`, `b`.", "Two."]);
    }
}
