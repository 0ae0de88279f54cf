//! ARCHITECTURE.md walks through the code by name: `room/`, `room/file`, `room/file::function`, `Type::function`, or
//! `room/file.rs function`. A missing name is an error, and so is a step of a walk that no previous step calls.
use super::tree::{File, Tree};

/// Returns names in ARCHITECTURE.md that the tree does not have.
pub fn faults(tree: &Tree) -> Vec<String> {
    let text = tree.other("ARCHITECTURE.md").unwrap_or_default();
    let mut found: Vec<String> = spans(&text)
        .filter_map(|span| {
            let named = Named::read(span)?;
            let files: Vec<&File> = tree.files.iter().filter(|f| named.is_in(&f.path)).collect();
            let why = match named.item {
                _ if files.is_empty() => "no such file or folder",
                Some(item) if !files.iter().any(|f| declares(&f.code, item)) => "no such function or type there",
                _ => return None,
            };
            Some(format!("ARCHITECTURE.md: `{span}`: {why}"))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns steps of the walks that no previous step calls. A walk is a paragraph with arrows; after a step that is not
/// our code (the store, a queue, another process) it begins again.
pub fn order(tree: &Tree) -> Vec<String> {
    let text = tree.other("ARCHITECTURE.md").unwrap_or_default();
    let text = text.split("\n## Invariants").next().unwrap_or_default();
    let mut found = Vec::new();
    for walk in text.split("\n\n").filter(|p| p.starts_with("**") && p.contains('→')) {
        let mut before: Vec<&File> = Vec::new();
        for step in walk.split('→') {
            let named: Vec<(&str, &str, Vec<&File>)> =
                step.split('`').skip(1).step_by(2).filter_map(|span| called(tree, span)).collect();
            if named.is_empty() {
                before.clear();
            }
            for (span, item, files) in named {
                if !before.is_empty() && !before.iter().any(|f| uses(&f.own, item)) {
                    let walk = walk.split("**").nth(1).unwrap_or_default();
                    found.push(format!("ARCHITECTURE.md: {walk}: `{span}` is called by no step before it"));
                }
                before.extend(files);
            }
        }
    }
    found
}

/// Returns the function that a span names, and the files that have it.
fn called<'a>(tree: &'a Tree, span: &'a str) -> Option<(&'a str, &'a str, Vec<&'a File>)> {
    let named = Named::read(span)?;
    let item = named.item.filter(|i| !i.starts_with(char::is_uppercase))?;
    let files: Vec<&File> = tree.code().filter(|f| named.is_in(&f.path) && declares(&f.code, item)).collect();
    (!files.is_empty()).then_some((span, item, files))
}

/// Reports whether code uses a function with this name, besides declaring one.
fn uses(code: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let (head, rest) = (&code[..at], &code[at + name.len()..]);
        !head.ends_with(word) && !rest.starts_with(word) && !head.ends_with("fn ")
    })
}

/// The file or folder that a span names, an item in it, or both.
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    /// The end of the path, without `.rs`; empty matches any path.
    place: &'a str,
    item: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Parses a span; `None` for one that names something else: a field of the API, a path on the host, a flag.
    fn read(span: &'a str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_/:. ".contains(c);
        if !span.chars().all(plain) || span.starts_with('/') || span.contains("..") {
            return None;
        }
        let (place, item) = match (span.split_once(".rs "), span.rsplit_once("::")) {
            (Some((place, items)), _) => (place, Some(items.rsplit("::").next().unwrap_or(items))),
            (None, Some((before, item))) => (before, Some(item)),
            (None, None) if span.ends_with(".rs") || span.ends_with('/') => (span, None),
            _ => return None,
        };
        // Both `file::Type::function` and `Type::function`.
        let place = place.rsplit_once("::").map_or(place, |(place, _)| place);
        let place = if place.starts_with(char::is_uppercase) { "" } else { place };
        let place = place.trim_end_matches(".rs").trim_end_matches('/');
        item.is_none_or(|i| !i.contains(' ')).then_some(Self { place, item })
    }

    fn is_in(&self, path: &str) -> bool {
        let path = format!("/{}", path.trim_end_matches(".rs"));
        self.place.is_empty()
            || path.ends_with(&format!("/{}", self.place))
            || path.contains(&format!("/{}/", self.place))
    }
}

/// Reports whether code has a function, a type or a variant with this name.
fn declares(code: &str, name: &str) -> bool {
    let kinds: &[&str] =
        if name.starts_with(char::is_uppercase) { &["struct ", "enum ", "trait ", "type ", "    "] } else { &["fn "] };
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    kinds.iter().any(|kind| {
        let wanted = format!("{kind}{name}");
        code.match_indices(&wanted).any(|(at, _)| ends(&code[at + wanted.len()..]))
    })
}

/// Returns code spans before the invariants, which name tests and have a separate rule.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("\n## Invariants").next().unwrap_or_default();
    let mut fenced = false;
    let lines = text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    });
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spans_name() {
        for (span, place, item) in [
            ("write/create::create", "write/create", Some("create")),
            ("read/watch::State::next", "read/watch", Some("next")),
            ("Committer::update", "", Some("update")),
            ("worker/sync.rs sync", "worker/sync", Some("sync")),
            ("certs/serving.rs ServingCertificate::run", "certs/serving", Some("run")),
            ("pods/", "pods", None),
            ("pod.rs", "pod", None),
        ] {
            assert_eq!(Named::read(span), Some(Named { place, item }), "{span}");
        }
        for span in ["/run/kelson", "spec.replicas", "--flag", "containers", "DIR/kubelet/manifests", "a, b"] {
            assert_eq!(Named::read(span), None, "{span}");
        }
    }

    #[test]
    fn what_code_uses() {
        assert!(uses("self.next(x)", "next") && uses(".map(next)", "next") && uses("Framer::next::<T>()", "next"));
        assert!(!uses("fn next(self)", "next") && !uses("next_bytes()", "next") && !uses("the_next()", "next"));
    }

    #[test]
    fn what_code_declares() {
        assert!(declares("pub async fn run(self)", "run") && !declares("fn runs()", "run"));
        assert!(declares("pub enum Route {\n    Remote(x),", "Remote") && !declares("Remote::new", "Remote"));
    }
}
