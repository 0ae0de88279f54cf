//! Cycles of files: which file of a crate uses which, by the paths in its text, and the largest set in which each
//! reaches each. A `pub use` that only re-exports a name does not count as a use: the file that uses the name uses the
//! file it comes from.
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ratchets::Measures;
use super::tree::{File, Tree};

/// The modules of one crate, by path within it: `["pods", "worker"]`.
struct Modules<'a> {
    files: BTreeMap<Vec<String>, &'a File>,
    /// The names that each module imports by `use`, and their origin.
    names: HashMap<Vec<String>, BTreeMap<String, Vec<String>>>,
}

/// Measures the size of each crate's largest cycle; 0 if there is none.
pub fn measure(tree: &Tree, all: &mut Measures) {
    for krate in tree.crates() {
        let size = largest(tree, krate).len();
        all.insert(format!("circle.{krate}"), if size > 1 { size } else { 0 });
    }
}

/// Returns the files of a crate's largest cycle.
pub fn largest(tree: &Tree, krate: &str) -> Vec<String> {
    let modules = Modules::of(tree, krate);
    let edges = modules.edges();
    let paths: Vec<&Vec<String>> = modules.files.keys().collect();
    let circle = components(&paths, &edges).into_iter().max_by_key(Vec::len).unwrap_or_default();
    if circle.len() < 2 {
        return Vec::new();
    }
    circle.iter().map(|path| modules.files[*path].path.clone()).collect()
}

/// Returns imports of a crate's files from rooms of a higher rank than their own: the file, and the room. A room is the
/// first part of a module's path; one without a rank is left out.
pub fn between(tree: &Tree, krate: &str, rank: impl Fn(&str) -> Option<usize>) -> Vec<(String, String)> {
    let modules = Modules::of(tree, krate);
    let mut found = BTreeSet::new();
    for (from, targets) in modules.edges() {
        let Some(own) = from.first().and_then(|room| rank(room)) else { continue };
        for room in targets.iter().filter_map(|to| to.first()) {
            if rank(room).is_some_and(|rank| rank > own) {
                found.insert((from.join("/"), room.clone()));
            }
        }
    }
    found.into_iter().collect()
}

impl<'a> Modules<'a> {
    fn of(tree: &'a Tree, krate: &str) -> Self {
        let mut files = BTreeMap::new();
        for file in tree.code().filter(|f| f.krate == krate) {
            let Some((_, inner)) = file.path.split_once("src/") else { continue };
            files.insert(module(inner), file);
        }
        let mut modules = Self { files, names: HashMap::new() };
        let paths: Vec<Vec<String>> = modules.files.keys().cloned().collect();
        for path in paths {
            let mut names = BTreeMap::new();
            for used in uses(&modules.files[&path].own) {
                if let Some(target) = modules.absolute(&path, &used.path) {
                    names.insert(used.name, target);
                }
            }
            modules.names.insert(path, names);
        }
        modules
    }

    /// Returns a path written in `module` as a path from the crate's root; `None` when it leads out of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut at = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            first => {
                at.push(first.to_owned());
                if !self.files.contains_key(&at) {
                    return None;
                }
            }
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|s| s == "super") {
            at.pop();
            rest = &rest[1..];
        }
        at.extend(rest.iter().cloned());
        Some(at)
    }

    /// Returns the file in which `path` is defined, through re-exports.
    fn file_of(&self, path: &[String]) -> Option<Vec<String>> {
        let mut path = path.to_vec();
        // A longer chain of re-exports is a cycle.
        for _ in 0..8 {
            let known = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
            let (module, rest) = path.split_at(known);
            let handed_on = rest.first().and_then(|name| self.names.get(module)?.get(name));
            match handed_on {
                Some(target) if target != &path => {
                    path = target.iter().chain(&rest[1..]).cloned().collect();
                }
                _ => return Some(module.to_vec()),
            }
        }
        None
    }

    fn edges(&self) -> BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> {
        let mut edges = BTreeMap::new();
        for (path, file) in &self.files {
            let mut to = BTreeSet::new();
            let used = uses(&file.own).into_iter().filter(|u| !u.handed_on).map(|u| u.path);
            for used in used.chain(paths(&file.own)) {
                let target = self.absolute(path, &used).and_then(|p| self.file_of(&p));
                to.extend(target.filter(|t| t != path));
            }
            edges.insert(path, to);
        }
        edges
    }
}

