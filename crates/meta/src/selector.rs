//! Label and field selectors: query-string form and object form, and matching. Which fields may be selected is the
//! resource's business.
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a selector string is wrong; the message is for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(pub String);

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for SelectorError {}

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Value is one of these.
    In,
    /// Value is none of these, or the key is absent.
    NotIn,
    /// Key is present.
    Exists,
    /// Key is absent.
    DoesNotExist,
    /// Integer value is greater.
    Gt,
    /// Integer value is less.
    Lt,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// How the label's value is compared with `values`.
    pub operator: Operator,
    /// One for `Gt` and `Lt`, several for `In` and `NotIn`, none for `Exists` and `DoesNotExist`.
    pub values: Vec<String>,
}

impl LabelRequirement {
    /// Whether `value` (the label's, if the object has it) satisfies this.
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

/// A conjunction of label requirements; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// All must hold.
    pub requirements: Vec<LabelRequirement>,
    /// Matches no object at all (a nil `metav1.LabelSelector`).
    pub nothing: bool,
}

impl LabelSelector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }
    /// Matches no object.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }
    /// Equality on every entry of a map (a Service's or ReplicationController's selector).
    pub fn from_map(map: &BTreeMap<String, String>) -> Self {
        let requirements = map
            .iter()
            .map(|(k, v)| LabelRequirement { key: k.clone(), operator: Operator::In, values: vec![v.clone()] })
            .collect();
        Self { requirements, nothing: false }
    }
    /// Whether it matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }
    /// Matches by a lookup function, for label sets of any representation.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(lookup(&r.key)))
    }
    /// Matches a label map.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|k| labels.get(k).map(String::as_str))
    }
}

impl fmt::Display for LabelSelector {
    /// The query-string form.
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

/// `metav1.LabelSelector`, the object form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorSpec {
    /// Labels that must be there with just these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that must hold besides `match_labels`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// One entry of `matchExpressions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorRequirement {
    /// The label's key.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`.
    pub operator: String,
    /// As many as the operator takes; none for `Exists` and `DoesNotExist`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl LabelSelectorSpec {
    /// The matching form. An empty spec matches everything; a missing one (`None` at the caller) must match nothing.
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
    /// Field path such as `spec.nodeName`.
    pub field: String,
    /// Value to compare with.
    pub value: String,
    /// `!=` rather than `=`.
    pub negated: bool,
}

/// A conjunction of field requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector(pub Vec<FieldRequirement>);

impl FieldSelector {
    /// Reads `a=b,c!=d,e==f` with `\,`, `\=` and `\\` escapes.
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
    /// Whether it matches everything.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
    /// Matches by a lookup; an absent field reads as the empty string.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|r| (lookup(&r.field).unwrap_or("") == r.value) != r.negated)
    }
    /// The value demanded for `field` by an `=` requirement.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.field == field && !r.negated).map(|r| r.value.as_str())
    }
}

/// The first operator parts a term, whatever stands before it.
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
            // Upstream names the character by its number.
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
