//! Documents name what exists: relative links of Markdown lead to a file, and to a heading in it, and a path of the tree in
//! backticks is a file or folder. Each block of commands says which test runs it, or why none does, in the line before it:
//! `<!-- test: NAME, NAME -->` or `<!-- not tested: REASON -->`.
use std::path::Path;

use super::ratchets::Measures;
use super::tree::Tree;
use super::walks::has_placeholder;

/// Folders at the top of the tree whose names begin a path.
const TOPS: &[&str] = &[
    "bench",
    "clients",
    "crates",
    "docs",
    "examples",
    "facts",
    "fuzz",
    "kelson",
    "packaging",
    "scripts",
    "tests",
    "xtask",
];
/// Languages of blocks that hold no commands.
const NO_COMMANDS: &[&str] = &["text", "yaml", "json", "jsonc", "toml", "ini", "go", "rust", "java", "mermaid", "diff"];
const TEST: &str = "<!-- test: ";
const NOT_TESTED: &str = "<!-- not tested: ";

/// The measure of blocks of commands without a mark.
const UNMARKED: &str = "docs.commands_without_test";

/// Measures the number of blocks of commands with neither a test nor a reason.
pub fn measure(tree: &Tree, all: &mut Measures) {
    all.insert(UNMARKED.to_owned(), unmarked(tree).len());
}

/// Returns the locations of these blocks.
pub fn unmarked(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in pages(tree) {
        let blocks = blocks(&text).into_iter().filter(|block| block.mark.is_none());
        found.extend(blocks.map(|block| format!("{path}:{}: commands without `{TEST}… -->` before them", block.line)));
    }
    found
}

/// Links and paths that lead nowhere, and tests of commands that do not exist.
pub fn faults(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in pages(tree) {
        let folder = Path::new(&path).parent().unwrap_or(Path::new(""));
        for (line, link) in links(&text) {
            if let Some(why) = broken(tree, folder, &path, link) {
                found.push(format!("{path}:{line}: link {link}: {why}"));
            }
        }
        for (line, span) in spans(&text) {
            if named_path(span).is_some_and(|named| !exists(tree, Path::new(named))) {
                found.push(format!("{path}:{line}: `{span}`: no such file or folder"));
            }
        }
        for block in blocks(&text) {
            let Some(Mark::Tests(names)) = block.mark else { continue };
            for name in names.iter().filter(|name| !is_test(tree, name)) {
                found.push(format!("{path}:{}: no test {name}", block.line));
            }
        }
    }
    found
}

/// The Markdown files but for those of dependencies.
fn pages(tree: &Tree) -> Vec<(String, String)> {
    let pages = tree.others.iter().filter(|path| path.ends_with(".md"));
    pages.map(|path| (path.clone(), tree.other(path).unwrap_or_default())).collect()
}

fn is_test(tree: &Tree, name: &str) -> bool {
    let (test, black_box) = (format!("fn {name}("), format!("name: \"{name}\""));
    tree.files.iter().any(|f| f.code.contains(&test) || f.is_test() && f.text.contains(&black_box))
}

/// Lines outside of fenced blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fence && !fenced).then_some((at + 1, line))
    })
}

/// The targets of links, by line.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, line) in prose(text) {
        let ends = line.match_indices("](").filter_map(|(i, _)| line[i + 2..].split_once(')'));
        found.extend(ends.map(|(target, _)| (at, target)));
    }
    found
}

fn broken(tree: &Tree, folder: &Path, page: &str, link: &str) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let target = if file.is_empty() { page.into() } else { normal(&folder.join(file)) };
    if !exists(tree, Path::new(&target)) {
        return Some("no such file or folder");
    }
    let heading = heading.filter(|_| target.ends_with(".md"))?;
    let text = tree.other(&target).unwrap_or_default();
    let has = prose(&text).filter(|(_, line)| line.starts_with('#')).any(|(_, line)| slug(line) == heading);
    (!has).then_some("no such heading")
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn exists(tree: &Tree, path: &Path) -> bool {
    path.as_os_str().is_empty() || tree.root.join(path).exists()
}

/// The anchor of a heading, as GitHub makes it.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Code spans outside of fenced blocks, by line.
fn spans(text: &str) -> Vec<(usize, &str)> {
    prose(text).flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |span| (at, span))).collect()
}

/// The path of the tree that a span names: it begins with a folder at the top. What follows `.rs` is an item.
fn named_path(span: &str) -> Option<&str> {
    let path = span.split_once(".rs ").map_or(span, |(path, _)| &span[..path.len() + 3]);
    let path = path.split_once(".rs::").map_or(path, |(file, _)| &span[..file.len() + 3]);
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    // `kelson/…` is also the beginning of keys and of names of labels.
    let begins = path.split_once('/').is_some_and(|(top, rest)| {
        TOPS.contains(&top) && !rest.is_empty() && (top != "kelson" || rest.starts_with("src"))
    });
    (plain && begins && !has_placeholder(path)).then_some(path.trim_end_matches('/'))
}

/// The mark of a block of commands.
#[derive(Debug, PartialEq, Eq)]
enum Mark {
    Tests(Vec<String>),
    NotTested,
}

/// A fenced block of commands.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    mark: Option<Mark>,
}

fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut before, mut fenced) = (Vec::new(), "", false);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            if fenced && !NO_COMMANDS.contains(&language.trim()) {
                found.push(Block { line: at + 1, mark: mark(before) });
            }
        }
        before = line;
    }
    found
}

fn mark(line: &str) -> Option<Mark> {
    let line = line.strip_suffix("-->")?.trim_end();
    if let Some(names) = line.strip_prefix(TEST) {
        return Some(Mark::Tests(names.split(',').map(|name| name.trim().to_owned()).collect()));
    }
    line.strip_prefix(NOT_TESTED).filter(|reason| !reason.is_empty()).map(|_| Mark::NotTested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings() {
        let text = "[a](b.md#c) and [d](../e)\n```\n[x](y)\n```\n[f](#g-h)\n";
        assert_eq!(links(text), [(1, "b.md#c"), (1, "../e"), (5, "#g-h")]);
        assert_eq!(normal(Path::new("docs/internals/../x.md")), "docs/x.md");
        assert_eq!(slug("## A control plane, alone"), "a-control-plane-alone");
    }

    #[test]
    fn paths_of_the_tree() {
        for (span, want) in [
            ("crates/store/src/x.rs run", Some("crates/store/src/x.rs")),
            ("xtask/src/tidy/", Some("xtask/src/tidy")),
            ("bench/scale", Some("bench/scale")),
            ("crates/NAME/src", None),
            ("tests/", None),
            ("DIR/pki", None),
            ("kelson/progress", None),
            ("kelson/src/cli.rs", Some("kelson/src/cli.rs")),
            ("kelson server --x", None),
            ("docs/*.md", None),
        ] {
            assert_eq!(named_path(span), want, "{span}");
        }
    }

    #[test]
    fn blocks_say_which_test_runs_them() {
        let text = "<!-- test: a, b::c -->\n```\nkelson x\n```\n\n```yaml\na: b\n```\n<!-- not tested: needs two machines -->\n```sh\ny\n```\n\
                    ```\nz\n```\n";
        let tests = Some(Mark::Tests(vec!["a".to_owned(), "b::c".to_owned()]));
        assert_eq!(
            blocks(text),
            [
                Block { line: 2, mark: tests },
                Block { line: 10, mark: Some(Mark::NotTested) },
                Block { line: 13, mark: None }
            ]
        );
        assert_eq!(mark("<!-- not tested: -->"), None);
    }
}
