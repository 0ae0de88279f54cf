//! Lists: of JSON, of values, and concatenations.
use std::sync::Arc;

use super::data::{Joined, List, Value};
use super::error::{EvalError, Result};
use super::json;
use crate::types::decl::ListKind;

/// The most elements of a list. Data cannot have more; only repeated doubling of a list reaches this.
pub(crate) const MOST: usize = 4_000_000;
/// The depth beyond which concatenated lists are copied, so that reading stays cheap.
const DEPTH: u32 = 32;
/// The length up to which concatenated lists are copied at once.
const SHORT: usize = 16;

impl<'a> List<'a> {
    pub(crate) fn values(values: Vec<Value<'a>>) -> List<'a> {
        List::Values(Arc::new(values), None)
    }
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            List::Json(items, ..) => items.len(),
            List::Values(values, _) => values.len(),
            List::Joined(joined) => joined.len,
        }
    }
    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn depth(&self) -> u32 {
        match self {
            List::Joined(joined) => joined.depth,
            _ => 0,
        }
    }
    pub(crate) fn kind(&self) -> &ListKind {
        match self {
            List::Json(_, _, kind) => kind,
            List::Values(_, Some(kind)) => kind,
            _ => &ListKind::Atomic,
        }
    }
    /// The element at an index, which must be less than [`List::len`].
    pub fn get(&self, index: usize) -> Result<Value<'a>> {
        match self {
            List::Json(items, element, _) => json::read(&items[index], element),
            List::Values(values, _) => Ok(values[index].clone()),
            List::Joined(joined) => match index.checked_sub(joined.left.len()) {
                None => joined.left.get(index),
                Some(index) => joined.right.get(index),
            },
        }
    }
    /// All elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>>> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }
    /// Adds an element, in place if the list is not shared.
    pub(crate) fn push(&mut self, value: Value<'a>) -> Result<()> {
        if let List::Values(values, _) = self
            && let Some(values) = Arc::get_mut(values)
        {
            values.push(value);
            return Ok(());
        }
        let old = std::mem::replace(self, List::Values(Arc::new(Vec::new()), None));
        *self = old.join(List::values(vec![value]))?;
        Ok(())
    }

    /// `self + other`: a concatenation, or for sets and keyed lists a merge by their kind.
    pub(crate) fn add(self, other: List<'a>) -> Result<List<'a>> {
        match &self {
            List::Json(_, _, kind) | List::Values(_, Some(kind)) => match *kind {
                ListKind::Atomic => self.join(other),
                ListKind::Set => self.union(&other, kind),
                ListKind::Map(keys) => self.merge(&other, kind, keys),
            },
            _ => self.join(other),
        }
    }

    fn join(self, other: List<'a>) -> Result<List<'a>> {
        if other.is_empty() {
            return Ok(self);
        }
        let len = self.len().saturating_add(other.len());
        let depth = 1 + self.depth().max(other.depth());
        if len > SHORT && depth <= DEPTH {
            return Ok(List::Joined(Arc::new(Joined { left: self, right: other, len, depth })));
        }
        if len > MOST {
            return Err(EvalError::CostLimit);
        }
        Ok(List::values(self.iter().chain(other.iter()).collect::<Result<_>>()?))
    }

    /// Appends the elements of the other list that are not in this one.
    fn union(&self, other: &List<'a>, kind: &'a ListKind) -> Result<List<'a>> {
        let mut values = self.iter().collect::<Result<Vec<_>>>()?;
        let mut seen: std::collections::HashSet<Scalar> = values.iter().map(scalar).collect();
        for value in other.iter() {
            let value = value?;
            if seen.insert(scalar(&value)) {
                values.push(value);
            }
        }
        Ok(List::Values(Arc::new(values), Some(kind)))
    }

    /// Replaces elements by those of the other list with the same key, and appends the rest.
    fn merge(&self, other: &List<'a>, kind: &'a ListKind, keys: &[String]) -> Result<List<'a>> {
        let mut values = self.iter().collect::<Result<Vec<_>>>()?;
        let mut places = std::collections::HashMap::new();
        for (i, value) in values.iter().enumerate() {
            places.insert(map_key(value, keys)?, i);
        }
        for value in other.iter() {
            let value = value?;
            match places.get(&map_key(&value, keys)?) {
                Some(i) => values[*i] = value,
                None => values.push(value),
            }
        }
        Ok(List::Values(Arc::new(values), Some(kind)))
    }
}

/// A scalar as a lookup key. All values that are not scalars have one common key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scalar {
    Text(String),
    Int(i64),
    Uint(u64),
    Double(u64),
    Bool(bool),
    Bytes(Vec<u8>),
    Other(String),
}

pub(crate) fn scalar(value: &Value<'_>) -> Scalar {
    match value {
        Value::Text(s) => Scalar::Text(s.to_string()),
        Value::Int(n) => Scalar::Int(*n),
        Value::Uint(n) => Scalar::Uint(*n),
        Value::Double(d) => Scalar::Double((d + 0.0).to_bits()),
        Value::Bool(b) => Scalar::Bool(*b),
        Value::Bytes(b) => Scalar::Bytes(b.to_vec()),
        other => Scalar::Other(other.to_string()),
    }
}

/// The values of an element's key properties.
pub(crate) fn map_key(value: &Value<'_>, keys: &[String]) -> Result<Vec<Option<Scalar>>> {
    let Value::Map(map) = value else {
        return Err(EvalError::new("unexpected data format for element of array with x-kubernetes-list-type=map"));
    };
    keys.iter()
        .map(|key| {
            let identifier = crate::types::escape::escape(key).unwrap_or(key.into());
            Ok(map.field(&identifier)?.as_ref().map(scalar))
        })
        .collect()
}

/// The list index that a value denotes. Doubles and unsigned numbers are accepted if they are whole.
pub(crate) fn index(key: &Value<'_>) -> Result<i64> {
    match key {
        Value::Int(i) => Ok(*i),
        Value::Uint(u) => i64::try_from(*u).map_err(|_| EvalError::new(format!("unsupported index value {u} in list"))),
        Value::Double(d) if d.fract() == 0.0 && d.abs() < 9.2e18 => Ok(*d as i64),
        Value::Double(_) => Err(EvalError::new(format!("unsupported index value {key} in list"))),
        other => Err(EvalError::new(format!("unsupported index type '{}' in list", other.type_name()))),
    }
}