/// Returns the module of a file below `src/`.
fn module(file: &str) -> Vec<String> {
    let mut path: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// A name of a `use` declaration.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    path: Vec<String>,
    /// The local name.
    name: String,
    /// Whether it is a `pub use`, which others can import from.
    handed_on: bool,
}

/// Returns the `use` declarations: from `use` to the semicolon, and whether they re-export.
fn declarations(code: &str) -> Vec<(std::ops::Range<usize>, bool)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let handed_on = line.starts_with("pub");
        if !(line.is_empty() || handed_on || line.ends_with('{') || line.ends_with(';')) {
            continue;
        }
        if let Some(end) = code[at..].find(';') {
            found.push((at..at + end, handed_on));
        }
    }
    found
}

fn uses(code: &str) -> Vec<Use> {
    let mut found = Vec::new();
    for (range, handed_on) in declarations(code) {
        let tree: String = code[range.start + 4..range.end].split_whitespace().collect::<Vec<_>>().join(" ");
        expand(&[], &tree, handed_on, &mut found);
    }
    found
}

/// Expands `a::{b, c::d as e}`.
fn expand(prefix: &[String], tree: &str, handed_on: bool, found: &mut Vec<Use>) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let mut path = prefix.to_vec();
        path.extend(head.split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned));
        let inner = rest.trim_end().trim_end_matches('}');
        let inner = if rest.trim_end().ends_with('}') { &rest[..rest.trim_end().len() - 1] } else { inner };
        for part in split(inner) {
            expand(&path, part, handed_on, found);
        }
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (tree, name) = tree.split_once(" as ").map_or((tree, None), |(t, n)| (t, Some(n.trim().to_owned())));
    let mut path = prefix.to_vec();
    path.extend(tree.split("::").map(|s| s.trim().to_owned()).filter(|s| !s.is_empty() && s != "*"));
    if path.last().is_some_and(|s| s == "self") {
        path.pop();
    }
    if let Some(last) = path.last().cloned() {
        found.push(Use { name: name.unwrap_or(last), path, handed_on });
    }
}

