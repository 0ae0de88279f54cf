//! Times, durations and quantities as strings, with Go's formats, checks and messages.
use crate::DecodeError;

const RFC3339: &str = "2006-01-02T15:04:05Z07:00";
const RFC3339_MICRO: &str = "2006-01-02T15:04:05.000000Z07:00";
/// The Unix time of Go's zero time, 0001-01-01T00:00:00Z.
pub(crate) const ZERO_SECONDS: i64 = -62_135_596_800;

/// A point in time: Unix seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub seconds: i64,
    pub nanos: u32,
}

impl Moment {
    pub(crate) fn is_zero(self) -> bool {
        self.seconds == ZERO_SECONDS && self.nanos == 0
    }
}

/// Parses RFC 3339 as Go's `time.Parse` does. With `micro`, six fractional digits are required.
pub(crate) fn parse_time(text: &str, micro: bool) -> Result<Moment, DecodeError> {
    let layout = if micro { RFC3339_MICRO } else { RFC3339 };
    parse_parts(text, micro).map_err(|(rest, element)| {
        let suffix = match element {
            "" => ": extra text: ".to_owned() + &go_quote(rest),
            "day" | "month" | "hour" | "minute" | "second" => format!(": {element} out of range"),
            _ => format!(" as {}: cannot parse {} as {}", go_quote(layout), go_quote(rest), go_quote(element)),
        };
        DecodeError::Json(format!("parsing time {}{suffix}", go_quote(text)))
    })
}

type Bad<'a> = (&'a str, &'static str);

fn parse_parts(text: &str, micro: bool) -> Result<Moment, Bad<'_>> {
    let mut rest = text;
    let year = digits(&mut rest, 4, "2006")?;
    literal(&mut rest, "-")?;
    let month = digits(&mut rest, 2, "01")?;
    literal(&mut rest, "-")?;
    let day = digits(&mut rest, 2, "02")?;
    literal(&mut rest, "T")?;
    let hour = digits(&mut rest, 2, "15")?;
    literal(&mut rest, ":")?;
    let minute = digits(&mut rest, 2, "04")?;
    literal(&mut rest, ":")?;
    let second = digits(&mut rest, 2, "05")?;
    let nanos = fraction(&mut rest, micro)?;
    let offset = offset(&mut rest)?;
    if !rest.is_empty() {
        return Err((rest, ""));
    }
    for (bad, what) in [
        (!(1..=12).contains(&month), "month"),
        (day < 1 || day > days_in(year, month), "day"),
        (hour > 23, "hour"),
        (minute > 59, "minute"),
        (second > 59, "second"),
    ] {
        if bad {
            return Err((rest, what));
        }
    }
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Ok(Moment { seconds, nanos })
}

fn digits<'a>(rest: &mut &'a str, count: usize, element: &'static str) -> Result<i64, Bad<'a>> {
    match rest.get(..count) {
        Some(d) if d.bytes().all(|b| b.is_ascii_digit()) => {
            *rest = &rest[count..];
            Ok(d.parse().unwrap_or(0))
        }
        _ => Err((rest, element)),
    }
}

fn literal<'a>(rest: &mut &'a str, expected: &'static str) -> Result<(), Bad<'a>> {
    *rest = rest.strip_prefix(expected).ok_or((*rest, expected))?;
    Ok(())
}

fn fraction<'a>(rest: &mut &'a str, micro: bool) -> Result<u32, Bad<'a>> {
    let Some(after) = rest.strip_prefix('.') else {
        return if micro { Err((rest, ".000000")) } else { Ok(0) };
    };
    let len = after.bytes().take_while(u8::is_ascii_digit).count();
    if len == 0 || micro && len < 6 {
        return Err((rest, if micro { ".000000" } else { "Z07:00" }));
    }
    let mut nanos = 0u32;
    for i in 0..9 {
        nanos = nanos * 10 + after.as_bytes().get(i).filter(|_| i < len).map_or(0, |b| u32::from(b - b'0'));
    }
    *rest = &after[len..];
    Ok(nanos)
}

fn offset<'a>(rest: &mut &'a str) -> Result<i64, Bad<'a>> {
    let at = *rest;
    if let Some(after) = at.strip_prefix('Z') {
        *rest = after;
        return Ok(0);
    }
    let sign = match at.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return Err((at, "Z07:00")),
    };
    let mut after = &at[1..];
    let hours = digits(&mut after, 2, "Z07:00").map_err(|_| (at, "Z07:00"))?;
    literal(&mut after, ":").map_err(|_| (at, "Z07:00"))?;
    let minutes = digits(&mut after, 2, "Z07:00").map_err(|_| (at, "Z07:00"))?;
    if hours > 24 || minutes > 60 {
        return Err((at, "Z07:00"));
    }
    *rest = after;
    Ok(sign * (hours * 3600 + minutes * 60))
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// Formats a point in time in UTC.
pub(crate) fn format_time(moment: Moment, micro: bool) -> String {
    let (year, month, day) = civil_from_days(moment.seconds.div_euclid(86_400));
    let second = moment.seconds.rem_euclid(86_400);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    if micro {
        let micros = moment.nanos / 1000;
        format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{micros:06}Z")
    } else {
        format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
    }
}

/// Parses a duration in Go's format (`1h2m3.5s`) to nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Result<i64, DecodeError> {
    kelson_meta::parse_nanos(text).map_err(|e| DecodeError::Json(e.to_string()))
}

/// Formats a duration as Go's `Duration.String` does, in whole milliseconds. It is for messages.
pub fn go_duration(duration: std::time::Duration) -> String {
    // Durations of more than 292 years, which do not fit an i64 of nanoseconds, all print as the longest one.
    let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 1_000_000);
    format_duration(ms * 1_000_000)
}

/// Formats nanoseconds as Go's `Duration.String` does.
pub fn format_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let decimal = |n: u64, unit: u64, digits: usize| {
        let text = format!("{}.{:0digits$}", n / unit, n % unit);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let body = match n {
        0..1_000 => format!("{n}ns"),
        1_000..1_000_000 => decimal(n, 1_000, 3) + "µs",
        1_000_000..1_000_000_000 => decimal(n, 1_000_000, 6) + "ms",
        _ => {
            let seconds = decimal(n % 60_000_000_000, 1_000_000_000, 9);
            let minutes = n / 60_000_000_000;
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, m) => format!("{m}m{seconds}s"),
                (h, m) => format!("{h}h{m}m{seconds}s"),
            }
        }
    };
    format!("{sign}{body}")
}

/// The canonical form of a quantity.
pub(crate) fn quantity(text: &str) -> Result<String, DecodeError> {
    kelson_meta::Quantity::canonical(text.trim()).map_err(|e| DecodeError::Json(e.to_string()))
}

/// A string in double quotes, as Go's `%q` prints it.
pub(crate) fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
