//! Paths and filters in the jq language, which selectors and values of stages use.
use std::fmt;

use jaq_core::data::JustLut;
use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Filter, Vars};
use jaq_json::Val;
use serde::Deserialize as _;
use serde_json::Value;

use crate::error::StageError;

/// The maximum number of results of one evaluation. Further results are ignored.
const VALUES_MAX: usize = 10_000;

/// A compiled jq filter.
pub struct Query(Filter<JustLut<Val>>);

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Query")
    }
}

/// Converts JSON to the value type of the jq library.
pub fn document(value: &Value) -> Val {
    // This conversion cannot fail: every JSON value is also a jq value.
    Val::deserialize(value).unwrap_or_default()
}

/// One result of a query.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryResult {
    /// A string result, without quotes.
    Text(String),
    /// A result of another type, as jq prints it.
    Other(String),
}

impl QueryResult {
    /// Returns the result in the form in which requirements write values.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Other(text) => text,
        }
    }
}

impl Query {
    /// Compiles a filter.
    ///
    /// # Errors
    /// Fails when the filter is invalid.
    pub fn new(text: &str) -> Result<Self, StageError> {
        let wrong = || StageError::new("jq", format!("must be a jq filter, got {text:?}"));
        let loader = Loader::new(jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs()));
        let arena = Arena::default();
        let modules = loader.load(&arena, File { code: text, path: () }).map_err(|_| wrong())?;
        let functions = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
        Ok(Self(Compiler::default().with_funs(functions).compile(modules).map_err(|_| wrong())?))
    }

    /// Returns the results except nulls. An error, such as a path through a missing value, gives no results.
    pub fn run(&self, document: &Val) -> Vec<QueryResult> {
        let context = Ctx::<JustLut<Val>>::new(&self.0.lut, Vars::new([]));
        let values = self.0.id.run((context, document.clone())).take(VALUES_MAX);
        let mut found = Vec::new();
        for value in values {
            match value {
                Ok(Val::Null) => {}
                Ok(Val::TStr(text)) => found.push(QueryResult::Text(String::from_utf8_lossy(&text).into_owned())),
                Ok(other) => found.push(QueryResult::Other(other.to_string())),
                Err(_) => return Vec::new(),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn filters() {
        let object = json!({"metadata": {"labels": {"a.b/c": "x"}, "finalizers": ["f", "g"]}, "spec": {"n": 3, "on": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}});
        let object = document(&object);
        for (filter, expected) in [
            (".metadata.labels[\"a.b/c\"]", "x"),
            (".metadata.finalizers.[]", "f g"),
            (".metadata.finalizers[1]", "g"),
            (".spec.n", "3"),
            (".spec.on", "true"),
            (".status.conditions.[] | select( .type == \"Ready\" ) | .status", "True"),
            (".status.conditions | length", "2"),
            (".status.conditions | map(.type) | join(\",\")", "Ready,Other"),
            (".spec.n | . + 4", "7"),
            (".metadata.labels[\"a.b/c\"] | test(\"^x$\")", "true"),
            // Nothing, since there is nothing.
            (".metadata.annotations[\"x\"]", ""),
            (".metadata.ownerReferences.[].kind", ""),
            (".spec.n.m", ""),
            (".status.conditions[] | error", ""),
            ("halt", ""),
        ] {
            let found = Query::new(filter).unwrap().run(&object);
            let found: Vec<_> = found.iter().map(QueryResult::text).collect();
            assert_eq!(found.join(" "), expected, "{filter}");
        }
        for wrong in [".[", "nosuchfunction", ".a |"] {
            assert!(Query::new(wrong).is_err(), "{wrong}");
        }
        // Without an end: as much as is looked at.
        assert_eq!(Query::new("repeat(1)").unwrap().run(&object).len(), VALUES_MAX);
    }
}
