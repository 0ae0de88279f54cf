//! Targets of cargo: one integration-test binary per crate, doctests only in crates that have some, measurements in
//! `bench`, and no dependencies for tests only in shipped crates. Each target is compiled and linked separately, so
//! their number costs time.
use std::collections::BTreeMap;

use super::manifests;
use super::ratchets::Measures;
use super::tree::{File, Tree};

/// The text by which a test says why it cannot share a process with the other tests of its crate.
const ALONE: &str = "A separate process:";
/// Crates that only tests and measurements use.
const DEVELOPMENT: &[&str] = &["kelson-doubles", "kelson-features", "kelson-history", "kelson-simulation"];
/// The folders whose crates are not shipped, and so may depend on them.
const TOOLS: &[&str] =
    &["bench/", "crates/doubles/", "crates/features/", "crates/history/", "crates/simulation/", "tests/Cargo.toml"];

/// Measures the number of integration test binaries.
pub fn measure(tree: &Tree, all: &mut Measures) {
    all.insert("targets.integration_tests".to_owned(), tree.files.iter().filter(|f| is_test_target(&f.path)).count());
}

/// Returns the errors of the tree's targets.
pub fn faults(tree: &Tree) -> Vec<String> {
    let mut found = second_tests(tree);
    let examples = tree.files.iter().filter(|f| f.path.contains("/examples/"));
    found.extend(examples.map(|f| format!("{}: what measures or makes something is a program of bench/", f.path)));
    for (path, text) in manifests::all(tree) {
        found.extend(doctests(path, &text, &tree.files));
        found.extend(shipped(path, &text));
    }
    found
}

/// Reports whether cargo links this file as an integration test: `tests/NAME.rs` or `tests/NAME/main.rs` of a crate.
fn is_test_target(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let rest = match parts.as_slice() {
        ["crates", _, rest @ ..] | ["fuzz", "targets", rest @ ..] | [_, rest @ ..] => rest,
        [] => return false,
    };
    matches!(rest, ["tests", file] if file.ends_with(".rs")) || matches!(rest, ["tests", _, "main.rs"])
}

/// Returns further integration tests of a crate that do not say why they are separate.
fn second_tests(tree: &Tree) -> Vec<String> {
    let mut tests: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree.files.iter().filter(|f| is_test_target(&f.path) && !f.text.contains(ALONE)) {
        tests.entry(&file.krate).or_default().push(file);
    }
    let several = tests.into_values().filter(|files| files.len() > 1);
    let paths = several.map(|files| files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>().join(", "));
    paths.map(|paths| format!("{paths}: one of them is enough; another says why in its head: `{ALONE} …`")).collect()
}

/// Returns an error for a library whose manifest and documentation disagree on whether there are doctests.
fn doctests(path: &str, text: &str, files: &[File]) -> Option<String> {
    let source = format!("{}src/", path.strip_suffix("Cargo.toml")?);
    if !files.iter().any(|f| f.path == format!("{source}lib.rs")) {
        return None;
    }
    let is_fence = |line: &str| line.trim_start().starts_with("/// ```") || line.trim_start().starts_with("//! ```");
    let has_doctests = files.iter().any(|f| f.path.starts_with(&source) && f.text.lines().any(is_fence));
    match (has_doctests, text.lines().any(|line| line == "doctest = false")) {
        (true, true) => Some(format!("{path}: doctest = false, and there are code blocks in its documentation")),
        (false, false) => {
            Some(format!("{path}: without code blocks in its documentation it wants doctest = false in [lib]"))
        }
        _ => None,
    }
}

/// Returns dependencies of shipped crates that are for tests only.
fn shipped(path: &str, text: &str) -> Vec<String> {
    if path == "Cargo.toml" || TOOLS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (table, lines) in manifests::tables(text).iter().filter(|(table, _)| !table.ends_with("dev-dependencies")) {
        let of_tests =
            lines.iter().filter(|l| DEVELOPMENT.contains(&manifests::name(l)) || l.contains("\"test-util\""));
        found.extend(
            of_tests.map(|l| format!("{path}: [{table}]: {l}: only tests need it, which is [dev-dependencies]")),
        );
    }
    let has_features = manifests::tables(text).iter().any(|(table, lines)| {
        *table == "dev-dependencies" && lines.iter().any(|line| manifests::name(line) == "kelson-features")
    });
    if !has_features && !["fuzz/Cargo.toml", "tests/kube/Cargo.toml"].contains(&path) {
        found.push(format!(
            "{path}: [dev-dependencies] lacks kelson-features, without which `cargo test -p` builds everything again"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        let krate = super::super::tree::crate_of(path).to_owned();
        File { path: path.into(), krate, text: text.into(), code: text.into(), own: text.into() }
    }

    fn tree(files: Vec<File>) -> Tree {
        Tree { root: "/".into(), files, others: Vec::new() }
    }

    #[test]
    fn what_cargo_links() {
        for path in
            ["crates/a/tests/x.rs", "crates/a/tests/suite/main.rs", "fuzz/targets/tests/corpus.rs", "kelson/tests/x.rs"]
        {
            assert!(is_test_target(path), "{path}");
        }
        for path in
            ["crates/a/tests/suite/x.rs", "crates/a/src/tests/mod.rs", "tests/src/lib.rs", "crates/a/src/tests.rs"]
        {
            assert!(!is_test_target(path), "{path}");
        }
    }

    #[test]
    fn a_second_test_says_why() {
        let suite = || file("crates/a/tests/suite/main.rs", "//! Tests.");
        assert_eq!(second_tests(&tree(vec![suite(), file("crates/b/tests/x.rs", "//! Tests.")])), Vec::<String>::new());
        assert_eq!(second_tests(&tree(vec![suite(), file("crates/a/tests/x.rs", "//! More.")])).len(), 1);
        let alone = file("crates/a/tests/x.rs", "//! More.\n//!\n//! A separate process: it sets limits.");
        assert_eq!(second_tests(&tree(vec![suite(), alone])), Vec::<String>::new());
    }

    #[test]
    fn doctests_where_there_are_some() {
        let (without, with) =
            (file("crates/a/src/lib.rs", "//! A."), file("crates/a/src/lib.rs", "//! ```\n//! x\n//! ```"));
        let (off, on) = ("[lib]\ndoctest = false\n", "[package]\n");
        for (library, manifest, is_fault) in
            [(&without, off, false), (&without, on, true), (&with, on, false), (&with, off, true)]
        {
            let files = std::slice::from_ref(library);
            assert_eq!(
                doctests("crates/a/Cargo.toml", manifest, files).is_some(),
                is_fault,
                "{manifest:?} {}",
                library.text
            );
        }
        assert_eq!(doctests("kelson/Cargo.toml", on, &[file("kelson/src/main.rs", "")]), None, "a program");
    }

    #[test]
    fn nothing_of_tests_ships() {
        let features = "[dev-dependencies]\nkelson-features = { workspace = true }\n";
        let text = format!(
            "[dependencies]\nkelson-doubles = {{ workspace = true }}\ntokio = {{ features = [\"test-util\"] }}\n{features}"
        );
        assert_eq!(shipped("crates/a/Cargo.toml", &text).len(), 2);
        assert_eq!(shipped("bench/Cargo.toml", &text), Vec::<String>::new());
        let tested = format!("{features}tokio = {{ features = [\"test-util\"] }}\n");
        assert_eq!(shipped("crates/a/Cargo.toml", &tested), Vec::<String>::new());
        assert_eq!(shipped("crates/a/Cargo.toml", "[dependencies]\n").len(), 1, "features are missing");
    }
}
