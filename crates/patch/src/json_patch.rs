//! JSON patch, RFC 6902, as upstream's library (`gopkg.in/evanphx/json-patch.v4`) implements it: indices may be
//! negative, an operation without a value means null, `replace` and `copy` treat a missing member of an existing object
//! as null, and `test` for null succeeds for such a member.
use crate::PatchError;
use kelson_codec::{Budget, Exceeded, Limits, NESTING_DEPTH_MAX};
use serde_json::Value;

/// The limit of operations in one patch.
pub const JSON_PATCH_OPERATIONS_MAX: usize = 10_000;
/// The limit of bytes that all `copy` operations of a patch add together.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The number of list elements whose move costs one step.
const MOVED_PER_STEP: usize = 16;

/// Applies a patch (a JSON array of operations) to a document. On error the document may be changed in part.
///
/// # Errors
/// See [`PatchError`].
pub fn json_patch(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    json_patch_within(document, patch, &mut Budget::new(Limits::PATCH))
}

/// Works like [`json_patch`] with the caller's budget. Operations are charged steps for the values that they visit,
/// measure and move, and memory for the values that they copy. The document never nests deeper than
/// [`NESTING_DEPTH_MAX`].
///
/// # Errors
/// See [`PatchError`].
pub fn json_patch_within(document: &mut Value, patch: &Value, budget: &mut Budget) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(PatchError::BadRequest(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch".into(),
        ));
    };
    if operations.len() > JSON_PATCH_OPERATIONS_MAX {
        return Err(PatchError::TooLarge(format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {JSON_PATCH_OPERATIONS_MAX}, got {}",
            operations.len()
        )));
    }
    let depth = depth(document, budget)?;
    let mut patching = Patching { document, budget, depth, copied: 0 };
    operations.iter().try_for_each(|operation| patching.one(operation))
}

/// Returns the nesting depth of objects and lists; 0 for a scalar.
fn depth(value: &Value, budget: &mut Budget) -> Result<usize, Exceeded> {
    let mut deepest = 0;
    match value {
        Value::Array(items) => {
            budget.steps(items.len())?;
            for item in items {
                deepest = deepest.max(depth(item, budget)?);
            }
        }
        Value::Object(map) => {
            budget.steps(map.len())?;
            for value in map.values() {
                deepest = deepest.max(depth(value, budget)?);
            }
        }
        _ => return Ok(0),
    }
    Ok(deepest + 1)
}

/// The state of a patch that is being applied.
struct Patching<'a> {
    document: &'a mut Value,
    budget: &'a mut Budget,
    /// An upper bound of the document's nesting depth. Removals do not lower it.
    depth: usize,
    /// The bytes of JSON that copies have added.
    copied: usize,
}

fn refuse(message: String) -> PatchError {
    PatchError::Unprocessable(message)
}

