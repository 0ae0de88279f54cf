//! Label and field selectors: the query-string form, the object form, and matching. Each resource decides which fields
//! it supports.
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The error of an invalid selector. The message is for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(pub String);

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for SelectorError {}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The value is in the list.
    In,
    /// The value is not in the list, or the key is absent.
    NotIn,
    /// The key is present.
    Exists,
    /// The key is absent.
    DoesNotExist,
    /// The value is an integer greater than the given one.
    Gt,
    /// The value is an integer less than the given one.
    Lt,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    /// The key of the label.
    pub key: String,
    /// The comparison of the label's value with `values`.
    pub operator: Operator,
    /// The values: one for `Gt` and `Lt`, any number for `In` and `NotIn`, none for `Exists` and `DoesNotExist`.
    pub values: Vec<String>,
}

impl LabelRequirement {
    /// Returns whether the value of the label satisfies the requirement. `None` means that the object lacks the label.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.iter().any(|x| x == v)),
            Operator::NotIn => value.is_none_or(|v| !self.values.iter().any(|x| x == v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt | Operator::Lt => {
                let (Some(have), Some(want)) = (
                    value.and_then(|v| v.parse::<i64>().ok()),
                    self.values.first().and_then(|v| v.parse::<i64>().ok()),
                ) else {
                    return false;
                };
                if self.operator == Operator::Gt { have > want } else { have < want }
            }
        }
    }
}

/// A label selector: requirements that must all match. The empty selector matches every object. It is the common form
/// of the query string (`a=b,c in (d,e)`), of `metav1.LabelSelector` and of the selector maps of Services, so that
/// matching is the same for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// The requirements. All must match.
    pub requirements: Vec<LabelRequirement>,
    /// Whether the selector matches no object (a nil `metav1.LabelSelector`).
    pub nothing: bool,
}

impl LabelSelector {
    /// Creates a selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }
    /// Creates a selector that matches no object.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }
    /// Creates a selector of equality for every entry of a map, such as the selector of a Service or
    /// ReplicationController.
    pub fn from_map(map: &BTreeMap<String, String>) -> Self {
        let requirements = map
            .iter()
            .map(|(k, v)| LabelRequirement { key: k.clone(), operator: Operator::In, values: vec![v.clone()] })
            .collect();
        Self { requirements, nothing: false }
    }
    /// Returns whether the selector matches every object.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }
    /// Matches labels by a lookup function, for any representation of labels.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }
    /// Returns whether the selector matches a label map.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|k| labels.get(k).map(String::as_str))
    }
}

impl fmt::Display for LabelSelector {
    /// Formats the query-string form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let v = r.values.join(",");
            match (r.operator, r.values.len()) {
                (Operator::In, 1) => write!(f, "{}={v}", r.key)?,
                (Operator::NotIn, 1) => write!(f, "{}!={v}", r.key)?,
                (Operator::In, _) => write!(f, "{} in ({v})", r.key)?,
                (Operator::NotIn, _) => write!(f, "{} notin ({v})", r.key)?,
                (Operator::Exists, _) => f.write_str(&r.key)?,
                (Operator::DoesNotExist, _) => write!(f, "!{}", r.key)?,
                (Operator::Gt, _) => write!(f, "{}>{v}", r.key)?,
                (Operator::Lt, _) => write!(f, "{}<{v}", r.key)?,
            }
        }
        Ok(())
    }
}

/// A `metav1.LabelSelector`, the object form of a label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorSpec {
    /// The labels that must be present with exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// The requirements that must match in addition to `match_labels`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// One entry of `matchExpressions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorRequirement {
    /// The key of the label.
    pub key: String,
    /// The operator: `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values of the requirement; empty for `Exists` and `DoesNotExist`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl LabelSelectorSpec {
    /// Converts the selector to the form for matching. An empty spec matches every object; a missing spec (`None` at
    /// the caller) must match nothing.
    pub fn selector(&self) -> Result<LabelSelector, SelectorError> {
        let mut s = LabelSelector::from_map(&self.match_labels);
        for e in &self.match_expressions {
            let operator = match e.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                "Gt" => Operator::Gt,
                "Lt" => Operator::Lt,
                other => {
                    return Err(SelectorError(format!("{other:?} is not a valid label selector operator")));
                }
            };
            s.requirements.push(LabelRequirement { key: e.key.clone(), operator, values: e.values.clone() });
        }
        Ok(s)
    }
}

