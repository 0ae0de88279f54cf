//! The fields of one `managedFields` entry. A parsed entry keeps its FieldsV1 form and is changed in place: most writes
//! touch a few fields of one manager, and parsing and writing all sets again would cost more than the rest of field
//! management.
use super::fields::{FIELDS_DEPTH_MAX, FieldSet, PathElement};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The paths that one manager owns.
#[derive(Debug, Clone)]
pub struct OwnedFields(FieldsForm);

#[derive(Debug, Clone)]
enum FieldsForm {
    /// A FieldsV1 object whose keys are spelled as [`PathElement::serialize`] spells them, without superfluous nodes.
    Json(Map<String, Value>),
    Set(FieldSet),
}

impl Default for OwnedFields {
    fn default() -> Self {
        Self(FieldsForm::Set(FieldSet::default()))
    }
}

/// A FieldsV1 object as [`FieldSet::to_fields_v1`] makes it.
impl From<Map<String, Value>> for OwnedFields {
    fn from(fields: Map<String, Value>) -> Self {
        Self(FieldsForm::Json(fields))
    }
}

impl From<FieldSet> for OwnedFields {
    fn from(set: FieldSet) -> Self {
        Self(FieldsForm::Set(set))
    }
}

/// Two entries are equal if they contain the same paths.
impl PartialEq for OwnedFields {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (FieldsForm::Json(a), FieldsForm::Json(b)) => a == b,
            _ => *self.set() == *other.set(),
        }
    }
}

impl Eq for OwnedFields {}

impl OwnedFields {
    /// Converts a FieldsV1 object. Returns `None` if it is malformed.
    pub fn from_fields_v1(fields: Value) -> Option<Self> {
        if let Value::Object(map) = &fields
            && !map.contains_key(".")
            && is_canonical(map, 0)
        {
            let Value::Object(map) = fields else { return None };
            return Some(Self(FieldsForm::Json(map)));
        }
        FieldSet::from_fields_v1(&fields).map(Self::from)
    }

    /// Converts the fields to the FieldsV1 form.
    pub fn into_fields_v1(self) -> Value {
        match self.0 {
            FieldsForm::Json(map) => Value::Object(map),
            FieldsForm::Set(set) => set.into_fields_v1(),
        }
    }

    /// Returns the fields as a set.
    pub fn set(&self) -> Cow<'_, FieldSet> {
        match &self.0 {
            FieldsForm::Json(map) => Cow::Owned(FieldSet::from_map(map)),
            FieldsForm::Set(set) => Cow::Borrowed(set),
        }
    }

    /// Reports whether there are no fields.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            FieldsForm::Json(map) => map.is_empty(),
            FieldsForm::Set(set) => set.is_empty(),
        }
    }

    /// Removes the paths of a set.
    pub fn subtract(&mut self, other: &FieldSet) {
        match &mut self.0 {
            FieldsForm::Json(map) => subtract(map, other),
            FieldsForm::Set(set) => set.subtract(other),
        }
    }

    /// Adds the paths of a set and consumes the set.
    pub fn absorb(&mut self, other: FieldSet) {
        match &mut self.0 {
            FieldsForm::Json(map) => extend(map, &other),
            FieldsForm::Set(set) => set.absorb(other),
        }
    }
}

fn void() -> Value {
    Value::Object(Map::new())
}

/// Reports whether the object is in the form that [`FieldSet::to_fields_v1`] writes.
fn is_canonical(map: &Map<String, Value>, depth: usize) -> bool {
    let mut steps = 0;
    let sound = map.iter().all(|(key, below)| {
        let Value::Object(below) = below else { return false };
        if key == "." {
            return below.is_empty();
        }
        steps += 1;
        depth < FIELDS_DEPTH_MAX && is_canonical_key(key) && is_canonical(below, depth + 1)
    });
    // A lone dot is written as the empty object.
    sound && (steps > 0 || map.is_empty())
}

fn is_canonical_key(key: &str) -> bool {
    key.starts_with("f:") || PathElement::parse(key).is_some_and(|element| element.serialize() == *key)
}

fn subtract(map: &mut Map<String, Value>, other: &FieldSet) {
    for theirs in other.steps() {
        if map.is_empty() {
            return;
        }
        let key = theirs.element.serialize();
        let Some(Value::Object(mine)) = map.get_mut(&key) else { continue };
        let mut member = mine.is_empty() || mine.contains_key(".");
        mine.remove(".");
        subtract(mine, &theirs.below);
        member &= !theirs.member;
        match (member, mine.is_empty()) {
            (false, true) => drop(map.remove(&key)),
            (true, false) => drop(mine.insert(".".to_owned(), void())),
            _ => {}
        }
    }
}

