//! Functions for lists, maps and default values.
use std::sync::Arc;

use gotmpl::{Result, Value};

use super::arguments::{Arguments, Row, fault, integer, string};
use super::convert::{list, text};

/// The maximum length of a list of generated numbers.
const LENGTH_MAX: usize = 100_000;

/// Builds a map from alternating keys and values.
fn dict(a: &Arguments<'_>) -> Value {
    let pairs =
        a.0.chunks(2).map(|pair| (Arc::from(string(&pair[0])), pair.get(1).cloned().unwrap_or_else(|| text(""))));
    Value::Map(Arc::new(pairs.collect()))
}

/// Merges maps. An entry of an earlier map wins.
fn merged(a: &Arguments<'_>) -> Result<Value> {
    let mut out = a.map(0)?;
    for place in 1..a.count() {
        for (key, value) in a.map(place)? {
            out.entry(key).or_insert(value);
        }
    }
    Ok(Value::Map(Arc::new(out)))
}

/// Returns the entries of a map whose keys pass `keep`.
fn filtered(a: &Arguments<'_>, keep: fn(bool) -> bool) -> Result<Value> {
    let named: Vec<_> = a.0[1..].iter().map(string).collect();
    let mut map = a.map(0)?;
    map.retain(|key, _| keep(named.iter().any(|n| **n == **key)));
    Ok(Value::Map(Arc::new(map)))
}

fn extended(a: &Arguments<'_>, key: &str, value: Option<Value>) -> Result<Value> {
    let mut map = a.map(0)?;
    match value {
        Some(value) => map.insert(key.into(), value),
        None => map.remove(key),
    };
    Ok(Value::Map(Arc::new(map)))
}

fn unique(items: &[Value]) -> Value {
    let mut out: Vec<Value> = Vec::new();
    for item in items {
        if !out.contains(item) {
            out.push(item.clone());
        }
    }
    list(out)
}

fn sliced(a: &Arguments<'_>) -> Result<Value> {
    let items = a.list(0)?;
    let start = usize::try_from(a.integer(1)).unwrap_or(0).min(items.len());
    let end = if a.count() > 2 { usize::try_from(a.integer(2)).unwrap_or(0) } else { items.len() };
    Ok(list(items[start..end.clamp(start, items.len())].iter().cloned()))
}

/// Returns the integers from `start` to before `stop` in steps of `step`.
fn numbers(start: i64, stop: i64, step: i64) -> Result<Value> {
    if step == 0 || (stop > start) != (step > 0) {
        return Ok(list([]));
    }
    let mut out = Vec::new();
    let mut at = start;
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        if out.len() == LENGTH_MAX {
            return Err(fault("the list is too long"));
        }
        out.push(Value::Int(at));
        at = at.saturating_add(step);
    }
    Ok(list(out))
}

/// Returns the integers from the first to the last argument, both included, in steps of the middle argument.
fn sequence(a: &Arguments<'_>) -> Result<Value> {
    let n: Vec<i64> = a.0.iter().map(integer).collect();
    let (start, step, stop) = match n[..] {
        [stop] => (1, if stop < 1 { -1 } else { 1 }, stop),
        [start, stop] => (start, if stop < start { -1 } else { 1 }, stop),
        [start, step, stop] => (start, step, stop),
        _ => return Ok(text("")),
    };
    let Value::List(items) = numbers(start, stop.saturating_add(step.signum()), step)? else { return Ok(text("")) };
    Ok(text(items.iter().map(string).collect::<Vec<_>>().join(" ")))
}

fn joined(a: &Arguments<'_>) -> Result<Value> {
    let parts: Vec<_> = match a.at(1) {
        Value::List(items) => items.iter().filter(|v| !matches!(v, Value::Nil)).map(string).collect(),
        other => vec![string(other)],
    };
    Ok(text(parts.join(&a.text(0))))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "invalid",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Uint(_) => "uint64",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::List(_) => "slice",
        Value::Map(_) => "map",
        _ => "func",
    }
}

