//! The functions of Kubernetes 1.36's environment (`apiserver/pkg/cel/environment/base.go`). Each library is a file with one row per
//! overload: its signature, its implementation and its cost.
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
mod row;
pub(crate) mod semver;
mod sets;
mod sort;
mod strings;
mod text;
mod timestamps;
mod urls;

use std::collections::HashMap;
use std::sync::OnceLock;

pub(crate) use row::{Overload, not_for};

use crate::types::signature;
use crate::types::ty::Type;
use row::Row;

const LIBRARIES: [&[&[Row]]; 6] = [
    &[operators::ROWS, convert::ROWS, text::ROWS, timestamps::ROWS, regex::ROWS],
    &[strings::ROWS, format::ROWS, sets::ROWS, optional::ROWS],
    &[lists::ROWS, sort::ROWS],
    &[urls::ROWS, ip::ROWS, cidr::ROWS, quantity::ROWS],
    &[semver::ROWS, formats::ROWS, jsonpatch::ROWS],
    &[authz::ROWS],
];

/// All overloads of a function. Empty if there is no such function.
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
