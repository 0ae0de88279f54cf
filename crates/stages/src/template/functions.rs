//! The table of all template functions by name.
use std::sync::Arc;

use gotmpl::{FuncMap, TemplateError, Value, ValueFunc};

use super::arguments::{Arguments, Row, fault};
use super::surroundings::Surroundings;
use super::{cluster, lists, numbers, text, times};

/// Returns all template functions. Some of them read `surroundings`.
pub fn all(surroundings: &Arc<dyn Surroundings>) -> FuncMap {
    let rows = [text::ROWS, lists::ROWS, numbers::ROWS, times::ROWS].concat();
    let mut functions: FuncMap = rows.into_iter().map(pure).collect();
    functions.extend(cluster::functions(surroundings).map(|(name, function)| (name.to_owned(), function)));
    let asked = Arc::clone(surroundings);
    let now: ValueFunc = Arc::new(move |_: &[Value]| Ok(super::convert::text(cluster::written(asked.now()))));
    functions.insert("now".to_owned(), now);
    functions
}

fn pure((name, least, function): Row) -> (String, ValueFunc) {
    let call: ValueFunc = Arc::new(move |a: &[Value]| {
        if a.len() < least {
            return Err(fault(format!("{name}: requires {least} arguments, got {}", a.len())));
        }
        function(&Arguments(a)).map_err(|e| match e {
            TemplateError::Exec(why) => fault(format!("{name}: {why}")),
            other => other,
        })
    });
    (name.to_owned(), call)
}
