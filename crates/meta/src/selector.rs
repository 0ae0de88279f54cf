//! Label and field selectors: query-string form and object form, and matching. Which fields may be selected is the
//! resource's business.
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::{is_label_value, is_qualified_name};

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
    /// Reads the query-string form: `a=b,c!=d,e in (f,g),h,!i,j>1`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut p = Parser { rest: text };
        let mut requirements = Vec::new();
        p.skip();
        while !p.rest.is_empty() {
            requirements.push(p.requirement()?);
            p.skip();
            if p.rest.is_empty() {
                break;
            }
            if !p.eat(",") {
                return Err(p.fail("',' or 'end of string'"));
            }
            p.skip();
            if p.rest.is_empty() {
                return Err(p.fail("identifier after ','"));
            }
        }
        for r in &requirements {
            validate(r)?;
        }
        Ok(Self { requirements, nothing: false })
    }
}

fn validate(r: &LabelRequirement) -> Result<(), SelectorError> {
    if let Err(e) = is_qualified_name(&r.key) {
        return Err(SelectorError(format!("key: Invalid value: {:?}: {}", r.key, e.join("; "))));
    }
    for (i, v) in r.values.iter().enumerate() {
        if matches!(r.operator, Operator::Gt | Operator::Lt) {
            if v.parse::<i64>().is_err() {
                let m = "for 'Gt', 'Lt' operators, the value must be an integer";
                return Err(SelectorError(format!("values[{i}]: Invalid value: {v:?}: {m}")));
            }
        } else if let Err(e) = is_label_value(v) {
            return Err(SelectorError(format!("values[{i}][{}]: Invalid value: {v:?}: {}", r.key, e.join("; "))));
        }
    }
    Ok(())
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }
    fn eat(&mut self, t: &str) -> bool {
        match self.rest.strip_prefix(t) {
            Some(r) => {
                self.rest = r;
                true
            }
            None => false,
        }
    }
    fn fail(&self, expected: &str) -> SelectorError {
        let found: String = self.rest.chars().take(32).collect();
        SelectorError(format!("unable to parse requirement: found '{found}', expected: {expected}"))
    }
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| c.is_whitespace() || "=!(),<>".contains(c)).unwrap_or(self.rest.len());
        let (w, r) = self.rest.split_at(end);
        self.rest = r;
        w
    }
    fn requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        if self.eat("!") {
            self.skip();
            let key = self.word();
            if key.is_empty() {
                return Err(self.fail("identifier"));
            }
            return Ok(LabelRequirement { key: key.into(), operator: Operator::DoesNotExist, values: vec![] });
        }
        let key = self.word().to_owned();
        if key.is_empty() {
            return Err(self.fail("!, identifier, or 'end of string'"));
        }
        self.skip();
        if self.rest.is_empty() || self.rest.starts_with(',') {
            return Ok(LabelRequirement { key, operator: Operator::Exists, values: vec![] });
        }
        let single = [
            ("==", Operator::In),
            ("=", Operator::In),
            ("!=", Operator::NotIn),
            (">", Operator::Gt),
            ("<", Operator::Lt),
        ];
        for (token, operator) in single {
            if self.eat(token) {
                self.skip();
                let value = self.word().to_owned();
                return Ok(LabelRequirement { key, operator, values: vec![value] });
            }
        }
        let operator = match self.word() {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            _ => return Err(self.fail("in, notin, =, ==, !=, gt, lt")),
        };
        Ok(LabelRequirement { key, operator, values: self.set()? })
    }
    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        self.skip();
        if !self.eat("(") {
            return Err(self.fail("'('"));
        }
        let mut values = Vec::new();
        loop {
            self.skip();
            values.push(self.word().to_owned());
            self.skip();
            if self.eat(")") {
                values.sort();
                values.dedup();
                return Ok(values);
            }
            if !self.eat(",") {
                return Err(self.fail("',' or ')'"));
            }
        }
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
            let wrong = || SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'"));
            let (field, negated, value) = split_term(&term).ok_or_else(wrong)?;
            out.push(FieldRequirement { field: field.to_owned(), value: unescape(value).ok_or_else(wrong)?, negated });
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

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let i = term.find(['=', '!'])?;
    let (field, rest) = term.split_at(i);
    if let Some(v) = rest.strip_prefix("!=") {
        Some((field, true, v))
    } else if let Some(v) = rest.strip_prefix("==") {
        Some((field, false, v))
    } else {
        rest.strip_prefix('=').map(|v| (field, false, v))
    }
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

fn unescape(v: &str) -> Option<String> {
    let mut out = String::with_capacity(v.len());
    let mut chars = v.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                e @ ('\\' | ',' | '=') => out.push(e),
                _ => return None,
            },
            '=' | ',' => return None,
            c => out.push(c),
        }
    }
    Some(out)
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
        assert!(FieldSelector::parse("abc").is_err());
    }
}
