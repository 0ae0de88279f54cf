//! Dates, times and durations.

/// A date `2006-01-02` that exists in the calendar.
pub fn is_date(text: &str) -> bool {
    let b = text.as_bytes();
    if b.len() != 10 || b[4] != b'-' || b[7] != b'-' {
        return false;
    }
    let number = |part: &[u8]| -> Option<u32> {
        part.iter().try_fold(0, |n, c| c.is_ascii_digit().then(|| n * 10 + u32::from(c - b'0')))
    };
    let (Some(year), Some(month), Some(day)) = (number(&b[..4]), number(&b[5..7]), number(&b[8..])) else {
        return false;
    };
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// Accepts a date, a `t`, and a time with its zone, in either case and with any character before a fraction.
pub fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    is_date(date) && is_time(time)
}

fn is_time(text: &str) -> bool {
    let b = text.as_bytes();
    let pair = |at: usize, max: &[u8]| b.get(at..at + 2).is_some_and(|p| p.iter().all(u8::is_ascii_digit) && p <= max);
    if !(pair(0, b"23") && pair(3, b"59") && pair(6, b"59")) || b[2] != b':' || b[5] != b':' {
        return false;
    }
    let Some(mut rest) = text.get(8..) else { return false };
    let mut chars = rest.chars();
    if chars.next().is_some() {
        let digits = chars.as_str();
        let zone = digits.trim_start_matches(|c: char| c.is_ascii_digit());
        if zone.len() < digits.len() && is_zone(zone) {
            rest = zone;
        }
    }
    is_zone(rest)
}

fn is_zone(text: &str) -> bool {
    match text.as_bytes() {
        [b'z'] => true,
        [b'+' | b'-', a, b, b':', c, d] => [a, b, c, d].iter().all(|c| c.is_ascii_digit()),
        _ => false,
    }
}

/// The names of units. The last one of a line may have an ending, as in `minutes`.
const UNITS: &[&[&str]] = &[
    &["ns", "nano"],
    &["us", "µs", "micro"],
    &["ms", "milli"],
    &["s", "sec"],
    &["m", "min"],
    &["h", "hr", "hour"],
    &["d", "day"],
    &["w", "wk", "week"],
];

/// Accepts a duration in Go's format, or numbers with units, such as `3 days`.
pub fn is_duration(text: &str) -> bool {
    kelson_meta::parse_nanos(text).is_ok() || worded_duration(text)
}

/// Reports whether the string contains a number with a unit. Each number with letters after it must fit 64 bits.
fn worded_duration(text: &str) -> bool {
    let mut found = false;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let number_and_on = &rest[at..];
        let after = number_and_on.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &number_and_on[..number_and_on.len() - after.len()];
        let unit_and_on = after.trim_start_matches(['\t', '\n', '\x0c', '\r', ' ']);
        let tail = unit_and_on.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
        let unit = unit_and_on[..unit_and_on.len() - tail.len()].to_lowercase();
        rest = tail;
        if unit.is_empty() {
            continue;
        }
        if number.parse::<i64>().is_err() {
            return false;
        }
        found |= UNITS
            .iter()
            .any(|names| names.contains(&unit.as_str()) || names.last().is_some_and(|last| unit.starts_with(last)));
    }
    found
}
