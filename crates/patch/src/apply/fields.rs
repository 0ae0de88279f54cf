//! Sets of field paths, their order, and their FieldsV1 form (`f:`, `k:`, `v:`, `i:`, `.`).
use serde_json::{Map, Number, Value};
use std::{cmp::Ordering, fmt};

/// A scalar inside a path element, ordered as upstream orders values: numbers, strings, booleans, null.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar(pub Value);

impl Eq for Scalar {}

impl Scalar {
    fn rank(&self) -> u8 {
        match self.0 {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Null => 3,
            Value::Array(_) => 4,
            Value::Object(_) => 5,
        }
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (a, b) => self.rank().cmp(&other.rank()).then_with(|| a.to_string().cmp(&b.to_string())),
        }
    }
}

/// Compares numbers by exact value. If integers beyond 2^53 were rounded to compare them with floats, the order would
/// not be total.
fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    let integer = |n: &Number| n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
    // Adding zero makes a negative zero a positive one.
    let float = |n: &Number| n.as_f64().unwrap_or(0.0) + 0.0;
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => compare_with_float(a, float(b)),
        (None, Some(b)) => compare_with_float(b, float(a)).reverse(),
        (None, None) => float(a).total_cmp(&float(b)),
    }
}

fn compare_with_float(integer: i128, float: f64) -> Ordering {
    // The cast of a float beyond the range gives the nearest bound, which is beyond every 64-bit integer.
    let whole = float.trunc();
    integer.cmp(&(whole as i128)).then_with(|| 0.0_f64.total_cmp(&(float - whole)))
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    /// A field of an object or a key of a map.
    Field(String),
    /// An element of an associative list, by its keys, which are sorted by name.
    Key(Vec<(String, Scalar)>),
    /// An element of a set.
    Value(Scalar),
    /// An element by its index.
    Index(i64),
}

impl PathElement {
    /// Parses a key of a FieldsV1 object. Returns `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "v" => Some(Self::Value(Scalar(serde_json::from_str(rest).ok()?))),
            "k" => {
                let map: Map<String, Value> = serde_json::from_str(rest).ok()?;
                Some(Self::Key(map.into_iter().map(|(k, v)| (k, Scalar(v))).collect()))
            }
            "i" => Some(Self::Index(rest.parse().ok()?)),
            _ => None,
        }
    }

    /// Returns the element as a key of a FieldsV1 object.
    pub fn serialize(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Value(v) => spelled("v:", &v.0),
            Self::Key(keys) => {
                let map: Map<String, Value> = keys.iter().map(|(k, v)| (k.clone(), v.0.clone())).collect();
                spelled("k:", &Value::Object(map))
            }
            Self::Index(i) => format!("i:{i}"),
        }
    }
}

/// A prefix and the JSON of a value, written into one buffer, which is quicker than formatting.
fn spelled(prefix: &str, value: &Value) -> String {
    let mut out = prefix.as_bytes().to_vec();
    // A tree has nothing that is not JSON, and JSON is UTF-8.
    match serde_json::to_writer(&mut out, value).map(|()| String::from_utf8(out)) {
        Ok(Ok(text)) => text,
        _ => format!("{prefix}{value}"),
    }
}

/// Formats elements like `.name`, `[name="app"]`, `[="x"]` and `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={}", v.0)).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Self::Value(v) => write!(f, "[={}]", v.0),
            Self::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// The nesting depth up to which a FieldsV1 object is read.
pub(super) const FIELDS_DEPTH_MAX: usize = 100;

/// Up to this number of steps are inserted into a set one by one.
const FEW: usize = 16;

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// The steps are sorted by element, and none of them is empty.
    steps: Vec<Step>,
}

/// The content of a set at and below one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub element: PathElement,
    /// Whether the step itself is a path of the set.
    pub member: bool,
    pub below: FieldSet,
}

