//! Extracts the user-visible strings of a source file from its tokens: macros and calls determine the kind of a string.
//! Otherwise a string with at least two words is a text.
use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::unquote::unquote;

/// The kind of a message. The order is that of the generated file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Error,
    Help,
    Log,
    Metric,
    Text,
}

impl Kind {
    /// Returns the word before a message in the generated file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Help => "help",
            Self::Log => "log",
            Self::Metric => "metric",
            Self::Text => "text",
        }
    }
}

/// A user-visible string.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserMessage {
    pub kind: Kind,
    /// The text on one line: line breaks are escaped.
    pub text: String,
}

/// The messages of one file.
#[derive(Debug, Default)]
pub struct FileMessages {
    pub messages: Vec<UserMessage>,
    /// Modules under `#[cfg(test)]` that have separate files.
    pub test_modules: Vec<String>,
}

/// Returns the messages of a file.
///
/// # Errors
/// The text is not Rust.
pub fn file(path: &str, text: &str) -> Result<FileMessages> {
    let tokens: TokenStream = text.parse().map_err(|e| anyhow!("not Rust: {e}"))?;
    let mut walk = Walk { file: FileMessages::default() };
    let kind = if path.contains("metrics") { Kind::Metric } else { Kind::Text };
    walk.stream(tokens, kind, Clap::No);
    Ok(walk.file)
}

/// Whether doc comments are help texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clap {
    No,
    /// Reading a struct with a derive macro of clap. A field with `subcommand` has no help.
    Fields,
    Variants,
}

/// The attributes of an item.
#[derive(Debug, Default)]
struct Attributes {
    docs: Vec<String>,
    /// Whether a derive macro of clap reads the docs of the item's parts.
    clap: bool,
    /// Whether it is a `Parser`: the docs of the item itself are help.
    parser: bool,
    hidden: bool,
    subcommand: bool,
}

struct Walk {
    file: FileMessages,
}

