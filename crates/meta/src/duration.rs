//! Durations as strings in Go's format, such as `1h30m`, `1.5s` and `-10ms`: those of the API, of configuration files and of flags.
use std::fmt;
use std::time::Duration;

/// The largest number of nanoseconds; a negative duration may have one more than a positive one.
const NANOS_MAX: u64 = 1 << 63;

/// The error of parsing a duration, with the message of Go's `time.ParseDuration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// The string has no number where one must be, or the duration exceeds 292 years.
    Invalid(String),
    /// A number of the string has no unit.
    MissingUnit(String),
    /// A number has another unit than `h`, `m`, `s`, `ms`, `us`, `µs` and `ns`.
    UnknownUnit {
        /// The unit of the number.
        unit: String,
        /// The whole string.
        text: String,
    },
    /// The duration is negative where that has no meaning.
    Negative,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => write!(f, "time: invalid duration {}", quoted(text)),
            Self::MissingUnit(text) => write!(f, "time: missing unit in duration {}", quoted(text)),
            Self::UnknownUnit { unit, text } => {
                write!(f, "time: unknown unit {} in duration {}", quoted(unit), quoted(text))
            }
            Self::Negative => f.write_str("must not be negative"),
        }
    }
}

impl std::error::Error for DurationError {}

/// The string in quotes, as Go's `time` prints it in errors.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='\x7f' => out.push(c),
            _ => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out.push_str(&format!("\\x{byte:02x}"))),
        }
    }
    out.push('"');
    out
}

/// Parses a duration that must not be negative.
///
/// # Errors
/// See [`DurationError`].
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_nanos(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| DurationError::Negative)
}

/// Parses a duration with or without a sign; returns its nanoseconds.
///
/// # Errors
/// See [`DurationError`]; a negative duration is none.
pub fn parse_nanos(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let count: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let Some(scale) = nanos_of(unit) else {
            return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() });
        };
        let nanos = count.checked_mul(scale).and_then(|nanos| nanos.checked_add(part(fraction, scale)));
        let sum = nanos.and_then(|nanos| total.checked_add(nanos)).filter(|sum| *sum <= NANOS_MAX);
        (total, rest) = (sum.ok_or_else(invalid)?, next);
    }
    let signed = if is_negative { 0i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() };
    signed.ok_or_else(invalid)
}

/// Splits a string after its first digits.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Returns the nanoseconds of a unit.
fn nanos_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Returns the nanoseconds of the digits after a decimal point, rounded as Go does: digits that do not fit an integer are ignored, and
/// the product is that of floats.
fn part(fraction: &str, scale: u64) -> u64 {
    let (mut number, mut power) = (0u64, 1f64);
    for digit in fraction.bytes() {
        let next = number.checked_mul(10).and_then(|n| n.checked_add(u64::from(digit - b'0')));
        let Some(next) = next.filter(|next| *next <= NANOS_MAX) else { break };
        (number, power) = (next, power * 10.0);
    }
    // Less than one unit, which fits.
    (number as f64 * (scale as f64 / power)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_parses_them() {
        for (text, nanos) in [
            ("1h2m3.5s", 3_723_500_000_000),
            ("-10ms", -10_000_000),
            ("+5s", 5_000_000_000),
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1us", 1_000),
            ("1\u{b5}s", 1_000),
            ("1\u{3bc}s", 1_000),
            ("1.5ns", 1),
            ("1h1h", 7_200_000_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.9223372036854775807h", 3_320_413_933_267),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("2562047h47m16.854775807s", i64::MAX),
        ] {
            assert_eq!(parse_nanos(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn errors_as_go_words_them() {
        for (text, error) in [
            ("", r#"invalid duration """#),
            ("-", r#"invalid duration "-""#),
            ("s", r#"invalid duration "s""#),
            (".s", r#"invalid duration ".s""#),
            ("3", r#"missing unit in duration "3""#),
            ("1.2.3s", r#"missing unit in duration "1.2.3s""#),
            ("3 s", r#"unknown unit " s" in duration "3 s""#),
            ("1d", r#"unknown unit "d" in duration "1d""#),
            ("1H", r#"unknown unit "H" in duration "1H""#),
            ("1\u{b5}", r#"unknown unit "\xc2\xb5" in duration "1\xc2\xb5""#),
            ("1\"s", r#"unknown unit "\"s" in duration "1\"s""#),
            ("1\\", r#"unknown unit "\\" in duration "1\\""#),
            ("\u{661}s", r#"invalid duration "\xd9\xa1s""#),
            ("9223372036854775808ns", r#"invalid duration "9223372036854775808ns""#),
            ("-9223372036854775809ns", r#"invalid duration "-9223372036854775809ns""#),
            ("2562048h", r#"invalid duration "2562048h""#),
            ("99999999999999999999x", r#"invalid duration "99999999999999999999x""#),
        ] {
            assert_eq!(parse_nanos(text).map_err(|e| e.to_string()), Err(format!("time: {error}")), "{text}");
        }
    }

    #[test]
    fn a_negative_duration_is_an_error_where_it_has_no_meaning() {
        assert_eq!(parse_duration("-1s"), Err(DurationError::Negative));
        assert_eq!(parse_duration("-0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1"), Err(DurationError::MissingUnit("1".to_owned())));
    }
}