impl Patching<'_> {
    fn one(&mut self, operation: &Value) -> Result<(), PatchError> {
        let text = |key: &str| operation[key].as_str();
        let op = text("op").unwrap_or("unknown");
        let path =
            text("path").ok_or_else(|| refuse(format!("{op} operation failed to decode path: missing value")))?;
        let value = || operation.get("value").cloned().unwrap_or(Value::Null);
        let from =
            || text("from").ok_or_else(|| refuse(format!("{op} operation failed to decode from: missing value")));
        self.budget.steps(1 + steps_of(path))?;
        match op {
            "add" => {
                let value = value();
                self.measure(path, &value)?;
                add(self.document, path, value, "add", self.budget)
            }
            "remove" => remove(self.document, path, "remove", self.budget).map(drop),
            "replace" => {
                let value = value();
                self.measure(path, &value)?;
                replace(self.document, path, value)
            }
            "move" => self.relocate(from()?, path),
            "copy" => self.copy(from()?, path),
            "test" => test(self.document, path, operation.get("value")),
            other => Err(refuse(format!("Unexpected kind: {other}"))),
        }
    }

    fn relocate(&mut self, from: &str, path: &str) -> Result<(), PatchError> {
        self.budget.steps(steps_of(from))?;
        let taken = remove(self.document, from, "move from", self.budget)?;
        self.measure_from(from, path, &taken)?;
        add(self.document, path, taken, "move to", self.budget)
    }

    fn copy(&mut self, from: &str, path: &str) -> Result<(), PatchError> {
        self.budget.steps(steps_of(from))?;
        let missing =
            || refuse(format!("copy operation does not apply: doc is missing from path: {from}: missing value"));
        let found = match located(self.document, from).ok_or_else(missing)? {
            Located::At(found) => found,
            // A missing member is copied as null.
            Located::NoMember => &Value::Null,
            Located::NoElement => {
                return Err(refuse(format!("error in copy for from: '{from}': invalid index referenced")));
            }
        };
        self.budget.tree(found)?;
        self.copied += found.to_string().len();
        if self.copied > COPIED_BYTES_MAX {
            return Err(refuse(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {COPIED_BYTES_MAX}",
                self.copied
            )));
        }
        let found = found.clone();
        self.measure_from(from, path, &found)?;
        add(self.document, path, found, "copy to", self.budget)
    }

    /// Rejects a value that would nest the document too deeply at this path.
    fn measure(&mut self, path: &str, value: &Value) -> Result<(), PatchError> {
        let depth = steps_of(path) + depth(value, self.budget)?;
        if depth > NESTING_DEPTH_MAX {
            return Err(Exceeded::Depth.into());
        }
        self.depth = self.depth.max(depth);
        Ok(())
    }

    /// Works like [`Patching::measure`] for a value of the document. Most such values need not be visited, since the
    /// document's depth bounds theirs.
    fn measure_from(&mut self, from: &str, path: &str, value: &Value) -> Result<(), PatchError> {
        let deepest = steps_of(path) + self.depth.saturating_sub(steps_of(from));
        if deepest > NESTING_DEPTH_MAX {
            return self.measure(path, value);
        }
        self.depth = self.depth.max(deepest);
        Ok(())
    }
}

/// Returns the steps that a walk along the path costs.
fn steps_of(path: &str) -> usize {
    path.bytes().filter(|b| *b == b'/').count()
}

fn tokens(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(|t| t.replace("~1", "/").replace("~0", "~")).collect()
}

/// Parses the index of a list element. Negative indices count from the end.
fn index(token: &str, len: usize) -> Option<usize> {
    let value: i64 = token.parse().ok()?;
    let value = if value < 0 { value + len as i64 } else { value };
    usize::try_from(value).ok()
}

fn step<'a>(value: &'a mut Value, token: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(map) => map.get_mut(token),
        Value::Array(items) => index(token, items.len()).and_then(|i| items.get_mut(i)),
        _ => None,
    }
}

/// The target of a path whose parent object or list exists.
enum Located<'a> {
    At(&'a Value),
    NoMember,
    NoElement,
}

/// Looks up a path. Returns `None` if its parent is missing or is a scalar. The root has no parent.
fn located<'a>(document: &'a Value, path: &str) -> Option<Located<'a>> {
    let mut tokens = tokens(path);
    let last = tokens.pop()?;
    let container = tokens.iter().try_fold(document, |value, token| match value {
        Value::Object(map) => map.get(token),
        Value::Array(items) => index(token, items.len()).and_then(|i| items.get(i)),
        _ => None,
    });
    match container? {
        Value::Object(map) => Some(map.get(&last).map_or(Located::NoMember, Located::At)),
        Value::Array(items) => {
            let found = index(&last, items.len()).and_then(|i| items.get(i));
            Some(found.map_or(Located::NoElement, Located::At))
        }
        _ => None,
    }
}

/// The name of the operation in messages of [`parent`] and similar functions.
fn verb(op: &str) -> &str {
    op.split(' ').next().unwrap_or(op)
}

