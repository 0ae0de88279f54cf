//! Weights and durations: a constant, or the result of an expression for the object.
use std::time::Duration;

use jaq_json::Val;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::document::From;
use crate::error::StageError;
use crate::expression::Expression;
use crate::query::{Query, QueryResult};

/// The object in both forms that expressions read.
pub struct Subject<'a> {
    /// The object as JSON, for CEL.
    pub object: &'a Value,
    /// The object as a jq value.
    pub document: Val,
}

impl<'a> Subject<'a> {
    /// Converts an object to both forms.
    pub fn of(object: &'a Value) -> Self {
        Self { object, document: crate::query::document(object) }
    }
}

#[derive(Debug)]
enum Source {
    Cel(Expression),
    Jq(Query),
}

/// A value from an expression, with a constant for objects without a result.
#[derive(Debug)]
pub struct ExpressionValue {
    usual: Option<i64>,
    source: Option<Source>,
}

impl ExpressionValue {
    /// Creates a value from the constant `usual` and the expression `from`.
    ///
    /// # Errors
    /// Fails when the expression is invalid.
    pub fn new(usual: Option<i64>, from: Option<&From>) -> Result<Self, StageError> {
        let source = match from {
            None => None,
            Some(From { cel: Some(cel), .. }) => Some(Source::Cel(Expression::new(&cel.expression)?)),
            Some(from) => from.path().map(Query::new).transpose()?.map(Source::Jq),
        };
        Ok(Self { usual, source })
    }

    /// Returns whether there is neither a constant nor an expression.
    pub fn is_empty(&self) -> bool {
        self.usual.is_none() && self.source.is_none()
    }

    /// Evaluates to an integer. Returns `None` when the result is an empty string or missing.
    ///
    /// # Errors
    /// Fails when the expression cannot be evaluated, or when the result is no number.
    pub fn number(&self, subject: &Subject<'_>) -> Result<Option<i64>, StageError> {
        match &self.source {
            None => Ok(self.usual),
            Some(Source::Cel(cel)) => {
                let value = cel.value(subject.object)?;
                let number = value.as_i64().or_else(|| value.as_f64().map(truncated));
                let number = number.or_else(|| value.as_bool().map(i64::from));
                number.map(Some).ok_or_else(|| StageError::new("cel", format!("must be a number, got {value}")))
            }
            Some(Source::Jq(query)) => Ok(match query.run(&subject.document).first() {
                Some(QueryResult::Text(text)) => integer(text),
                Some(QueryResult::Other(text)) => text.parse().ok().map(truncated).or(self.usual),
                None => self.usual,
            }),
        }
    }

    /// Evaluates to a duration. The result may be a string in Go's format (`1.5s`), or a time, which counts from
    /// `now`. Without a result, the constant applies, in milliseconds.
    ///
    /// # Errors
    /// Fails when the expression cannot be evaluated, or when the result is no duration.
    pub fn duration(&self, subject: &Subject<'_>, now: Timestamp) -> Result<Option<Duration>, StageError> {
        let usual = self.usual.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
        match &self.source {
            None => Ok(usual),
            Some(Source::Cel(cel)) => {
                let value = cel.value(subject.object)?;
                let text = value.as_str().and_then(|t| spoken(t, now));
                // A number without a unit is in nanoseconds, like Go's durations.
                let number = value.as_f64().map(|n| Duration::from_nanos(truncated(n).max(0).unsigned_abs()));
                let wrong = || StageError::new("cel", format!("must be a duration, got {value}"));
                text.or(number).map(Some).ok_or_else(wrong)
            }
            Some(Source::Jq(query)) => Ok(match query.run(&subject.document).first() {
                Some(QueryResult::Text(text)) if text.is_empty() => None,
                Some(QueryResult::Text(text)) => spoken(text, now).or(usual),
                _ => usual,
            }),
        }
    }
}

/// Converts a float to an integer as Go does, saturating at the limits.
fn truncated(n: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, which is what is wanted")]
    let n = n as i64;
    n
}

/// Parses an integer like Go's `strconv.ParseInt` with base 0.
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, &*lower),
    };
    i64::from_str_radix(digits, radix).ok().map(|n| sign * n)
}

fn spoken(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.duration_since(now).try_into().unwrap_or_default());
    }
    Some(duration(text)?.try_into().unwrap_or_default())
}

/// Parses a duration in Go's format: `1h2m3.5s`, `-10ms`, `0`.
pub fn duration(text: &str) -> Option<SignedDuration> {
    kelson_meta::parse_nanos(text).ok().map(SignedDuration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn from(path: &str) -> From {
        From { expression_from: path.to_owned(), ..From::default() }
    }

    fn cel(text: &str) -> From {
        serde_json::from_value(json!({"cel": {"expression": text}})).unwrap()
    }

    #[test]
    fn numbers() {
        let object = json!({"a": {"w": "10", "empty": "", "bad": "x", "hex": "0x10", "n": 7, "not": true}});
        let subject = Subject::of(&object);
        for (from, expected) in [
            (from(".a.w"), Some(10)),
            (from(".a.hex"), Some(16)),
            (from(".a.n"), Some(7)),
            (from(".a.absent"), Some(1)),
            (from(".a.not"), Some(1)),
            // The result of the expression wins, even if it is no number.
            (from(".a.empty"), None),
            (from(".a.bad"), None),
            (cel("self.a.n * 2"), Some(14)),
            (cel("self.a.n > 2"), Some(1)),
        ] {
            assert_eq!(ExpressionValue::new(Some(1), Some(&from)).unwrap().number(&subject), Ok(expected), "{from:?}");
        }
        assert_eq!(ExpressionValue::new(Some(3), None).unwrap().number(&subject), Ok(Some(3)));
        assert!(ExpressionValue::new(None, Some(&cel("'x'"))).unwrap().number(&subject).is_err());
    }

    #[test]
    fn durations() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let object = json!({"a": {"d": "1m1.5s", "t": "2026-01-02T03:04:25Z", "past": "2026-01-01T00:00:00Z", "empty": "", "bad": "soon"}});
        let subject = Subject::of(&object);
        let ms = |n| Some(Duration::from_millis(n));
        for (from, expected) in [
            (from(".a.d"), ms(61_500)),
            (from(".a.t"), ms(20_000)),
            (from(".a.past"), ms(0)),
            (from(".a.empty"), None),
            (from(".a.bad"), ms(250)),
            (from(".a.absent"), ms(250)),
            (cel("'3s'"), ms(3000)),
            (cel("1000000000"), ms(1000)),
        ] {
            assert_eq!(
                ExpressionValue::new(Some(250), Some(&from)).unwrap().duration(&subject, now),
                Ok(expected),
                "{from:?}"
            );
        }
        for (text, seconds) in [("1h", 3600.0), ("-2m", -120.0), ("1.5ms", 0.0015), ("0", 0.0)] {
            assert_eq!(duration(text).map(|d| d.as_secs_f64()), Some(seconds), "{text}");
        }
        for wrong in ["", "1", "s", "1x", "1.2.3s"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