/// One requirement on one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    /// The path of the field, such as `spec.nodeName`.
    pub field: String,
    /// The value to compare with.
    pub value: String,
    /// Whether the operator is `!=` instead of `=`.
    pub negated: bool,
}

/// A field selector: requirements that must all match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector(pub Vec<FieldRequirement>);

impl FieldSelector {
    /// Parses `a=b,c!=d,e==f` with the escapes `\,`, `\=` and `\\`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut out = Vec::new();
        for term in split_unescaped(text, ',') {
            if term.is_empty() {
                continue;
            }
            let split = split_term(&term);
            let (field, negated, value) =
                split.ok_or_else(|| SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'")))?;
            out.push(FieldRequirement { field: field.to_owned(), value: unescape(value)?, negated });
        }
        Ok(Self(out))
    }
    /// Returns whether the selector matches every object.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
    /// Matches fields by a lookup function. An absent field counts as the empty string.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|r| (lookup(&r.field).unwrap_or("") == r.value) != r.negated)
    }
    /// Returns the value that an `=` requirement demands for `field`.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.field == field && !r.negated).map(|r| r.value.as_str())
    }
}

/// Splits a term at its first operator.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    term.char_indices().find_map(|(at, _)| {
        let (field, rest) = term.split_at(at);
        let operators = [("!=", true), ("==", false), ("=", false)];
        operators.iter().find_map(|(operator, negated)| Some((field, *negated, rest.strip_prefix(operator)?)))
    })
}

fn split_unescaped(text: &str, separator: char) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == separator && !escaped {
            out.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = out.last_mut() {
            last.push(c);
        }
    }
    out
}

fn unescape(v: &str) -> Result<String, SelectorError> {
    let wrong = |why: String| SelectorError(format!("invalid field selector: {why}"));
    let mut out = String::with_capacity(v.len());
    let mut chars = v.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(e @ ('\\' | ',' | '=')) => out.push(e),
                Some(e) => return Err(wrong(format!("invalid escape sequence: \\{e}"))),
                None => return Err(wrong("invalid escape sequence: \\".to_owned())),
            },
            // Upstream prints the character as a number.
            '=' | ',' => return Err(wrong(format!("unescaped character in value: {}", u32::from(c)))),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn label_selectors() {
        let l = labels(&[("app", "web"), ("tier", "1"), ("n", "5")]);
        for (s, want) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app!=web", false),
            ("x!=y", true),
            ("app in (a, web)", true),
            ("app notin (a,b)", true),
            ("app", true),
            ("!app", false),
            ("!x", true),
            ("n>4", true),
            ("n<5", false),
            ("app=web,tier=1", true),
            ("app=web,tier=2", false),
            ("x in ()", false),
            ("app=", false),
        ] {
            assert_eq!(LabelSelector::parse(s).unwrap().matches(&l), want, "{s}");
        }
        for bad in ["=a", "app in", "app in (a", "a b", "app=web,", "-a=b", "a=-b", "n>x", ","] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(LabelSelector::parse("a in (c,b), d=e,!f").unwrap().to_string(), "a in (b,c),d=e,!f");
    }

    #[test]
    fn field_selectors() {
        let s = FieldSelector::parse("spec.nodeName=n1,status.phase!=Failed").unwrap();
        assert!(s.matches_with(|f| (f == "spec.nodeName").then_some("n1")));
        assert!(!s.matches_with(|_| Some("Failed")));
        assert_eq!(s.exact("spec.nodeName"), Some("n1"));
        assert_eq!(FieldSelector::parse(r"a=b\,c").unwrap().0[0].value, "b,c");
        for (text, why) in [
            ("abc", "invalid selector: 'abc'; can't understand 'abc'"),
            ("a===b", "invalid field selector: unescaped character in value: 61"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
            (r"a=\b", r"invalid field selector: invalid escape sequence: \b"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().0, why, "{text}");
        }
        assert_eq!(FieldSelector::parse("a!b=c").unwrap().0[0].field, "a!b");
    }
}