/// Splits at commas outside braces.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0usize, 0, Vec::new());
    for (i, b) in text.bytes().enumerate() {
        match b {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// Returns paths in expressions and types: `crate::a::b`, `super::c`, `child::d`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let declared = declarations(code);
    for (at, _) in code.match_indices("::") {
        if declared.iter().any(|(range, _)| range.contains(&at)) {
            continue;
        }
        let head = code[..at].rfind(|c| !word(c)).map_or(0, |i| i + code[i..].chars().next().map_or(1, char::len_utf8));
        let first = &code[head..at];
        // The path of a visibility is not a use.
        if code[..head].ends_with("pub(in ") {
            continue;
        }
        // Only the first segment begins a path; types do not name a module.
        if first.is_empty() || code[..head].ends_with("::") || first.starts_with(char::is_uppercase) {
            continue;
        }
        let end = code[head..].find(|c| !word(c) && c != ':').map_or(code.len(), |n| head + n);
        found.push(code[head..end].split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect());
    }
    found
}

/// Returns the strongly connected components (Tarjan, with an explicit stack).
fn components<'m>(
    all: &[&'m Vec<String>],
    edges: &BTreeMap<&'m Vec<String>, BTreeSet<Vec<String>>>,
) -> Vec<Vec<&'m Vec<String>>> {
    let number: HashMap<&Vec<String>, usize> = all.iter().enumerate().map(|(i, p)| (*p, i)).collect();
    let next: Vec<Vec<usize>> =
        all.iter().map(|p| edges[*p].iter().filter_map(|t| number.get(t).copied()).collect()).collect();
    let (mut index, mut low) = (vec![usize::MAX; all.len()], vec![0; all.len()]);
    let (mut on_stack, mut stack, mut count, mut found) = (vec![false; all.len()], Vec::new(), 0, Vec::new());
    for root in 0..all.len() {
        if index[root] != usize::MAX {
            continue;
        }
        let mut work = vec![(root, 0)];
        while let Some((v, i)) = work.pop() {
            if i == 0 {
                (index[v], low[v]) = (count, count);
                count += 1;
                stack.push(v);
                on_stack[v] = true;
            } else {
                let child: usize = next[v][i - 1];
                low[v] = low[v].min(low[child]);
            }
            let mut i = i;
            while i < next[v].len() && index[next[v][i]] != usize::MAX {
                if on_stack[next[v][i]] {
                    low[v] = low[v].min(index[next[v][i]]);
                }
                i += 1;
            }
            if i < next[v].len() {
                work.push((v, i + 1));
                work.push((next[v][i], 0));
                continue;
            }
            if low[v] == index[v] {
                let from = stack.iter().rposition(|x| *x == v).unwrap_or(0);
                let component: Vec<usize> = stack.drain(from..).collect();
                component.iter().for_each(|x| on_stack[*x] = false);
                found.push(component.iter().map(|x| all[*x]).collect());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn use_trees() {
        let code = "use crate::a::{self, B, c::{D as E, f}};\npub use super::g::H;\nuse std::io;\n";
        let found: Vec<(String, String, bool)> =
            uses(code).into_iter().map(|u| (u.path.join("::"), u.name, u.handed_on)).collect();
        let want = [
            ("crate::a", "a", false),
            ("crate::a::B", "B", false),
            ("crate::a::c::D", "E", false),
            ("crate::a::c::f", "f", false),
            ("super::g::H", "H", true),
            ("std::io", "io", false),
        ];
        assert_eq!(found, want.map(|(p, n, h)| (p.to_owned(), n.to_owned(), h)));
        assert_eq!(paths("let x = crate::a::b(Type::new(), child::f);"), [path("crate::a::b"), path("child::f")]);
        assert_eq!(paths("pub(in crate::a) fn f(x: crate::b::C) {}"), [path("crate::b::C")]);
    }

    #[test]
    fn circles_through_re_exports() {
        let file = |name: &str, text: &str| File {
            path: format!("crates/x/src/{name}"),
            krate: "x".to_owned(),
            text: text.to_owned(),
            code: text.to_owned(),
            own: text.to_owned(),
        };
        let tree = |files| Tree { root: std::path::PathBuf::new(), files, others: Vec::new() };
        // lib re-exports what a defines: b uses a, not lib, and a uses b.
        let circle = tree(vec![
            file("a.rs", "use crate::b::B;\npub struct A;\n"),
            file("b.rs", "pub struct B;\nfn f(a: crate::A) {}\n"),
            file("lib.rs", "mod a;\nmod b;\npub use a::A;\npub struct L;\n"),
        ]);
        assert_eq!(largest(&circle, "x"), ["crates/x/src/a.rs", "crates/x/src/b.rs"].map(str::to_owned));
        let line = tree(vec![
            file("a.rs", "use crate::b::B;\npub struct A;\n"),
            file("b.rs", "pub struct B;\n"),
            file("lib.rs", "mod a;\nmod b;\npub use a::A;\nfn f() { b::g() }\n"),
        ]);
        assert!(largest(&line, "x").is_empty());
        // A folder's file and its parts.
        let folder = tree(vec![
            file("p/mod.rs", "mod q;\npub struct P;\nfn f() { q::g(); }\n"),
            file("p/q.rs", "use super::P;\n"),
        ]);
        assert_eq!(largest(&folder, "x").len(), 2);
    }
}
