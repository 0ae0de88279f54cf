//! Rules and dashboards in `packaging/prometheus` name metrics that some crate has: a misspelt one shows nothing and alerts never.
use std::collections::BTreeSet;

use serde_json::Value;

use super::tree::Tree;

const DIR: &str = "packaging/prometheus/";
/// Words of PromQL that these files use.
const WORDS: &[&str] = &[
    "by",
    "histogram_quantile",
    "increase",
    "label_values",
    "max",
    "min",
    "min_over_time",
    "or",
    "rate",
    "sum",
    "topk",
];
/// The suffixes of a histogram's series.
const ENDINGS: &[&str] = &["_bucket", "_count", "_sum"];

/// Metrics that no crate has, and files without any.
pub fn faults(tree: &Tree) -> Vec<String> {
    let literals: BTreeSet<&str> =
        tree.code().filter(|file| file.krate != "xtask").flat_map(|file| file.text.split('"')).collect();
    let mut found = Vec::new();
    for path in tree.others.iter().filter(|path| path.starts_with(DIR)) {
        let text = tree.other(path).unwrap_or_default();
        let names: BTreeSet<String> = expressions(path, &text).iter().flat_map(|one| metrics(one)).collect();
        if names.is_empty() {
            found.push(format!("{path}: no metric is named"));
        }
        let unknown = names.iter().filter(|name| {
            let base = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
            !literals.contains(name.as_str()) && !base.is_some_and(|base| literals.contains(base))
        });
        found.extend(unknown.map(|name| format!("{path}: no crate has the metric {name}")));
    }
    found
}

/// The expressions of a file: values of `expr` and `query`.
fn expressions(path: &str, text: &str) -> Vec<String> {
    if path.ends_with(".json") {
        let mut all = Vec::new();
        of_json(&serde_json::from_str(text).unwrap_or_default(), &mut all);
        return all;
    }
    let mut all: Vec<String> = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().trim_start_matches("- ").strip_prefix("expr:"), inside) {
            (Some(rest), _) => {
                all.push(rest.trim().trim_start_matches('|').to_owned());
                inside = Some(indent);
            }
            (None, Some(from)) if indent > from => {
                if let Some(last) = all.last_mut() {
                    last.push_str(line);
                }
            }
            _ => inside = None,
        }
    }
    all
}

fn of_json(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "expr" || name == "query" && text.contains('(') => {
                        all.push(text.clone())
                    }
                    _ => of_json(field, all),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| of_json(item, all)),
        _ => {}
    }
}

/// Names of metrics in an expression.
fn metrics(expression: &str) -> Vec<String> {
    let mut plain = without(expression, '{', '}');
    plain = without(&plain, '[', ']');
    // What `by` groups by are labels.
    while let Some((before, after)) = plain.split_once(" by (") {
        let rest = after.split_once(')').map_or("", |(_, rest)| rest);
        plain = format!("{before} {rest}");
    }
    // `label_values(METRIC, LABEL)`
    if let Some((metric, _)) = plain.strip_prefix("label_values(").and_then(|rest| rest.split_once(',')) {
        plain = metric.to_owned();
    }
    let words = plain.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase()) && !WORDS.contains(word);
    words.filter(is_name).map(str::to_owned).collect()
}

/// The string without all between two characters.
fn without(text: &str, open: char, close: char) -> String {
    let mut depth = 0_usize;
    let mut kept = String::new();
    for c in text.chars() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth = depth.saturating_sub(1);
        } else if depth == 0 {
            kept.push(c);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_metrics_are_found() {
        let rows = [
            ("min by (instance, name) (a_seconds) < 14 * 24 * 3600", vec!["a_seconds"]),
            (
                "sum(rate(b_total{code=~\"5..\"}[5m])) / sum by (x) (rate(c_bucket[5m])) > 0.03",
                vec!["b_total", "c_bucket"],
            ),
            ("label_values(d_info{job=~\"a|b\"}, instance)", vec!["d_info"]),
            ("topk(10, max by (name) (e)) or histogram_quantile(0.99, f)", vec!["e", "f"]),
        ];
        for (text, want) in rows {
            assert_eq!(metrics(text), want, "{text}");
        }
        let yaml =
            "- alert: A\n  expr: |\n    one\n      / two\n  for: 5m\n- alert: B\n  expr: three > 0\n  labels: {}\n";
        let found: Vec<String> = expressions("a.yaml", yaml).iter().flat_map(|one| metrics(one)).collect();
        assert_eq!(found, ["one", "two", "three"]);
        let json = r#"{"panels": [{"targets": [{"expr": "four"}]}], "query": {"query": "label_values(five, x)"}, "other": {"query": "prometheus"}}"#;
        let mut found: Vec<String> = expressions("a.json", json).iter().flat_map(|one| metrics(one)).collect();
        found.sort();
        assert_eq!(found, ["five", "four"]);
    }
}
