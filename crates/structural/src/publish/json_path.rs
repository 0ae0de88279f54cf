//! JSON paths of printer columns (`k8s.io/client-go/util/jsonpath` without templates): fields, elements, slices,
//! unions, wildcards, filters, and `..`.
use std::cmp::Ordering;

use serde_json::Value;

/// The limit of values that a path may select. Columns show the first one.
const RESULTS_MAX: usize = 10_000;
/// The nesting depth of filters in filters.
const FILTER_DEPTH_MAX: usize = 4;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// The fields with these names. Several are a union.
    Fields(Vec<String>),
    /// Elements with start, end and step. Negative numbers count from the end.
    Elements(Vec<Slice>),
    All,
    /// The value and all values below it.
    Descend,
    Filter(Box<Filter>),
}

#[derive(Clone, Debug, PartialEq)]
enum Slice {
    One(i64),
    Range(Option<i64>, Option<i64>, i64),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// The test. Without one, the filter checks that the left side exists.
    test: Option<(Test, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The tests by their spelling, longer ones first.
const TESTS: &[(&str, Test)] = &[
    ("==", Test::Equal),
    ("!=", Test::NotEqual),
    ("<=", Test::LessOrEqual),
    (">=", Test::GreaterOrEqual),
    ("<", Test::Less),
    (">", Test::Greater),
];

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`. Returns `None` if it is invalid.
    pub fn parse(path: &str) -> Option<Self> {
        Self::parse_within(path, 0)
    }

    fn parse_within(path: &str, depth: usize) -> Option<Self> {
        let mut rest = path.trim();
        rest = rest.strip_prefix(['$', '@']).unwrap_or(rest);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            rest = match rest.strip_prefix('.') {
                Some(after) if after.starts_with('.') => {
                    let begins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '[');
                    if !after[1..].is_empty() && !after[1..].starts_with(begins) {
                        return None;
                    }
                    steps.push(Step::Descend);
                    // A name or brackets follow, as after one dot.
                    if after[1..].starts_with('[') { &after[1..] } else { after }
                }
                Some(after) if after.is_empty() || after.starts_with('[') => after,
                Some(after) => field(after, &mut steps)?,
                None if rest.starts_with('[') => brackets(&rest[1..], depth, &mut steps)?,
                None if steps.is_empty() && is_identifier(rest) => field(rest, &mut steps)?,
                None => return None,
            };
        }
        Some(Self(steps))
    }

    /// Returns the values that the path selects, in the order of the document; `None` when it cannot be followed, for
    /// instance an index of a value that is not a list.
    pub fn find<'v>(&self, root: &'v Value) -> Option<Vec<&'v Value>> {
        let mut found = vec![root];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                step.apply(value, &mut next)?;
                next.truncate(RESULTS_MAX);
            }
            found = next;
        }
        Some(found)
    }
}

/// Reports whether a path that begins with neither a dot nor a bracket begins with a name.
fn is_identifier(text: &str) -> bool {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    text.starts_with(|c: char| c.is_alphanumeric() || c == '_') && !text[..end].contains(['\n', '\r', '{', '}'])
}

/// Parses a name after a dot. A backslash escapes a dot.
fn field<'p>(text: &'p str, steps: &mut Vec<Step>) -> Option<&'p str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => {
                end = i;
                break;
            }
            _ => name.push(c),
        }
    }
    if name.is_empty() {
        return None;
    }
    steps.push(if name == "*" { Step::All } else { Step::Fields(vec![name]) });
    Some(&text[end..])
}

/// Parses the content of brackets, after the first.
fn brackets<'p>(text: &'p str, depth: usize, steps: &mut Vec<Step>) -> Option<&'p str> {
    let end = closing(text)?;
    let (inside, rest) = (text[..end].trim(), &text[end + 1..]);
    let filter = inside.strip_prefix('?').map(str::trim).and_then(|f| f.strip_prefix('(')?.strip_suffix(')'));
    steps.push(match filter {
        Some(filter) if depth < FILTER_DEPTH_MAX => Step::Filter(Box::new(parse_filter(filter, depth + 1)?)),
        Some(_) => return None,
        None if inside == "*" => Step::All,
        None if inside.starts_with(['\'', '"']) => {
            Step::Fields(inside.split(',').map(|name| unquote(name.trim())).collect::<Option<_>>()?)
        }
        None => Step::Elements(inside.split(',').map(|one| slice(one.trim())).collect::<Option<_>>()?),
    });
    Some(rest)
}

/// Returns the end of the brackets, ignoring quoted and nested ones.
fn closing(text: &str) -> Option<usize> {
    let (mut open, mut quote) = (0, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => open += 1,
            (None, ']') if open == 0 => return Some(i),
            (None, ']') => open -= 1,
            _ => {}
        }
    }
    None
}

fn unquote(text: &str) -> Option<String> {
    let inside = |q| text.strip_prefix(q).and_then(|t| t.strip_suffix(q));
    inside('\'').or_else(|| inside('"')).map(|t| t.replace("\\'", "'").replace("\\\"", "\""))
}

fn slice(text: &str) -> Option<Slice> {
    let number =
        |text: &str| -> Option<Option<i64>> { if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) } };
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    match parts[..] {
        [one] => Some(Slice::One(one.parse().ok()?)),
        [from, to] => Some(Slice::Range(number(from)?, number(to)?, 1)),
        [from, to, step] => {
            let step = number(step)?.unwrap_or(1);
            (step > 0).then_some(Slice::Range(number(from)?, number(to)?, step))
        }
        _ => None,
    }
}

fn parse_filter(text: &str, depth: usize) -> Option<Filter> {
    let mut quote = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            _ => {
                if let Some((written, test)) = TESTS.iter().find(|(written, _)| text[i..].starts_with(written)) {
                    let right = operand(&text[i + written.len()..], depth)?;
                    return Some(Filter { left: operand(&text[..i], depth)?, test: Some((*test, right)) });
                }
            }
        }
    }
    Some(Filter { left: operand(text, depth)?, test: None })
}

fn operand(text: &str, depth: usize) -> Option<Operand> {
    let text = text.trim();
    if text.starts_with(['@', '$', '.']) {
        return Some(Operand::Path(JsonPath::parse_within(text, depth)?));
    }
    let literal = match text {
        "true" => true.into(),
        "false" => false.into(),
        _ if text.starts_with(['\'', '"']) => unquote(text)?.into(),
        _ => match text.parse::<i64>() {
            Ok(int) => int.into(),
            Err(_) => serde_json::Number::from_f64(text.parse().ok()?)?.into(),
        },
    };
    Some(Operand::Literal(literal))
}

impl Step {
    fn apply<'v>(&self, value: &'v Value, out: &mut Vec<&'v Value>) -> Option<()> {
        match self {
            Self::Fields(names) => out.extend(names.iter().filter_map(|name| value.as_object()?.get(name))),
            Self::All => match value {
                Value::Array(list) => out.extend(list),
                Value::Object(fields) => out.extend(fields.values()),
                _ => {}
            },
            Self::Elements(slices) => {
                let list = value.as_array()?;
                for slice in slices {
                    slice.apply(list, out)?;
                }
            }
            Self::Descend => descend(value, out),
            Self::Filter(filter) => {
                for element in value.as_array()? {
                    if filter.holds(element)? {
                        out.push(element);
                    }
                }
            }
        }
        Some(())
    }
}

/// Collects a value and all values below it. The depth of documents is bounded.
fn descend<'v>(value: &'v Value, out: &mut Vec<&'v Value>) {
    if out.len() >= RESULTS_MAX {
        return;
    }
    out.push(value);
    match value {
        Value::Array(list) => list.iter().for_each(|v| descend(v, out)),
        Value::Object(fields) => fields.values().for_each(|v| descend(v, out)),
        _ => {}
    }
}

impl Slice {
    fn apply<'v>(&self, list: &'v [Value], out: &mut Vec<&'v Value>) -> Option<()> {
        let length = i64::try_from(list.len()).ok()?;
        let from_start = |i: i64| if i < 0 { i + length } else { i };
        let (from, to, step) = match self {
            Self::One(i) => (from_start(*i), from_start(*i) + 1, 1),
            Self::Range(from, to, step) => {
                (from_start(from.unwrap_or(0)), to.map_or(length, from_start).min(length), *step)
            }
        };
        if matches!(self, Self::One(_)) && !(0..length).contains(&from) || from < 0 {
            return None;
        }
        let step = usize::try_from(step).ok()?;
        let range = usize::try_from(from).ok()?..usize::try_from(to.max(from)).ok()?;
        out.extend(list.get(range)?.iter().step_by(step));
        Some(())
    }
}

impl Filter {
    fn holds(&self, element: &Value) -> Option<bool> {
        let find = |operand: &Operand| match operand {
            Operand::Path(path) => path.find(element).map(|found| found.into_iter().cloned().collect()),
            Operand::Literal(value) => Some(vec![value.clone()]),
        };
        let left: Vec<Value> = find(&self.left)?;
        let Some((test, right)) = &self.test else { return Some(!left.is_empty()) };
        let right: Vec<Value> = find(right)?;
        match (&left[..], &right[..]) {
            ([], _) | (_, []) => Some(false),
            ([left], [right]) => compare(left, right, *test),
            _ => None,
        }
    }
}

fn compare(left: &Value, right: &Value, test: Test) -> Option<bool> {
    let order = match (left, right) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?)?,
        (Value::Bool(a), Value::Bool(b)) if matches!(test, Test::Equal | Test::NotEqual) => a.cmp(b),
        _ => return None,
    };
    Some(match test {
        Test::Equal => order == Ordering::Equal,
        Test::NotEqual => order != Ordering::Equal,
        Test::Less => order == Ordering::Less,
        Test::LessOrEqual => order != Ordering::Greater,
        Test::Greater => order == Ordering::Greater,
        Test::GreaterOrEqual => order != Ordering::Less,
    })
}
