//! ARCHITECTURE.md walks through the code by name: `room/`, `room/file`, `room/file::function`, `Type::function`, or
//! `room/file.rs function`. A name that is not there any more is a fault.
use super::tree::{File, Tree};

/// Names of ARCHITECTURE.md that the tree does not have.
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

/// What a span names: a file or folder, an item in it, or both.
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    /// The end of the path, without `.rs`; empty: anywhere.
    place: &'a str,
    item: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// `None` for a span that is of something else: a field of the API, a path on the host, a flag.
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
        // `file::Type::function` and `Type::function`.
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

/// Whether code has a function, a type or a variant of this name.
fn declares(code: &str, name: &str) -> bool {
    let kinds: &[&str] =
        if name.starts_with(char::is_uppercase) { &["struct ", "enum ", "trait ", "type ", "    "] } else { &["fn "] };
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    kinds.iter().any(|kind| {
        let wanted = format!("{kind}{name}");
        code.match_indices(&wanted).any(|(at, _)| ends(&code[at + wanted.len()..]))
    })
}

/// Code spans before the invariants, which name tests and have a rule of their own.
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
    fn what_code_declares() {
        assert!(declares("pub async fn run(self)", "run") && !declares("fn runs()", "run"));
        assert!(declares("pub enum Route {\n    Remote(x),", "Remote") && !declares("Remote::new", "Remote"));
    }
}
