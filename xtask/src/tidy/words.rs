//! Words: invented nouns, phrases that only their writer understands, docs that say nothing, and text of others.
use super::ratchets::Measures;
use super::tree::Tree;

/// Words that have a better one, one a line: `WORD -> BETTER`. Those in capitals or camel case are looked for in code, the
/// others in comments, docs and text files, whatever their case.
const LIST: &str = "xtask/words.txt";
/// Suffixes of the serialised forms that upstream's compatibility fixtures have.
const FIXTURE_ENDINGS: &[&str] = &[".pb", ".after_roundtrip.json", ".after_roundtrip.yaml", ".after_roundtrip.pb"];

/// How many banned words and empty docs there are.
pub fn measure(tree: &Tree, all: &mut Measures) {
    all.insert("words.banned".to_owned(), banned(tree).len());
    all.insert("docs.of_two_words".to_owned(), short_docs(tree).len());
}

/// Every use of a banned word.
pub fn banned(tree: &Tree) -> Vec<String> {
    let list = tree.other(LIST).unwrap_or_default();
    let pairs: Vec<(&str, &str)> =
        list.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(" -> ")).collect();
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|f| !f.is_generated() && !f.path.starts_with("xtask/src/tidy/")) {
        for (i, (line, code)) in file.text.lines().zip(file.code.lines()).enumerate() {
            for (word, better) in &pairs {
                let there = if word.starts_with(char::is_uppercase) {
                    has(code, word)
                } else {
                    has(&line.to_lowercase(), word)
                };
                if there {
                    found.push(format!("{}:{}: {word:?}: {better}", file.path, i + 1));
                }
            }
        }
    }
    found
}

/// Whether the word is there whole.
fn has(line: &str, word: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    line.match_indices(word)
        .any(|(at, _)| edge(line[..at].chars().next_back()) && edge(line[at + word.len()..].chars().next()))
}

/// Docs of one line and one or two words. One that names the API field or the flag behind an item says where its meaning is
/// written down, which is what a reader of a view or an option wants to know.
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

/// A field's path such as `spec.replicas`, a flag such as `--cluster-domain`, or a type such as `apps/v1` Deployment, and
/// nothing else.
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

/// Files that look like upstream's: fixtures by their names, sources by their owner's notice.
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

    #[test]
    fn whole_words() {
        assert!(has("a told b", "told") && has("told", "told") && has("x.Told(", "Told"));
        assert!(!has("untold", "told") && !has("told_at", "told"));
    }
}
