//! Paths in the table of gated fields: `a.b` is a member, `a[].b` one of each element of a list, `a{}.b` one of each
//! value of a map, `a?.b` one whose parent is removed when it becomes empty. `containers+` means all lists of
//! containers, and `containerStatuses+` those of their statuses. A final `a!text` matches unless the value is that
//! text, and `a/b` only with a member `b`.
use serde_json::Value;

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A member of an object.
    Member(&'static str),
    /// A member that is removed when it becomes empty.
    Emptied(&'static str),
    /// Every element of a list.
    Elements,
    /// Every value of a map.
    Values,
}

/// A condition on the field itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    Always,
    /// It is not this string.
    Not(&'static str),
    /// It has this member.
    With(&'static str),
}

/// A path that may match several places of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatedPath {
    steps: Vec<Step>,
    field: &'static str,
    only: Only,
}

/// Returns the lists that a name with a plus means.
fn lists(name: &'static str) -> &'static [&'static str] {
    match name {
        "containers+" => &["containers", "initContainers", "ephemeralContainers"],
        "containerStatuses+" => &["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"],
        _ => &[],
    }
}

impl GatedPath {
    /// Parses a path below a prefix, which may be empty.
    pub fn parse(prefix: &'static str, text: &'static str) -> Vec<Self> {
        let mut all = vec![Vec::new()];
        let names = || prefix.split('.').chain(text.split('.')).filter(|name| !name.is_empty());
        let last = names().count().saturating_sub(1);
        for name in names().take(last) {
            let (name, beyond) = match (name.strip_suffix("[]"), name.strip_suffix("{}")) {
                (Some(list), _) => (list, Some(Step::Elements)),
                (_, Some(map)) => (map, Some(Step::Values)),
                _ => (name, None),
            };
            let one = [name];
            let names = if name.ends_with('+') { lists(name) } else { &one[..] };
            let step = |name: &'static str| name.strip_suffix('?').map_or(Step::Member(name), Step::Emptied);
            all = all
                .iter()
                .flat_map(|to: &Vec<Step>| names.iter().map(move |&name| [&to[..], &[step(name)]].concat()))
                .map(|to| to.into_iter().chain(beyond.clone()).collect())
                .collect();
        }
        let name = names().next_back().unwrap_or_default();
        let (field, only) = match (name.split_once('!'), name.split_once('/')) {
            (Some((field, text)), _) => (field, Only::Not(text)),
            (_, Some((field, member))) => (field, Only::With(member)),
            _ => (name, Only::Always),
        };
        all.into_iter().map(|steps| Self { steps, field, only }).collect()
    }

    /// Reports whether an object has it.
    pub fn is_in(&self, object: &Value) -> bool {
        self.found(&self.steps, object)
    }

    fn found(&self, steps: &[Step], value: &Value) -> bool {
        match steps {
            [] => value.get(self.field).is_some_and(|field| self.counts(field)),
            [Step::Member(name) | Step::Emptied(name), rest @ ..] => {
                value.get(name).is_some_and(|value| self.found(rest, value))
            }
            [Step::Elements, rest @ ..] => {
                value.as_array().is_some_and(|list| list.iter().any(|value| self.found(rest, value)))
            }
            [Step::Values, rest @ ..] => {
                value.as_object().is_some_and(|map| map.values().any(|value| self.found(rest, value)))
            }
        }
    }

    fn counts(&self, field: &Value) -> bool {
        !field.is_null()
            && match self.only {
                Only::Always => true,
                Only::Not(text) => field.as_str() != Some(text),
                Only::With(member) => field.get(member).and_then(Value::as_str).is_some_and(|text| !text.is_empty()),
            }
    }

    /// Removes it from an object, wherever it is.
    pub fn remove_from(&self, object: &mut Value) {
        self.removed(&self.steps, object);
    }

    fn removed(&self, steps: &[Step], value: &mut Value) {
        match steps {
            [] => {
                if value.get(self.field).is_some_and(|field| self.counts(field))
                    && let Some(fields) = value.as_object_mut()
                {
                    fields.remove(self.field);
                }
            }
            [Step::Member(name), rest @ ..] => {
                if let Some(value) = value.get_mut(name) {
                    self.removed(rest, value);
                }
            }
            [Step::Emptied(name), rest @ ..] => {
                let Some(inner) = value.get_mut(name).filter(|inner| self.found(rest, inner)) else { return };
                self.removed(rest, inner);
                let empty = inner.as_object().is_some_and(serde_json::Map::is_empty);
                if let Some(fields) = value.as_object_mut().filter(|_| empty) {
                    fields.remove(*name);
                }
            }
            [Step::Elements, rest @ ..] => {
                value.as_array_mut().into_iter().flatten().for_each(|value| self.removed(rest, value));
            }
            [Step::Values, rest @ ..] => {
                value.as_object_mut().into_iter().flat_map(|map| map.values_mut()).for_each(|v| self.removed(rest, v));
            }
        }
    }

    /// Reports whether a type has this path.
    #[cfg(test)]
    pub fn is_of(&self, root: &kelson_schema::Shape) -> bool {
        let mut shape = root.clone();
        for step in &self.steps {
            let next = match step {
                Step::Member(name) | Step::Emptied(name) => shape.child(name),
                Step::Elements => Some(shape.element()),
                Step::Values => shape.child("any"),
            };
            let Some(next) = next else { return false };
            shape = next;
        }
        let inner = match self.only {
            Only::With(member) => shape.child(self.field).is_some_and(|field| field.has_field(member)),
            _ => true,
        };
        shape.has_field(self.field) && inner
    }
}