fn extend(map: &mut Map<String, Value>, other: &FieldSet) {
    for theirs in other.steps() {
        let key = theirs.element.serialize();
        let Some(Value::Object(mine)) = map.get_mut(&key) else {
            let mut below = theirs.below.to_fields_v1();
            if theirs.member
                && let Value::Object(below) = &mut below
                && !below.is_empty()
            {
                below.insert(".".to_owned(), void());
            }
            map.insert(key, below);
            continue;
        };
        let member = mine.is_empty() || mine.contains_key(".") || theirs.member;
        extend(mine, &theirs.below);
        if member && !mine.is_empty() {
            mine.insert(".".to_owned(), void());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use serde_json::json;

    const ELEMENTS: [&str; 6] = ["f:a", "f:b", "f:c", "k:{\"name\":\"x\",\"port\":80}", "v:\"s\"", "i:3"];

    fn random_set(rng: &mut StdRng) -> FieldSet {
        let mut set = FieldSet::default();
        for _ in 0..rng.random_range(0..12) {
            let path: Vec<PathElement> = (0..rng.random_range(1..4))
                .filter_map(|_| PathElement::parse(ELEMENTS[rng.random_range(0..ELEMENTS.len())]))
                .collect();
            set.insert(&path);
        }
        set
    }

    /// Lists the paths of a set in the slow and obvious way.
    fn paths(set: &FieldSet) -> std::collections::BTreeSet<String> {
        set.paths().into_iter().collect()
    }

    #[test]
    fn both_forms_change_alike_and_as_sets_of_paths_do() {
        let mut rng = StdRng::seed_from_u64(11);
        for turn in 0..5_000 {
            let (a, b) = (random_set(&mut rng), random_set(&mut rng));
            let text = a.to_fields_v1();
            let mut json = OwnedFields::from_fields_v1(text.clone()).expect("sound");
            assert!(matches!(json.0, FieldsForm::Json(_)), "turn {turn}: {text}");
            let mut set = OwnedFields::from(a.clone());
            assert_eq!(json, set, "turn {turn}");
            let expected: std::collections::BTreeSet<String> = if rng.random_bool(0.5) {
                json.subtract(&b);
                set.subtract(&b);
                paths(&a).difference(&paths(&b)).cloned().collect()
            } else {
                json.absorb(b.clone());
                set.absorb(b.clone());
                paths(&a).union(&paths(&b)).cloned().collect()
            };
            assert_eq!(paths(&set.set()), expected, "turn {turn}: {text}, {}", b.to_fields_v1());
            assert_eq!(paths(&json.set()), expected, "turn {turn}");
            assert_eq!(json.is_empty(), expected.is_empty());
            assert_eq!(json.clone().into_fields_v1(), set.clone().into_fields_v1(), "turn {turn}");
            assert!(matches!(
                OwnedFields::from_fields_v1(json.into_fields_v1()),
                Some(OwnedFields(FieldsForm::Json(_)))
            ));
        }
    }

    #[test]
    fn set_algebra_is_that_of_paths() {
        let mut rng = StdRng::seed_from_u64(12);
        for turn in 0..5_000 {
            let (a, b) = (random_set(&mut rng), random_set(&mut rng));
            let both: std::collections::BTreeSet<_> = paths(&a).intersection(&paths(&b)).cloned().collect();
            assert_eq!(paths(&a.intersection(&b)), both, "turn {turn}");
            let mut trees = a.clone();
            trees.subtract_trees(&b);
            let gone = paths(&b);
            let covered = |path: &str| {
                gone.iter().any(|g| {
                    path.strip_prefix(g.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
                })
            };
            let left: std::collections::BTreeSet<_> = paths(&a).into_iter().filter(|p| !covered(p)).collect();
            assert_eq!(paths(&trees), left, "turn {turn}");
            assert_eq!(FieldSet::from_fields_v1(&a.to_fields_v1()), Some(a), "turn {turn}");
        }
    }

    #[test]
    fn what_is_not_as_we_write_it_is_read_all_the_same() {
        let cases = [
            (json!({"f:a": {".": {}}}), json!({"f:a": {}})),
            (json!({".": {}, "f:a": {}}), json!({"f:a": {}})),
            (json!({"k:{ \"name\": \"x\" }": {"f:a": {}}}), json!({"k:{\"name\":\"x\"}": {"f:a": {}}})),
            (json!({"i:03": {}}), json!({"i:3": {}})),
            (json!(null), json!({})),
        ];
        for (given, expected) in cases {
            let fields = OwnedFields::from_fields_v1(given.clone()).expect("readable");
            assert_eq!(fields.into_fields_v1(), expected, "{given}");
        }
        for malformed in [json!({"a": {}}), json!({"f:a": 1}), json!([]), json!({"f:a": {"x:b": {}}})] {
            assert!(OwnedFields::from_fields_v1(malformed.clone()).is_none(), "{malformed}");
        }
    }
}
