//! Every invariant of ARCHITECTURE.md names what holds it: `Held by: ` and, in backticks, names of tests (functions, or
//! `area::test` of the black-box suite) and lints. A name that is not there is a fault.
use super::tree::Tree;

const HOLDERS: &str = "Held by:";

/// Invariants that nothing holds, and names that do not exist.
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
            let (test, black_box) = (format!("fn {name}("), format!("name: \"{name}\""));
            let there = tree.files.iter().any(|f| f.code.contains(&test) || f.is_test() && f.text.contains(&black_box));
            if !there && !lints.contains(name) {
                found.push(format!("there is no test or lint {name}, which should hold: {start}…"));
            }
        }
    }
    found
}

/// The points of the section, each on one line.
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
    fn points_of_the_section() {
        let text = "# A\n## Invariants\n\n- One\n  line. Held by: `a`, `b`.\n- Two.\n\n## Next\n- Three\n";
        assert_eq!(invariants(text), ["One line. Held by: `a`, `b`.", "Two."]);
    }
}
