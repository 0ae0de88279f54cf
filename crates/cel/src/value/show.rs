//! The format of values in messages.
use std::fmt;

use super::data::{Map, Value};
use super::time;

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Uint(n) => write!(f, "{n}"),
            Value::Double(d) => f.write_str(&double(*d)),
            Value::Text(s) | Value::Type(s) => f.write_str(s),
            Value::Bytes(b) => f.write_str(&String::from_utf8_lossy(b)),
            Value::Timestamp(t) => write!(f, "{t}"),
            Value::Duration(d) => f.write_str(&time::duration_text(*d)),
            Value::List(list) => {
                f.write_str("[")?;
                for (i, value) in list.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    match value {
                        Ok(value) => write!(f, "{value}")?,
                        Err(e) => write!(f, "{e}")?,
                    }
                }
                f.write_str("]")
            }
            Value::Map(map) => show_map(f, map),
            Value::Optional(Some(value)) => write!(f, "optional({value})"),
            Value::Optional(None) => f.write_str("optional.none()"),
            Value::Opaque(o) => write!(f, "{o}"),
            Value::Unknown(json) => write!(f, "{json}"),
            Value::Variables => f.write_str("{}"),
        }
    }
}

fn show_map(f: &mut fmt::Formatter<'_>, map: &Map<'_>) -> fmt::Result {
    f.write_str("{")?;
    for (i, key) in map.keys().into_iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{key}: ")?;
        match map.find(&key) {
            Ok(Some(value)) => write!(f, "{value}")?,
            Ok(None) => {}
            Err(e) => write!(f, "{e}")?,
        }
    }
    f.write_str("}")
}

/// `string(double)`, like Go's `%g`: the shortest digits that parse to the same number, with an exponent far from 1.
pub(crate) fn double(d: f64) -> String {
    if d.is_nan() {
        return "NaN".into();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{d:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if d != 0.0 && !(-4..6).contains(&exponent) {
        return format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    }
    format!("{d}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles() {
        for (d, text) in [
            (1.5, "1.5"),
            (2.0, "2"),
            (1e21, "1e+21"),
            (123456.0, "123456"),
            (1234567.0, "1.234567e+06"),
            (1.25e-7, "1.25e-07"),
            (0.0001, "0.0001"),
            (0.0, "0"),
        ] {
            assert_eq!(double(d), text);
        }
    }
}
