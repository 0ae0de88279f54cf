//! Repository rules: what CONTRIBUTING asks for and a machine can see. They are ordinary tests (`cargo test -p xtask`) that
//! only read files. Numbers that may only fall are in `xtask/ratchets.txt`; `cargo xtask ratchet` writes the lower ones.
mod documents;
mod functions;
mod imports;
mod invariants;
mod manifests;
mod minor;
mod platforms;
mod ports;
mod programs;
mod prometheus;
mod ratchets;
mod rooms;
mod source;
mod targets;
mod terms;
pub mod tree;
mod types;
mod walks;
mod words;

use anyhow::Result;

use ratchets::Measures;
use tree::Tree;

/// `cargo xtask ratchet`: lowers every limit to the current measure; `units` is the number of units that cargo compiles
/// (`units::count`). A limit is raised by hand, with a reason in the commit.
pub fn ratchet(units: usize) -> Result<()> {
    let tree = Tree::read()?;
    let mut limits = ratchets::Limits::read(&tree)?;
    for (name, value) in measures(&tree) {
        limits.lower(&name, value);
    }
    limits.lower(ratchets::UNITS, units);
    limits.write(&tree)
}

/// Returns the limit of units in the gate's build.
pub fn units_limit() -> Result<usize> {
    Ok(ratchets::Limits::read(&Tree::read()?)?.get(ratchets::UNITS))
}

/// Returns the limit of the release binary in kilobytes.
pub fn size_limit() -> Result<usize> {
    Ok(ratchets::Limits::read(&Tree::read()?)?.get(ratchets::SIZE))
}

fn measures(tree: &Tree) -> Measures {
    let mut all = Measures::new();
    documents::measure(tree, &mut all);
    functions::measure(tree, &mut all);
    imports::measure(tree, &mut all);
    targets::measure(tree, &mut all);
    terms::measure(tree, &mut all);
    types::measure(tree, &mut all);
    words::measure(tree, &mut all);
    tasks(tree, &mut all);
    all.insert("manifests.unsorted".to_owned(), manifests::unsorted(tree).len());
    all.insert("manifests.unused".to_owned(), manifests::unused(tree).len());
    all
}

/// Calls that start work without an owner, and unbounded queues. Only `crates/tasks` may use the former.
const UNOWNED: &[(&str, &str)] = &[
    ("tokio::spawn(", "Tasks::spawn or scoped"),
    ("task::spawn(", "Tasks::spawn or scoped"),
    ("spawn_blocking(", "a Lane, such as kelson_tasks::FILES"),
    ("thread::spawn(", "Tasks or a Lane"),
    ("JoinSet::new(", "Tasks"),
    ("unbounded_channel", "a channel with a bound"),
];

fn unowned(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.code().filter(|f| f.krate != "tasks") {
        for (line, text) in file.own.lines().enumerate() {
            for (call, instead) in UNOWNED.iter().filter(|(call, _)| text.contains(call)) {
                found.push(format!("{}:{}: {call} where it should be {instead}", file.path, line + 1));
            }
        }
    }
    found
}

fn tasks(tree: &Tree, all: &mut Measures) {
    for krate in tree.crates() {
        all.insert(format!("unowned.{krate}"), 0);
    }
    for line in unowned(tree) {
        *all.entry(format!("unowned.{}", tree::crate_of(&line))).or_default() += 1;
    }
}

/// `cargo xtask tidy`: runs all checks of the tests below at once.
pub fn check() -> Result<()> {
    let tree = Tree::read()?;
    let faults: Vec<String> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    anyhow::ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    Ok(())
}

const RULES: &[fn(&Tree) -> Vec<String>] = &[
    documents::faults,
    headers,
    limits,
    manifests::declared_elsewhere,
    invariants::faults,
    minor::faults,
    platforms::faults,
    ports::faults,
    programs::faults,
    prometheus::faults,
    rooms::faults,
    targets::faults,
    terms::faults,
    walks::faults,
    walks::order,
    words::copied,
];

fn headers(tree: &Tree) -> Vec<String> {
    let without = tree.files.iter().filter(|f| !f.text.starts_with("//!"));
    without.map(|f| format!("{}: does not say its role (//!) at the top", f.path)).collect()
}

fn limits(tree: &Tree) -> Vec<String> {
    let limits = match ratchets::Limits::read(tree) {
        Ok(limits) => limits,
        Err(e) => return vec![format!("{e:#}")],
    };
    let measures = measures(tree);
    let mut faults = limits.unknown(&measures);
    for (name, value) in &measures {
        let limit = limits.get(name);
        if *value > limit {
            faults.push(format!("{name}: {value}, where {limit} is allowed{}", why(tree, name)));
        }
    }
    faults
}

/// The maximum number of places shown for a measure above its limit.
const SHOWN_MAX: usize = 40;

/// Returns the places behind a measure that is above its limit.
fn why(tree: &Tree, name: &str) -> String {
    let all = match name.split_once('.') {
        Some(("unowned", krate)) => unowned(tree).into_iter().filter(|l| tree::crate_of(l) == krate).collect(),
        Some(("circle", krate)) => imports::largest(tree, krate),
        Some(("function" | "functions", _)) => functions::longest(tree, 10),
        Some(("file" | "files", _)) => functions::longest_files(tree, 10),
        Some(("types", _)) => types::twice(tree),
        Some(("terms", rest)) => terms::places(tree, rest),
        Some(("docs", "commands_without_test")) => documents::unmarked(tree),
        Some(("docs", _)) => words::short_docs(tree),
        Some(("manifests", "unsorted")) => manifests::unsorted(tree),
        Some(("manifests", _)) => manifests::unused(tree),
        _ => Vec::new(),
    };
    all.iter().take(SHOWN_MAX).map(|line| format!("\n    {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(rule: fn(&Tree) -> Vec<String>) {
        let faults = rule(&Tree::read().unwrap());
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }

    #[test]
    fn what_documents_name_exists() {
        none(documents::faults);
    }

    #[test]
    fn every_file_opens_with_its_role() {
        none(headers);
    }

    #[test]
    fn no_limit_of_the_tree_is_passed() {
        none(limits);
    }

    #[test]
    fn dependencies_are_declared_in_one_place() {
        none(manifests::declared_elsewhere);
    }

    #[test]
    fn what_one_system_has_is_named_in_one_place() {
        none(platforms::faults);
    }

    #[test]
    fn ports_of_the_reference_are_those_of_the_code() {
        none(ports::faults);
    }

    #[test]
    fn programs_of_tests_are_installed() {
        none(programs::faults);
    }

    #[test]
    fn rules_and_dashboards_name_metrics_that_there_are() {
        none(prometheus::faults);
    }

    #[test]
    fn invariants_name_the_tests_that_hold_them() {
        none(invariants::faults);
    }

    #[test]
    fn nothing_is_built_twice_and_nothing_of_tests_ships() {
        none(targets::faults);
    }

    #[test]
    fn the_minor_version_is_said_in_data_alone() {
        none(minor::faults);
    }

    #[test]
    fn rooms_import_from_those_above_them() {
        none(rooms::faults);
    }

    #[test]
    fn terms_and_messages_can_be_read() {
        none(terms::faults);
    }

    #[test]
    fn what_architecture_names_is_there() {
        none(walks::faults);
        none(walks::order);
    }

    #[test]
    fn nothing_of_upstream_is_copied() {
        none(words::copied);
    }
}
