//! Names of types: within a crate a name has one meaning, so that a reader need not ask which.
use std::collections::BTreeMap;

use super::platforms;
use super::ratchets::Measures;
use super::tree::Tree;

/// Measures the number of names that a second type of a crate has.
pub fn measure(tree: &Tree, all: &mut Measures) {
    all.insert("types.of_one_name".to_owned(), twice(tree).len());
}

/// Returns the names that more than one type of a crate has, with the files that define them.
pub fn twice(tree: &Tree) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for file in tree.code().filter(|f| !platforms::is_alternate(&f.path)) {
        for name in file.own.lines().filter_map(defined) {
            places.entry((&file.krate, name)).or_default().push(&file.path);
        }
    }
    let shared = places.into_iter().filter(|(_, files)| files.len() > 1);
    shared.map(|((krate, name), files)| format!("{krate}: {name} in {}", files.join(", "))).collect()
}

/// Returns the type that a line defines. An indented `type` belongs to a trait.
fn defined(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => item,
    };
    let (keyword, rest) = item.split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "union" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| is_type && name.starts_with(char::is_uppercase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_definitions_alone() {
        let rows = [
            ("pub struct Pod {", Some("Pod")),
            ("    pub(in super::super) enum Kind<'a> {", Some("Kind")),
            ("trait Clock: Send {", Some("Clock")),
            ("type Answer = Vec<u8>;", Some("Answer")),
            ("    type Error = Fault;", None),
            ("struct $name {", None),
            ("use super::Pod;", None),
            ("let structure = 1;", None),
        ];
        for (line, name) in rows {
            assert_eq!(defined(line), name, "{line}");
        }
    }
}
