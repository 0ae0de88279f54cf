//! Conversion of numbers as Go does it.
use serde_json::Number;

/// An integer if the number has no point and fits, otherwise a float.
pub(super) fn untyped_number(text: &str) -> Option<Number> {
    if !text.contains('.')
        && let Ok(integer) = text.parse::<i64>()
    {
        return Some(Number::from(integer));
    }
    float(text)
}

/// A number of unknown type. A number that is spelled as a float stays a float.
pub(super) fn spelled_number(text: &str) -> Option<Number> {
    if text.contains(['.', 'e', 'E']) { Number::from_f64(text.parse().ok()?) } else { untyped_number(text) }
}

/// A float. Whole numbers become integers, as Go prints them without a point.
pub(super) fn float(text: &str) -> Option<Number> {
    let value: f64 = text.parse().ok()?;
    canonical_float(value)
}

/// A float as Kubernetes' JSON writes it, with whole numbers as integers. Returns `None` if JSON cannot represent it.
pub(crate) fn canonical_float(value: f64) -> Option<Number> {
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}