/// Returns the container of a path and the path's last token. `op` is the operation, and which of its paths this is if
/// it has two.
fn parent<'a>(document: &'a mut Value, path: &str, op: &str) -> Result<(&'a mut Value, String), PatchError> {
    let missing = || {
        let what = match op {
            "add" | "remove" => format!("path: \"{path}\""),
            "move to" | "copy to" => format!("destination path: {path}"),
            "move from" => format!("from path: {path}"),
            _ => format!("path: {path}"),
        };
        let op = verb(op);
        refuse(format!("{op} operation does not apply: doc is missing {what}: missing value"))
    };
    let mut tokens = tokens(path);
    let last = tokens.pop().ok_or_else(missing)?;
    let container = tokens.iter().try_fold(document, |value, token| step(value, token)).ok_or_else(missing)?;
    if !container.is_object() && !container.is_array() {
        return Err(missing());
    }
    Ok((container, last))
}

fn add(document: &mut Value, path: &str, value: Value, op: &str, budget: &mut Budget) -> Result<(), PatchError> {
    let (container, last) = parent(document, path, op)?;
    match container {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            // For `add`, -1 is the position after the last element.
            let at = match last.parse::<i64>() {
                Ok(i) if i < 0 => usize::try_from(i + items.len() as i64 + 1).ok(),
                Ok(i) => usize::try_from(i).ok(),
                Err(_) => None,
            };
            match at.filter(|at| *at <= items.len()) {
                Some(at) => {
                    budget.steps((items.len() - at) / MOVED_PER_STEP)?;
                    items.insert(at, value);
                }
                None => {
                    let op = verb(op);
                    return Err(refuse(format!(
                        "error in {op} for path: '{path}': Unable to access invalid index: {last}: invalid index referenced"
                    )));
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, op: &str, budget: &mut Budget) -> Result<Value, PatchError> {
    let (container, last) = parent(document, path, op)?;
    let removed = match container {
        Value::Object(map) => {
            map.remove(&last).ok_or_else(|| format!("Unable to remove nonexistent key: {last}: missing value"))
        }
        Value::Array(items) => match index(&last, items.len()).filter(|i| *i < items.len()) {
            Some(at) => {
                budget.steps((items.len() - at) / MOVED_PER_STEP)?;
                Ok(items.remove(at))
            }
            None => Err(format!("Unable to access invalid index: {last}: invalid index referenced")),
        },
        _ => Err("missing value".to_owned()),
    };
    let op = verb(op);
    removed.map_err(|why| refuse(format!("error in {op} for path: '{path}': {why}")))
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(refuse("replace operation value must be object or array".to_owned()));
        }
        *document = value;
        return Ok(());
    }
    let (container, last) = parent(document, path, "replace")?;
    if let Value::Object(map) = container {
        map.insert(last, value);
        return Ok(());
    }
    match step(container, &last) {
        Some(slot) => {
            *slot = value;
            Ok(())
        }
        None => Err(refuse(format!("replace operation does not apply: doc is missing key: {path}: missing value"))),
    }
}

/// Performs the `test` operation. `expected` is `None` if the operation has no value, which means null.
fn test(document: &Value, path: &str, expected: Option<&Value>) -> Result<(), PatchError> {
    let holds = |found: &Value| match expected {
        Some(expected) => found == expected,
        None => found.is_null(),
    };
    let holds = if path.is_empty() {
        holds(document)
    } else {
        match located(document, path) {
            Some(Located::At(found)) => holds(found),
            Some(Located::NoMember) => expected.is_none_or(Value::is_null),
            Some(Located::NoElement) => {
                return Err(refuse(format!("error in test for path: '{path}': invalid index referenced")));
            }
            None => {
                let why = format!("test operation does not apply: is missing path: {path}: missing value");
                return Err(refuse(why));
            }
        }
    };
    if holds { Ok(()) } else { Err(refuse(format!("testing value {path} failed: test failed"))) }
}
