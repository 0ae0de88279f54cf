//! The actual cost of a call with its arguments. It is charged before the call, so that a call over the budget is not made.
use super::range::scale;
use super::{LIST, PATTERN, Rule, TEXT};
use crate::value::error::{EvalError, Result};
use crate::value::list::MOST;
use crate::value::opaque::Opaque;
use crate::value::{List, Value};

/// The size of a value as cel-go's cost tracker determines it. A value without a size has 1.
fn size(value: &Value<'_>) -> u64 {
    match value {
        Value::Optional(Some(inner)) => size(inner),
        other => other.size().map_or(1, |n| n as u64),
    }
}

/// The cost of a call. The error is for arguments so large that they are not inspected.
pub(crate) fn actual(rule: Rule, args: &[Value<'_>]) -> Result<u64> {
    let first = || args.first().map_or(1, size);
    let second = || args.get(1).map_or(1, size);
    let squared = |n: u64, factor: f64| (n.saturating_mul(n) as f64 * factor) as u64 + 1 + LIST;
    Ok(match rule {
        Rule::One | Rule::Logical | Rule::Conditional | Rule::IndexList | Rule::IndexMap | Rule::AddList => 1,
        Rule::Fixed(n) => n,
        Rule::Selector => {
            let n = second();
            LIST + scale(n, TEXT) + scale(scale(n, 0.5), (LIST + super::STRUCT) as f64)
        }
        Rule::Traverse => args.first().map_or(Ok(0), traverse)?,
        Rule::Pass | Rule::Read(_) if args.is_empty() => 0,
        Rule::Pass => scale(first(), TEXT),
        Rule::Read(factor) => scale(first(), TEXT * factor),
        Rule::Replace | Rule::Split => (first() as f64 * 2.0 * TEXT).ceil() as u64,
        Rule::Join => joined(args)?,
        Rule::Find | Rule::Matches => scale(first() + 1, TEXT).saturating_mul(scale(second(), PATTERN)),
        Rule::ContainsIp(parsed) => scale(2 * first(), TEXT) + if parsed { scale(second(), TEXT) } else { 0 },
        Rule::ContainsCidr(parsed) => {
            scale(2 * first(), TEXT) + scale(first(), TEXT) + 1 + if parsed { scale(second(), TEXT) } else { 0 }
        }
        Rule::Validate => match args.first() {
            Some(Value::Opaque(Opaque::Format(name))) => {
                let pattern = crate::library::formats::pattern_size(name);
                scale(second() + 1, TEXT).saturating_mul(scale(pattern, PATTERN))
            }
            _ => 1,
        },
        Rule::Affix | Rule::ToBytes | Rule::ToText | Rule::Quote | Rule::Format => scale(first(), TEXT),
        Rule::InList => second(),
        Rule::Equal if matches!(args.first(), Some(Value::Opaque(_))) => 1,
        Rule::Equal | Rule::Compare => scale(first().min(second()), TEXT),
        Rule::AddText => scale(first() + second(), TEXT),
        Rule::Contains => scale(first(), TEXT).saturating_mul(scale(second(), TEXT)),
        Rule::Sets(factor) => 1 + (first().saturating_mul(second()) as f64 * factor) as u64,
        Rule::Slice => match (args.get(1), args.get(2)) {
            (Some(Value::Int(start)), Some(Value::Int(end)))
                if *start >= 0 && start <= end && *end as u64 <= first() =>
            {
                (end - start) as u64 + 1 + LIST
            }
            _ => 2 + LIST,
        },
        Rule::Range => match args.first() {
            Some(Value::Int(n)) => (*n).max(0) as u64 + 1 + LIST,
            _ => 2 + LIST,
        },
        Rule::Flatten => {
            let depth = match args.get(1) {
                Some(Value::Int(n)) => (*n).max(0) as f64,
                _ => 1.0,
            };
            (first() as f64 * depth) as u64 + 1 + LIST
        }
        Rule::Reverse => first() + 1 + LIST,
        Rule::Distinct | Rule::Sort(_) => squared(first(), text_factor(args.first())),
        Rule::SortBy(_) => squared(second(), text_factor(args.get(1))),
    })
}

/// The factor for the length of a list: 2, and a little more if the elements are strings.
fn text_factor(list: Option<&Value<'_>>) -> f64 {
    let Some(Value::List(list)) = list else { return 2.0 };
    match (!list.is_empty()).then(|| list.get(0)) {
        Some(Ok(Value::Text(_) | Value::Bytes(_))) => 2.0 + TEXT,
        _ => 2.0,
    }
}

fn affordable(list: &List<'_>) -> Result<()> {
    if list.len() > MOST { Err(EvalError::CostLimit) } else { Ok(()) }
}

/// The cost of one pass over a value and everything in it.
fn traverse(value: &Value<'_>) -> Result<u64> {
    Ok(match value {
        Value::Text(s) => (s.len() as f64 * TEXT) as u64,
        Value::Bytes(b) => (b.len() as f64 * TEXT) as u64,
        Value::List(list) => {
            affordable(list)?;
            list.iter().try_fold(0u64, |sum, v| Ok(sum.saturating_add(v.map_or(Ok(1), |v| traverse(&v))?)))?
        }
        Value::Map(map) => map.keys().iter().try_fold(0u64, |sum, key| {
            let inner = match map.find(key) {
                Ok(Some(v)) => traverse(&v)?,
                _ => 1,
            };
            Ok(sum.saturating_add(traverse(key)?).saturating_add(inner))
        })?,
        _ => 1,
    })
}

/// Twice the length of the string that `join` returns.
fn joined(args: &[Value<'_>]) -> Result<u64> {
    let Some(Value::List(list)) = args.first() else { return Ok(1) };
    affordable(list)?;
    let separator = args.get(1).map_or(0, size);
    let mut length = separator.saturating_mul((list.len() as u64).saturating_sub(1));
    for value in list.iter() {
        match value {
            Ok(value @ Value::Text(_)) => length = length.saturating_add(size(&value)),
            // The call will end with an error, whose size is 1.
            _ => return Ok(1),
        }
    }
    Ok((length as f64 * 2.0 * TEXT).ceil() as u64)
}
