//! Docs without content, and texts from other projects. `terms` has the unwanted words.
use super::ratchets::Measures;
use super::tree::Tree;

/// Suffixes of the serialized forms in upstream's compatibility fixtures.
const FIXTURE_ENDINGS: &[&str] = &[".pb", ".after_roundtrip.json", ".after_roundtrip.yaml", ".after_roundtrip.pb"];

/// Measures the number of docs without content.
pub fn measure(tree: &Tree, all: &mut Measures) {
    all.insert("docs.of_two_words".to_owned(), short_docs(tree).len());
}

/// Returns docs of one line with one or two words. One that only names the API field or the flag of an item is allowed,
/// since its meaning is documented there.
pub fn short_docs(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree.code() {
        let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
        let is_doc = |i: usize| lines.get(i).is_some_and(|l| l.starts_with("///"));
        for (i, line) in lines.iter().enumerate().filter(|(i, _)| is_doc(*i)) {
            let alone = !is_doc(i + 1) && (i == 0 || !is_doc(i - 1));
            let text = line.trim_start_matches('/').trim();
            if alone && text.split_whitespace().count() <= 2 && !names_its_source(text) {
                found.push(format!("{}:{}: {line}", file.path, i + 1));
            }
        }
    }
    found
}

/// Reports whether a doc is only a field's path such as `spec.replicas`, a flag such as `--cluster-domain`, or a type
/// such as `apps/v1` Deployment.
fn names_its_source(doc: &str) -> bool {
    let of_type = doc.strip_prefix('`').and_then(|d| d.split_once("` ")).filter(|(version, _)| version.contains("/v"));
    if of_type.is_some_and(|(_, kind)| kind.starts_with(char::is_uppercase)) {
        return true;
    }
    let span = doc.strip_prefix('`').and_then(|d| d.strip_suffix('.').unwrap_or(d).strip_suffix('`'));
    span.is_some_and(|s| {
        let words = |c: char| c.is_ascii_alphanumeric() || "._-[]*/".contains(c);
        s.chars().all(words) && (s.starts_with("--") || s.split('.').filter(|part| !part.is_empty()).count() > 1)
    })
}

/// Returns files that look like upstream's: fixtures by their names, sources by their copyright notice.
pub fn copied(tree: &Tree) -> Vec<String> {
    let fixture = |path: &&String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        FIXTURE_ENDINGS.iter().any(|e| name.ends_with(e)) || path.contains("testdata/HEAD")
    };
    let mut found: Vec<String> =
        tree.others.iter().filter(fixture).map(|p| format!("{p}: a fixture of upstream's")).collect();
    let notice = ["The Kubernetes", "Authors"].join(" ");
    let noticed = tree.files.iter().filter(|f| f.text.contains(&notice));
    found.extend(noticed.map(|f| format!("{}: carries upstream's notice", f.path)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_or_a_flag_is_a_source() {
        for doc in ["`spec.replicas`.", "`status.conditions[*].type`", "`--cluster-domain`.", "`apps/v1` Deployment."] {
            assert!(names_its_source(doc), "{doc}");
        }
        for doc in ["Metadata.", "`name`.", "The `spec.replicas`.", "`a b.c`.", "`Type::new`."] {
            assert!(!names_its_source(doc), "{doc}");
        }
    }
}