impl Step {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl FieldSet {
    /// Makes a set of plain field paths, such as `[["status"], ["metadata", "name"]]`.
    pub fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let path: Vec<PathElement> = path.iter().map(|n| PathElement::Field((*n).to_owned())).collect();
            set.insert(&path);
        }
        set
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        // Sets are mostly built in sorted order.
        match self.steps.last() {
            Some(last) if last.element < *element => Err(self.steps.len()),
            None => Err(0),
            _ => self.steps.binary_search_by(|step| step.element.cmp(element)),
        }
    }

    /// Returns the step of an element, and adds it if it is missing. The caller must not leave it empty.
    fn step_mut(&mut self, element: &PathElement) -> &mut Step {
        let at = match self.find(element) {
            Ok(at) => at,
            Err(at) => {
                let step = Step { element: element.clone(), member: false, below: Self::default() };
                self.steps.insert(at, step);
                at
            }
        };
        &mut self.steps[at]
    }

    /// Adds a path; the empty path is ignored.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => self.step_mut(last).member = true,
            [first, rest @ ..] => self.step_mut(first).below.insert(rest),
        }
    }

    /// Adds an element and the set below it, unless both are empty.
    pub(super) fn put(&mut self, element: PathElement, member: bool, below: Self) {
        if !member && below.is_empty() {
            return;
        }
        match self.find(&element) {
            Ok(at) => {
                self.steps[at].member |= member;
                self.steps[at].below.absorb(below);
            }
            Err(at) => self.steps.insert(at, Step { element, member, below }),
        }
    }

    /// Reports whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Reports whether the path with only this element is in the set.
    pub(super) fn has_member(&self, element: &PathElement) -> bool {
        self.find(element).is_ok_and(|at| self.steps[at].member)
    }

    /// The paths below a step, if any.
    pub(super) fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.find(element).ok().map(|at| &self.steps[at].below).filter(|set| !set.is_empty())
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the paths that are in at least one of the sets.
    pub fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.extend(other);
        out
    }

    /// Reports whether every path of this set is in the other.
    pub fn is_within(&self, other: &Self) -> bool {
        self.steps.iter().all(|mine| match other.find(&mine.element) {
            Ok(at) => (!mine.member || other.steps[at].member) && mine.below.is_within(&other.steps[at].below),
            Err(_) => false,
        })
    }

    /// Makes a set of steps in any order. Steps of the same element are merged. The work is linear if the steps are
    /// sorted, or in two sorted runs.
    pub(super) fn of_steps(mut steps: Vec<Step>) -> Self {
        if steps.is_sorted_by(|a, b| a.element < b.element) {
            return Self { steps };
        }
        steps.sort_by(|a, b| a.element.cmp(&b.element));
        let mut out: Vec<Step> = Vec::with_capacity(steps.len());
        for step in steps {
            match out.last_mut() {
                Some(last) if last.element == step.element => {
                    last.member |= step.member;
                    last.below.absorb(step.below);
                }
                _ => out.push(step),
            }
        }
        Self { steps: out }
    }

    /// Adds the paths of another set. A few steps are inserted one by one. Many steps are merged, since each insertion
    /// moves all later ones.
    pub fn extend(&mut self, other: &Self) {
        if other.steps.len() > FEW {
            self.absorb(other.clone());
            return;
        }
        for step in &other.steps {
            let mine = self.step_mut(&step.element);
            mine.member |= step.member;
            mine.below.extend(&step.below);
        }
    }

    /// Works like [`FieldSet::extend`] and consumes the other set.
    pub fn absorb(&mut self, other: Self) {
        if self.steps.is_empty() {
            *self = other;
            return;
        }
        if other.steps.len() > FEW {
            let mut steps = std::mem::take(&mut self.steps);
            steps.extend(other.steps);
            *self = Self::of_steps(steps);
            return;
        }
        for step in other.steps {
            self.put(step.element, step.member, step.below);
        }
    }

    /// Returns the paths that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.steps.iter().filter_map(|mine| {
            let theirs = &other.steps[other.find(&mine.element).ok()?];
            let step = Step {
                element: mine.element.clone(),
                member: mine.member && theirs.member,
                below: mine.below.intersection(&theirs.below),
            };
            (!step.is_empty()).then_some(step)
        });
        Self { steps: both.collect() }
    }

    /// Returns the paths of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.subtract(other);
        out
    }

    /// Removes the paths of another set from this one.
    pub fn subtract(&mut self, other: &Self) {
        self.take_out(other, false);
    }

    /// Works like [`FieldSet::subtract`], and removes everything below the members of the other set too.
    pub fn subtract_trees(&mut self, other: &Self) {
        self.take_out(other, true);
    }

    fn take_out(&mut self, other: &Self, trees: bool) {
        if self.steps.is_empty() {
            return;
        }
        let mut emptied = false;
        for theirs in &other.steps {
            let Ok(at) = self.find(&theirs.element) else { continue };
            let mine = &mut self.steps[at];
            if theirs.member {
                mine.member = false;
            }
            if theirs.member && trees {
                mine.below = Self::default();
            } else {
                mine.below.take_out(&theirs.below, trees);
            }
            emptied |= mine.is_empty();
        }
        // Empty steps are removed together, since each removal moves all later ones.
        if emptied {
            self.steps.retain(|step| !step.is_empty());
        }
    }

    /// Returns all paths as strings in order. A path comes before the paths below it.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        out.extend(self.steps.iter().filter(|step| step.member).map(|step| format!("{prefix}{}", step.element)));
        for step in &self.steps {
            step.below.collect(&format!("{prefix}{}", step.element), out);
        }
    }

    /// Converts the set to the FieldsV1 form and consumes it, so that both forms of a large set are never complete at
    /// the same time.
    pub(super) fn into_fields_v1(self) -> Value {
        let fields =
            self.steps.into_iter().map(|step| written(&step.element, step.member, step.below.into_fields_v1()));
        Value::Object(fields.collect())
    }

    /// Converts the set to the FieldsV1 form.
    pub fn to_fields_v1(&self) -> Value {
        let fields = self.steps.iter().map(|step| written(&step.element, step.member, step.below.to_fields_v1()));
        Value::Object(fields.collect())
    }

    /// Parses the FieldsV1 form. Returns `None` if it is malformed.
    pub fn from_fields_v1(fields: &Value) -> Option<Self> {
        match fields {
            Value::Null => Some(Self::default()),
            _ => Self::read(fields, 0).map(|(set, _)| set),
        }
    }

    /// Converts a FieldsV1 object that is known to be well formed. Malformed parts are left out.
    pub(super) fn from_map(map: &Map<String, Value>) -> Self {
        let steps = map.iter().filter_map(|(key, below)| {
            let (element, below) = (PathElement::parse(key)?, below.as_object()?);
            let member = below.is_empty() || below.contains_key(".");
            Some(Step { element, member, below: Self::from_map(below) })
        });
        Self::of_steps(steps.filter(|step| !step.is_empty()).collect())
    }

    /// Returns the set below a node, and whether the path of the node itself is in the set.
    fn read(node: &Value, depth: usize) -> Option<(Self, bool)> {
        let map = node.as_object()?;
        if depth > FIELDS_DEPTH_MAX {
            return None;
        }
        let (mut steps, mut own) = (Vec::new(), map.is_empty());
        for (key, below) in map {
            if key == "." {
                own = true;
                continue;
            }
            let element = PathElement::parse(key)?;
            let (below, member) = Self::read(below, depth + 1)?;
            steps.push(Step { element, member, below });
        }
        steps.retain(|step| !step.is_empty());
        Some((Self::of_steps(steps), own))
    }
}

/// Returns a step in the FieldsV1 form: its name and the value below it. A dot marks a step that is a path of the set
/// and has paths below it.
fn written(element: &PathElement, member: bool, mut below: Value) -> (String, Value) {
    if member
        && let Value::Object(below) = &mut below
        && !below.is_empty()
    {
        below.insert(".".into(), Value::Object(Map::new()));
    }
    (element.serialize(), below)
}

#[cfg(test)]
mod tests;
