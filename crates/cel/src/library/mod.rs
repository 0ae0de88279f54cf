//! The functions of Kubernetes 1.36's environment (`apiserver/pkg/cel/environment/base.go`): a file for each library, and in it a
//! row for each overload with its signature, what it does and what it costs.
pub(crate) mod format;
pub(crate) mod formats;
pub(crate) mod regex;

mod authz;
mod cidr;
pub(crate) mod convert;
mod ip;
mod jsonpatch;
mod lists;
mod operators;
mod optional;
mod quantity;
mod semver;
mod sets;
mod sort;
mod strings;
mod text;
mod timestamps;
mod urls;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::cost::Rule;
use crate::types::signature;
use crate::types::ty::Type;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

/// What a function does with its arguments, the receiver first.
pub(crate) type Do = for<'a> fn(&[Value<'a>]) -> Result<Value<'a>>;

/// One line of a library's table.
pub(crate) struct Row(pub &'static str, pub &'static str, pub Do, pub Rule);

/// One of the forms of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub id: &'static str,
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    /// Whether there are type parameters in it.
    pub parametric: bool,
    pub run: Do,
    pub cost: Rule,
}

impl Overload {
    /// Whether it is made for such arguments; parameters and dyn take anything.
    pub fn takes(&self, args: &[Value<'_>]) -> bool {
        self.args.len() == args.len() && self.args.iter().zip(args).all(|(ty, value)| is(ty, value))
    }
}

fn is(ty: &Type, value: &Value<'_>) -> bool {
    match ty {
        Type::Dyn | Type::Param(_) | Type::Var(_) | Type::Error => true,
        Type::Map(_) => matches!(value, Value::Map(_) | Value::Variables),
        // The first element speaks for all, as in cel-go.
        Type::List(element) => match value {
            Value::List(list) if list.is_empty() => true,
            Value::List(list) => list.get(0).is_ok_and(|first| is(element, &first)),
            _ => false,
        },
        ty => ty.name() == value.type_name(),
    }
}

const LIBRARIES: [&[&[Row]]; 6] = [
    &[operators::ROWS, convert::ROWS, text::ROWS, timestamps::ROWS, regex::ROWS],
    &[strings::ROWS, format::ROWS, sets::ROWS, optional::ROWS],
    &[lists::ROWS, sort::ROWS],
    &[urls::ROWS, ip::ROWS, cidr::ROWS, quantity::ROWS],
    &[semver::ROWS, formats::ROWS, jsonpatch::ROWS],
    &[authz::ROWS],
];

/// All overloads of a function; none when there is no such function.
pub(crate) fn overloads(function: &str) -> &'static [Overload] {
    static TABLE: OnceLock<HashMap<String, Vec<Overload>>> = OnceLock::new();
    TABLE.get_or_init(table).get(function).map_or(&[], Vec::as_slice)
}

fn table() -> HashMap<String, Vec<Overload>> {
    let mut table: HashMap<String, Vec<Overload>> = HashMap::new();
    for Row(id, line, run, cost) in LIBRARIES.iter().flat_map(|l| l.iter()).flat_map(|rows| rows.iter()) {
        let s = signature::parse(line);
        let parametric = s.args.iter().chain([&s.result]).any(has_param);
        let overload =
            Overload { id, member: s.member, args: s.args, result: s.result, parametric, run: *run, cost: *cost };
        table.entry(s.function).or_default().push(overload);
    }
    table
}

fn has_param(ty: &Type) -> bool {
    match ty {
        Type::Param(_) => true,
        Type::List(t) | Type::Optional(t) | Type::Type(Some(t)) => has_param(t),
        Type::Map(entry) => has_param(&entry.0) || has_param(&entry.1),
        _ => false,
    }
}

/// Of rows whose work the evaluator does itself.
fn elsewhere<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Err(EvalError::no_overload())
}

/// The fault of arguments that a function is not made for.
pub(crate) fn not_for(function: &str, args: &[Value<'_>]) -> EvalError {
    let types: Vec<&str> = args.iter().map(Value::type_name).collect();
    EvalError::new(format!("no such overload: {function}({})", types.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read_and_no_id_is_there_twice() {
        let mut ids: Vec<&str> = table().values().flatten().map(|o| o.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), ids.len() > 250), (count, true));
    }
}
