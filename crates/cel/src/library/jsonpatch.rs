//! Escaping of keys in the paths of JSON patches. Only mutating policies have this library.
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::Result;

pub(super) const ROWS: &[Row] =
    &[Row("string_jsonpatch_escapeKey_string", "jsonpatch.escapeKey(string) -> string", escape_key, Rule::Pass)];

fn escape_key<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Text(s)] => Ok(Value::text(s.replace('~', "~0").replace('/', "~1"))),
        _ => Err(not_for("jsonpatch.escapeKey", args)),
    }
}
