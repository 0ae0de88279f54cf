//! `docs/reference/metrics.md`: the metrics that the sources declare, by crate. `cargo xtask messages` writes it and `cargo xtask lint`
//! compares it, as with `facts/messages.txt`. The other pages of the reference are compared by the tests of the binary, which knows its
//! command line.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, anyhow, ensure};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::messages::unquote::unquote;
use crate::tidy::tree::Tree;

const PATH: &str = "docs/reference/metrics.md";
const HEAD: &str = "\
# Metrics

Written from the sources by `cargo xtask messages`; `cargo xtask lint` compares it. Names and labels are upstream's where upstream has the metric; names
that begin with `kelson_` are our own. A part of a name in braces is one of several words. Labels that the code computes are shown as `…`. Which
port serves which component is in [ports and files](ports.md); all components of one process share the `process_` metrics.

Metrics of containers (`container_…`, `/metrics/cadvisor`) and of pods (`/metrics/resource`) have upstream's names; they are written without a
declaration and are not in these tables.
";
/// Crates of which nothing ships.
const DEVELOPMENT: &[&str] = &["doubles", "features", "simulation", "tests", "bench", "xtask", "fuzz"];
/// Functions that declare a metric, and its type.
const DECLARATIONS: &[(&str, &str)] = &[
    ("counter", "counter"),
    ("counters", "counter"),
    ("gauge", "gauge"),
    ("gauges", "gauge"),
    ("float_gauge", "gauge"),
    ("float_gauges", "gauge"),
    ("histogram", "histogram"),
    ("histograms", "histogram"),
];

/// A metric as it is declared.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    name: String,
    kind: &'static str,
    labels: String,
    help: String,
}

/// Writes the page.
pub fn run() -> Result<()> {
    let tree = Tree::read()?;
    std::fs::write(tree.root.join(PATH), render(&collect(&tree)?)).context(PATH)
}

/// Fails when the page is not what `run` would write.
pub fn check() -> Result<()> {
    let tree = Tree::read()?;
    let expected = render(&collect(&tree)?);
    let found = tree.other(PATH).unwrap_or_default();
    ensure!(found == expected, "{PATH} differs from the sources; run `cargo xtask messages` and commit the result");
    Ok(())
}

fn collect(tree: &Tree) -> Result<BTreeMap<String, BTreeSet<Metric>>> {
    let mut found = BTreeMap::<String, BTreeSet<Metric>>::new();
    for file in tree.code().filter(|f| !DEVELOPMENT.contains(&f.krate.as_str())) {
        let own = file.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let tokens: TokenStream = own.parse().map_err(|e| anyhow!("{}: not Rust: {e}", file.path))?;
        let mut metrics = BTreeSet::new();
        declared(tokens, &mut metrics);
        if !metrics.is_empty() {
            found.entry(file.krate.clone()).or_default().extend(metrics);
        }
    }
    Ok(found)
}

fn declared(tokens: TokenStream, found: &mut BTreeSet<Metric>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        if let (Delimiter::Parenthesis, Some(TokenTree::Ident(word))) =
            (group.delimiter(), at.checked_sub(1).map(|i| &tokens[i]))
        {
            let kind = DECLARATIONS.iter().find(|(name, _)| word == name).map(|(_, kind)| *kind);
            found.extend(kind.and_then(|kind| metric(kind, group.stream())));
        }
        declared(group.stream(), found);
    }
}

/// The metric that a call declares by its arguments: a name, a help text, labels.
fn metric(kind: &'static str, arguments: TokenStream) -> Option<Metric> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let is_comma = |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
    let mut arguments = tokens.split(is_comma);
    let name = strings(arguments.next()?).into_iter().next()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_:{}".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return None;
    }
    let help = strings(arguments.next()?).into_iter().next().unwrap_or_else(|| "…".to_owned());
    let labels = match arguments.next() {
        None | Some([]) => String::new(),
        Some(labels) => {
            let names = strings(labels);
            let is_list =
                matches!(labels, [TokenTree::Punct(_), TokenTree::Group(g)] if g.delimiter() == Delimiter::Bracket);
            let is_bounds = kind == "histogram" && names.is_empty();
            match (is_list, is_bounds) {
                (_, true) => String::new(),
                (true, _) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
                (false, _) => "…".to_owned(),
            }
        }
    };
    Some(Metric { name, kind, labels, help })
}

/// The string literals of an argument, those in its groups included.
fn strings(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Literal(literal) => found.extend(unquote(&literal.to_string())),
            TokenTree::Group(group) => found.extend(strings(&group.stream().into_iter().collect::<Vec<_>>())),
            _ => {}
        }
    }
    found
}

fn render(found: &BTreeMap<String, BTreeSet<Metric>>) -> String {
    let mut text = HEAD.to_owned();
    for (krate, metrics) in found {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n## {krate}\n\n| metric | type | labels | meaning |\n|---|---|---|---|");
        for metric in metrics {
            let help = metric.help.replace('|', "\\|").replace('\n', " ");
            let _ = writeln!(text, "| `{}` | {} | {} | {help} |", metric.name, metric.kind, metric.labels);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read() {
        let code = r#"
            fn f(r: &Registry) {
                let a = r.counter("a_total", "Things that happened.");
                let b = r.histograms("b_seconds", "Time.", &["verb", "code"], &[0.5, 1.0]);
                let c = r.histogram(
                    &format!("kubelet_{what}_seconds"),
                    help,
                    &exponential_buckets(0.1, 2.0, 3),
                );
                f.gauge("d", "Depth.").sample(&[("queue", "active")], 3.0);
                let e = r.gauges("e", "E.", LABELS);
                g.counter(1, 2);
            }"#;
        let mut found = BTreeSet::new();
        declared(code.parse().unwrap(), &mut found);
        let rows: Vec<String> =
            found.iter().map(|m| format!("{} {} [{}] {}", m.kind, m.name, m.labels, m.help)).collect();
        assert_eq!(
            rows,
            [
                "counter a_total [] Things that happened.",
                "histogram b_seconds [`verb`, `code`] Time.",
                "gauge d [] Depth.",
                "gauge e […] E.",
                "histogram kubelet_{what}_seconds [] …",
            ]
        );
    }
}