/// The functions for lists and maps: name, minimum number of arguments, implementation.
pub const ROWS: &[Row] = &[
    ("default", 1, |a| Ok(if a.count() > 1 && a.at(1).is_truthy() { a.at(1).clone() } else { a.at(0).clone() })),
    ("empty", 1, |a| Ok(Value::Bool(!a.at(0).is_truthy()))),
    ("coalesce", 0, |a| Ok(a.0.iter().find(|v| v.is_truthy()).cloned().unwrap_or(Value::Nil))),
    ("ternary", 3, |a| Ok(if a.at(2).is_truthy() { a.at(0).clone() } else { a.at(1).clone() })),
    ("kindOf", 1, |a| Ok(text(kind(a.at(0))))),
    ("kindIs", 2, |a| Ok(Value::Bool(a.text(0) == kind(a.at(1))))),
    ("deepEqual", 2, |a| Ok(Value::Bool(a.at(0) == a.at(1)))),
    ("dict", 0, |a| Ok(dict(a))),
    ("get", 2, |a| Ok(a.map(0)?.remove(&*a.text(1)).unwrap_or_else(|| text("")))),
    ("set", 3, |a| extended(a, &a.text(1), Some(a.at(2).clone()))),
    ("unset", 2, |a| extended(a, &a.text(1), None)),
    ("hasKey", 2, |a| Ok(Value::Bool(a.map(0)?.contains_key(&*a.text(1))))),
    ("keys", 1, |a| Ok(list(a.map(0)?.into_keys().map(text)))),
    ("values", 1, |a| Ok(list(a.map(0)?.into_values()))),
    ("pick", 1, |a| filtered(a, |named| named)),
    ("omit", 1, |a| filtered(a, |named| !named)),
    ("merge", 1, merged),
    ("list", 0, |a| Ok(list(a.0.iter().cloned()))),
    ("tuple", 0, |a| Ok(list(a.0.iter().cloned()))),
    ("first", 1, |a| Ok(a.list(0)?.first().cloned().unwrap_or(Value::Nil))),
    ("last", 1, |a| Ok(a.list(0)?.last().cloned().unwrap_or(Value::Nil))),
    ("rest", 1, |a| Ok(list(a.list(0)?.iter().skip(1).cloned()))),
    ("initial", 1, |a| Ok(list(a.list(0)?.iter().rev().skip(1).rev().cloned()))),
    ("reverse", 1, |a| Ok(list(a.list(0)?.iter().rev().cloned()))),
    ("uniq", 1, |a| Ok(unique(a.list(0)?))),
    ("compact", 1, |a| Ok(list(a.list(0)?.iter().filter(|v| v.is_truthy()).cloned()))),
    ("append", 2, |a| Ok(list(a.list(0)?.iter().chain([a.at(1)]).cloned()))),
    ("prepend", 2, |a| Ok(list([a.at(1)].into_iter().chain(a.list(0)?).cloned()))),
    ("concat", 0, |a| {
        let lists = (0..a.count()).map(|i| a.list(i)).collect::<Result<Vec<_>>>()?;
        Ok(list(lists.concat()))
    }),
    ("has", 2, |a| Ok(Value::Bool(a.list(1)?.contains(a.at(0))))),
    ("without", 1, |a| Ok(list(a.list(0)?.iter().filter(|v| !a.0[1..].contains(v)).cloned()))),
    ("sortAlpha", 1, |a| {
        let mut items: Vec<_> = a.list(0)?.iter().map(string).collect();
        items.sort();
        Ok(list(items.into_iter().map(text)))
    }),
    ("slice", 1, sliced),
    ("join", 2, joined),
    ("until", 1, |a| numbers(0, a.integer(0), if a.integer(0) < 0 { -1 } else { 1 })),
    ("untilStep", 3, |a| numbers(a.integer(0), a.integer(1), a.integer(2))),
    ("seq", 0, sequence),
];