impl Walk {
    fn stream(&mut self, tokens: TokenStream, kind: Kind, clap: Clap) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut attributes = Attributes::default();
        let (mut inner, mut at) = (Clap::No, 0);
        while at < tokens.len() {
            if let Some((group, next)) = attribute(&tokens, at) {
                at = next;
                if is_test(&group) {
                    at = self.skip_item(&tokens, at);
                    attributes = Attributes::default();
                } else {
                    self.attribute(&group, &mut attributes);
                }
                continue;
            }
            match &tokens[at] {
                TokenTree::Ident(word) if word == "struct" || word == "enum" => {
                    if attributes.clap {
                        inner = if word == "struct" { Clap::Fields } else { Clap::Variants };
                    }
                    if attributes.parser {
                        self.docs(&attributes);
                    }
                }
                TokenTree::Ident(word) if word == "pub" => {
                    at += 1 + usize::from(is_parenthesis(tokens.get(at + 1)));
                    continue;
                }
                TokenTree::Group(group) => self.group(&tokens[..at], group, kind, (clap, inner)),
                TokenTree::Literal(literal) => self.literal(&literal.to_string(), kind),
                TokenTree::Punct(punct) if punct.as_char() == ';' => inner = Clap::No,
                _ => {}
            }
            if is_brace(&tokens[at]) {
                inner = Clap::No;
            }
            let shown = !attributes.hidden && !(attributes.subcommand && clap == Clap::Fields);
            if clap != Clap::No && shown {
                self.docs(&attributes);
            }
            attributes = Attributes::default();
            // Between an attribute of an item and its keyword there is at most a visibility, which was skipped.
            at += 1;
        }
    }

    /// Handles a group, depending on the name of the macro or function before it.
    fn group(&mut self, before: &[TokenTree], group: &Group, kind: Kind, (clap, inner): (Clap, Clap)) {
        let name = |from_end: usize| match before.len().checked_sub(from_end).map(|i| &before[i]) {
            Some(TokenTree::Ident(word)) => word.to_string(),
            _ => String::new(),
        };
        let is_macro = matches!(before.last(), Some(TokenTree::Punct(p)) if p.as_char() == '!');
        let kind = match (is_macro, group.delimiter()) {
            (true, _) => match name(2).as_str() {
                "trace" | "debug" | "info" | "warn" | "error" | "event" => return self.log(group),
                "bail" | "anyhow" | "ensure" => Kind::Error,
                "assert" | "assert_eq" | "assert_ne" | "debug_assert" | "debug_assert_eq" | "concat" | "env"
                | "include_str" | "option_env" => return,
                _ => kind,
            },
            (false, Delimiter::Parenthesis) => match name(1).as_str() {
                "context" | "with_context" | "Err" | "map_err" | "ok_or" | "ok_or_else" => Kind::Error,
                "about" | "help" | "long_help" | "after_help" => Kind::Help,
                "counter" | "counters" | "gauge" | "gauges" | "histogram" | "histograms" | "float_gauge"
                | "float_gauges" => Kind::Metric,
                // Their texts are for panics.
                "expect" | "expect_err" => return,
                _ => kind,
            },
            _ => kind,
        };
        let clap = match (group.delimiter(), inner) {
            (Delimiter::Brace, Clap::No) if clap == Clap::Variants => Clap::Fields,
            (Delimiter::Brace, inner) => inner,
            _ => Clap::No,
        };
        self.stream(group.stream(), kind, clap);
    }

    /// Handles a call of a log macro: the message is an argument that begins with a string.
    fn log(&mut self, group: &Group) {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        let mut starts = true;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Literal(literal) if starts => {
                    if let Some(text) = unquote(&literal.to_string()) {
                        self.push(Kind::Log, &text);
                    }
                }
                TokenTree::Literal(literal) => self.literal(&literal.to_string(), Kind::Log),
                TokenTree::Group(group) => self.group(&tokens[..at], group, Kind::Log, (Clap::No, Clap::No)),
                _ => {}
            }
            starts = matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
        }
    }

    fn attribute(&mut self, group: &Group, attributes: &mut Attributes) {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        let name = tokens.first().map(ToString::to_string).unwrap_or_default();
        match (name.as_str(), tokens.get(1), tokens.get(2)) {
            ("doc", _, Some(TokenTree::Literal(text))) => attributes.docs.extend(unquote(&text.to_string())),
            ("derive", Some(TokenTree::Group(macros)), _) => {
                let has = |name: &str| macros.stream().into_iter().any(|token| token.to_string() == name);
                attributes.parser |= has("Parser");
                attributes.clap |= ["Parser", "Args", "Subcommand", "ValueEnum"].into_iter().any(has);
            }
            ("error", Some(TokenTree::Group(arguments)), _) => {
                self.stream(arguments.stream(), Kind::Error, Clap::No);
            }
            ("arg" | "command" | "value" | "clap" | "group", Some(TokenTree::Group(arguments)), _) => {
                let words: Vec<TokenTree> = arguments.stream().into_iter().collect();
                let has = |name: &str| words.iter().any(|token| token.to_string() == name);
                attributes.hidden |= has("skip") || has("flatten") || has("hide");
                attributes.subcommand |= has("subcommand");
                for window in words.windows(3) {
                    let key = window[0].to_string();
                    if matches!(key.as_str(), "help" | "long_help" | "about" | "long_about" | "after_help")
                        && let Some(text) = unquote(&window[2].to_string())
                    {
                        self.push(Kind::Help, &text);
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the position after an item under `#[cfg(test)]`.
    fn skip_item(&mut self, tokens: &[TokenTree], mut at: usize) -> usize {
        let from = at;
        while at < tokens.len() {
            let is_end = matches!(&tokens[at], TokenTree::Punct(p) if matches!(p.as_char(), ';' | ','));
            if is_end
                && at >= from + 2
                && let [TokenTree::Ident(word), TokenTree::Ident(name)] = &tokens[at - 2..at]
                && word == "mod"
            {
                self.file.test_modules.push(name.to_string());
            }
            at += 1;
            if is_end || is_brace(&tokens[at - 1]) {
                break;
            }
        }
        at
    }

    fn docs(&mut self, attributes: &Attributes) {
        let mut paragraphs = vec![String::new()];
        for line in attributes.docs.iter().map(|line| line.trim()) {
            match paragraphs.last_mut() {
                Some(last) if !line.is_empty() => {
                    if !last.is_empty() {
                        last.push(' ');
                    }
                    last.push_str(line);
                }
                _ => paragraphs.push(String::new()),
            }
        }
        let text = paragraphs.join("\n\n");
        if !text.is_empty() {
            self.push(Kind::Help, &text);
        }
    }

    fn literal(&mut self, source: &str, kind: Kind) {
        if let Some(text) = unquote(source).filter(|text| is_sentence(text)) {
            self.push(kind, &text);
        }
    }

    fn push(&mut self, kind: Kind, text: &str) {
        let text = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
        self.file.messages.push(UserMessage { kind, text });
    }
}

/// Returns the group of an attribute that begins at `at`, and the position after it. Inner attributes are read as well.
fn attribute(tokens: &[TokenTree], at: usize) -> Option<(Group, usize)> {
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    let next = if is(at + 1, '!') { at + 2 } else { at + 1 };
    match tokens.get(next) {
        Some(TokenTree::Group(group)) if is(at, '#') && group.delimiter() == Delimiter::Bracket => {
            Some((group.clone(), next + 1))
        }
        _ => None,
    }
}

/// Reports whether an attribute is `#[test]`, or `#[cfg(test)]` with or without more conditions.
fn is_test(group: &Group) -> bool {
    let tokens: Vec<String> = group.stream().into_iter().map(|token| token.to_string()).collect();
    match tokens.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["test"] => true,
        ["cfg", condition] => {
            let words: Vec<&str> = condition.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            words.contains(&"test") && !words.contains(&"not")
        }
        _ => false,
    }
}

fn is_brace(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

fn is_parenthesis(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
}

/// Reports whether a string is more than a name, a path or a statement for another program: it has two adjacent words,
/// or a word next to a placeholder.
fn is_sentence(text: &str) -> bool {
    if text.starts_with(['-', '<']) || text.lines().count() > 12 {
        return false;
    }
    let is_word = |word: &&str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        word.len() > 1
            && word.chars().all(|c| c.is_alphabetic() || "'-/.".contains(c))
            && word.contains(char::is_lowercase)
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    words.len() > 1 && words.iter().filter(|word| is_word(word)).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let file = file("src/x.rs", text).unwrap();
        file.messages.iter().map(|m| format!("{}: {}", m.kind.as_str(), m.text)).collect()
    }

    #[test]
    fn log_lines_errors_and_texts() {
        let text = r#"
            fn f() -> anyhow::Result<()> {
                tracing::warn!(%error, reason = "x", "registering {} failed", name("a b c"));
                info!("leads");
                let out = read(path).with_context(|| format!("read the file {path}"))?;
                bail!("expected a number, got {out:?}");
                x.map_err(|e| format!("no such file: {e}"))?;
                let message = format!("Created pod: {name}");
                json!({"kind": "Pod", "message": "two words"})
            }
            #[derive(Debug, thiserror::Error)]
            enum E { #[error("the store is closed: {0}")] Closed(String) }
        "#;
        assert_eq!(
            found(text),
            [
                "log: registering {} failed",
                "log: leads",
                "error: read the file {path}",
                "error: expected a number, got {out:?}",
                "error: no such file: {e}",
                "text: Created pod: {name}",
                "text: two words",
                "error: the store is closed: {0}",
            ]
        );
    }

    #[test]
    fn docs_of_command_lines_are_help() {
        let text = r#"
            /// Not shown.
            pub struct Other { /** Not shown. */ pub a: u8 }
            /// Kubernetes in one binary.
            #[derive(Parser, Debug)]
            #[command(about = "What it is", name = "x y")]
            pub struct Cli {
                /// Directory of all
                /// data.
                ///
                /// It must exist.
                #[arg(long)]
                pub data_dir: PathBuf,
                /// Not shown.
                #[command(subcommand)]
                pub command: Command,
            }
            /// Not shown.
            #[derive(Subcommand)]
            enum Command {
                /// Run it.
                #[command(subcommand)]
                Run { /** Times. */ count: u8 },
                /// Not shown.
                #[command(flatten)]
                More(More),
            }
        "#;
        assert_eq!(
            found(text),
            [
                "help: What it is",
                "help: Kubernetes in one binary.",
                "help: Directory of all data.\\n\\nIt must exist.",
                "help: Run it.",
                "help: Times.",
            ]
        );
    }

    #[test]
    fn tests_and_names_are_no_messages() {
        let text = r#"
            #[cfg(test)]
            mod sample;
            #[allow(x, reason = "for a test")]
            fn f() { g("spec.replicas", "-A chain -j RETURN", "Pod").expect("cannot fail here"); }
            #[cfg(all(test, unix))]
            mod tests { fn f() { warn!("in a test") } }
            #[cfg(not(test))]
            fn g() { warn!("not in a test") }
        "#;
        let file = file("src/x.rs", text).unwrap();
        assert_eq!(file.test_modules, ["sample"]);
        assert_eq!(file.messages, [UserMessage { kind: Kind::Log, text: "not in a test".to_owned() }]);
    }
}
