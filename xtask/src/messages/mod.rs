//! `cargo xtask messages`: writes `facts/messages.txt`, the user-visible strings of the product by crate, so that a new
//! string is a line of a diff there. `cargo xtask lint` fails when the file differs from the sources.
mod extract;
pub mod unquote;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use extract::UserMessage;

/// The path of the generated file.
pub const PATH: &str = "facts/messages.txt";
const HEAD: &str = "\
# The strings that a user can see, by crate. Written by `cargo xtask messages`; edit the sources, then run it again.
# `error`: errors; `help`: command lines; `log`: log lines; `metric`: help of metrics; `text`: other sentences, such as
# events, conditions and Status messages, some of which are upstream's.
";
/// Crates that are not shipped.
const DEVELOPMENT: &[&str] = &["doubles", "features", "simulation"];

/// Writes the file.
pub fn run() -> Result<()> {
    let root = root()?;
    std::fs::write(root.join(PATH), render(&collect(&root)?)).context(PATH)
}

/// Fails when the file differs from what `run` would write.
pub fn check() -> Result<()> {
    let root = root()?;
    let found = std::fs::read_to_string(root.join(PATH)).context(PATH)?;
    let expected = render(&collect(&root)?);
    ensure!(
        found == expected,
        "{PATH} differs from the sources; run `cargo xtask messages` and commit the result\n{}",
        difference(&found, &expected)
    );
    Ok(())
}

/// Returns the messages in the text of the file, each with its crate.
pub fn read(text: &str) -> Vec<(&str, &str)> {
    let (mut krate, mut found) = ("", Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => krate = name,
            None => found.extend(line.split_once(": ").map(|(_, message)| (krate, message))),
        }
    }
    found
}

fn root() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository's root")?.to_owned())
}

/// The messages of each crate, sorted and without duplicates.
type Messages = BTreeMap<String, BTreeSet<UserMessage>>;

fn collect(root: &Path) -> Result<Messages> {
    let mut found = Messages::new();
    let mut sources = vec![("kelson".to_owned(), root.join("kelson/src"))];
    for entry in std::fs::read_dir(root.join("crates")).context("crates")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("src").is_dir() && !DEVELOPMENT.contains(&name.as_str()) {
            sources.push((name, entry.path().join("src")));
        }
    }
    for (krate, folder) in sources {
        let messages = folder_messages(&folder)?;
        if !messages.is_empty() {
            found.insert(krate, messages);
        }
    }
    Ok(found)
}

fn folder_messages(folder: &Path) -> Result<BTreeSet<UserMessage>> {
    let (mut found, mut tests) = (BTreeMap::new(), BTreeSet::new());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if matches!(name, "generated" | "generated.rs" | "tests" | "tests.rs" | "testing" | "testing.rs") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let file = extract::file(&path.to_string_lossy(), &text).with_context(|| path.display().to_string())?;
                let children = if matches!(name, "mod.rs" | "lib.rs" | "main.rs") {
                    folder.clone()
                } else {
                    path.with_extension("")
                };
                tests.extend(file.test_modules.iter().map(|module| children.join(module)));
                found.insert(path.with_extension(""), file.messages);
            }
        }
    }
    found.retain(|path, _| !path.ancestors().any(|path| tests.contains(path)));
    Ok(found.into_values().flatten().collect())
}

fn render(messages: &Messages) -> String {
    let mut text = HEAD.to_owned();
    for (krate, messages) in messages {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n[{krate}]");
        for message in messages {
            let _ = writeln!(text, "{}: {}", message.kind.as_str(), message.text);
        }
    }
    text
}

/// The maximum number of printed lines of a difference.
const SHOWN_MAX: usize = 20;

fn difference(found: &str, expected: &str) -> String {
    let (found, expected): (BTreeSet<&str>, BTreeSet<&str>) = (found.lines().collect(), expected.lines().collect());
    let gone = found.difference(&expected).map(|line| format!("-{line}"));
    let new = expected.difference(&found).map(|line| format!("+{line}"));
    gone.chain(new).take(SHOWN_MAX).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use extract::Kind;

    #[test]
    fn the_file_is_sorted_and_can_be_read() {
        let message = |kind, text: &str| UserMessage { kind, text: text.to_owned() };
        let messages = Messages::from([(
            "a".to_owned(),
            BTreeSet::from([message(Kind::Log, "x: y"), message(Kind::Error, "z"), message(Kind::Log, "b")]),
        )]);
        let text = render(&messages);
        assert!(text.ends_with("\n[a]\nerror: z\nlog: b\nlog: x: y\n"), "{text}");
        assert_eq!(read(&text), [("a", "z"), ("a", "b"), ("a", "x: y")]);
        assert_eq!(difference(&text, &text.replace("log: b", "log: c")), "-log: b\n+log: c");
    }

    #[test]
    fn modules_of_tests_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("lib.rs", "#[cfg(test)]\nmod sample;\nmod a;\n");
        write("sample.rs", "fn f() { warn!(\"of a sample\") }");
        write("a.rs", "#[cfg(test)]\nmod b;\nfn f() { warn!(\"of a\") }");
        write("a/b.rs", "fn f() { warn!(\"of b\") }");
        write("a/tests.rs", "fn f() { warn!(\"of tests\") }");
        let texts: Vec<String> = folder_messages(folder.path()).unwrap().into_iter().map(|m| m.text).collect();
        assert_eq!(texts, ["of a"]);
    }
}
