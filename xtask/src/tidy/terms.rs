//! The terms of `docs/style.md`: finds unwanted words in user-visible strings, in comments, and as names of types.
use std::collections::BTreeMap;

use anyhow::Result;

use super::ratchets::Measures;
use super::tree::{Tree, crate_of};
use crate::messages;

const STYLE: &str = "docs/style.md";

/// The rows of the table, a pair for each unwanted word: the word, and its replacement.
#[derive(Debug, Default, PartialEq, Eq)]
struct Terms {
    /// Words and phrases of prose, in lower case.
    phrases: Vec<(String, String)>,
    /// Names of types.
    types: Vec<(String, String)>,
}

/// A use of an unwanted word.
#[derive(Debug, PartialEq, Eq)]
struct Hit {
    krate: String,
    /// The location, the word, and its replacement.
    shown: String,
}

/// Measures the number of unwanted words in each crate: `terms.messages.CRATE`, `terms.comments.CRATE` and
/// `terms.types.CRATE`.
pub fn measure(tree: &Tree, all: &mut Measures) {
    for (kind, find) in KINDS {
        for krate in tree.crates() {
            all.insert(format!("terms.{kind}.{krate}"), 0);
        }
        for hit in find(tree).unwrap_or_default() {
            *all.entry(format!("terms.{kind}.{}", hit.krate)).or_default() += 1;
        }
    }
}

/// Returns the uses behind the measure `terms.NAME`.
pub fn places(tree: &Tree, name: &str) -> Vec<String> {
    let Some((kind, krate)) = name.split_once('.') else { return Vec::new() };
    let find = KINDS.iter().find(|(name, _)| *name == kind).map(|(_, find)| find);
    let hits = find.and_then(|find| find(tree).ok()).unwrap_or_default();
    hits.into_iter().filter(|hit| hit.krate == krate).map(|hit| hit.shown).collect()
}

/// Fails when the table, or the list of messages, cannot be read.
pub fn faults(tree: &Tree) -> Vec<String> {
    KINDS.iter().filter_map(|(_, find)| find(tree).err()).map(|error| format!("{error:#}")).collect()
}

type Find = fn(&Tree) -> Result<Vec<Hit>>;
const KINDS: &[(&str, Find)] = &[("comments", comments), ("messages", in_messages), ("types", types)];

fn in_messages(tree: &Tree) -> Result<Vec<Hit>> {
    let (terms, text) = (Terms::read(tree)?, tree.other(messages::PATH)?);
    let mut found = Vec::new();
    for (krate, message) in messages::read(&text) {
        for hit in terms.in_prose(message) {
            found.push(Hit { krate: krate.to_owned(), shown: format!("{hit}: {message}") });
        }
    }
    Ok(found)
}

fn comments(tree: &Tree) -> Result<Vec<Hit>> {
    let terms = Terms::read(tree)?;
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| !file.is_generated()) {
        let comments = file.text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        for (at, line) in comments {
            for hit in terms.in_prose(line) {
                found.push(Hit {
                    krate: crate_of(&file.path).to_owned(),
                    shown: format!("{}:{}: {hit}", file.path, at + 1),
                });
            }
        }
    }
    Ok(found)
}

fn types(tree: &Tree) -> Result<Vec<Hit>> {
    let terms = Terms::read(tree)?;
    let better: BTreeMap<&str, &str> = terms.types.iter().map(|(name, better)| (&**name, &**better)).collect();
    let mut found = Vec::new();
    for file in tree.code() {
        for (at, line) in file.own.lines().enumerate() {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            for pair in words.windows(2).filter(|pair| matches!(pair[0], "struct" | "enum" | "trait" | "type")) {
                if let Some(better) = better.get(pair[1]) {
                    let shown = format!("{}:{}: {:?}: {better}", file.path, at + 1, pair[1]);
                    found.push(Hit { krate: file.krate.clone(), shown });
                }
            }
        }
    }
    Ok(found)
}

impl Terms {
    fn read(tree: &Tree) -> Result<Self> {
        let terms = Self::parse(&tree.other(STYLE)?);
        anyhow::ensure!(!terms.phrases.is_empty(), "{STYLE}: has no table of terms");
        Ok(terms)
    }

    fn parse(text: &str) -> Self {
        let mut terms = Self::default();
        let section = text.split("\n## Terms\n").nth(1).unwrap_or_default();
        for line in section.lines().skip_while(|line| !line.starts_with("|---")).skip(1) {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let (Some(better), Some(unwanted)) = (cells.next(), cells.next()) else { continue };
            for word in unwanted.split(',').map(str::trim).filter(|word| !word.ends_with(')')) {
                match word.strip_prefix('`').and_then(|word| word.strip_suffix('`')) {
                    Some(name) => terms.types.push((name.to_owned(), better.to_owned())),
                    None => terms.phrases.push((word.to_lowercase(), better.to_owned())),
                }
            }
        }
        terms
    }

    /// Returns the uses in a line of prose, outside of code spans and placeholders.
    fn in_prose(&self, line: &str) -> Vec<String> {
        let line = without_code(line).to_lowercase();
        let used = self.phrases.iter().flat_map(|pair| std::iter::repeat_n(pair, count(&line, &pair.0)));
        used.map(|(word, better)| format!("{word:?}: {better}")).collect()
    }
}

/// Returns the line without parts in backticks or braces.
fn without_code(line: &str) -> String {
    let (mut out, mut spans) = (String::with_capacity(line.len()), line.split('`'));
    while let Some(prose) = spans.next() {
        let mut depth = 0usize;
        for c in prose.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ if depth == 0 => out.push(c),
                _ => {}
            }
        }
        out.push('`');
        spans.next();
    }
    out
}

/// Counts a phrase in a line as whole words.
fn count(line: &str, phrase: &str) -> usize {
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '-');
    let whole = |at: &usize| edge(line[..*at].chars().next_back()) && edge(line[at + phrase.len()..].chars().next());
    line.match_indices(phrase).map(|(at, _)| at).filter(whole).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_table() {
        let text = "# Style\n\n| told | x |\n|---|---|\n| a | b |\n\n## Terms\nWords.\n\n| write | not |\n|---|---|\n| log | tell, told |\n\
                    | string | text (for a value) |\n| a noun | `Place`, `Told` |\n";
        let terms = Terms::parse(text);
        let pair = |word: &str, better: &str| (word.to_owned(), better.to_owned());
        assert_eq!(terms.phrases, [pair("tell", "log"), pair("told", "log")]);
        assert_eq!(terms.types, [pair("Place", "a noun"), pair("Told", "a noun")]);
        let uses = |line: &str| terms.in_prose(line).len();
        assert_eq!(uses("/// Told once, and told again."), 2);
        assert_eq!(uses("untold; `told`, {told:?}, --told-by"), 0);
    }
}
