//! Timestamps and durations, with Go's formats.
use std::fmt;

/// A point in time between the years 1 and 9999. Equality and order are those of the instant. The zone in which it was written is kept
/// for printing.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// The seconds since 1970, UTC.
    pub seconds: i64,
    /// The nanoseconds within the second.
    pub nanos: u32,
    /// The offset of its zone in seconds east of UTC.
    pub offset: i32,
}

const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;
const DAY: i64 = 86_400;
pub(crate) const SECOND: i64 = 1_000_000_000;

impl PartialEq for Timestamp {
    fn eq(&self, o: &Self) -> bool {
        (self.seconds, self.nanos) == (o.seconds, o.nanos)
    }
}
impl Eq for Timestamp {}
impl PartialOrd for Timestamp {
    fn partial_cmp(&self, o: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Timestamp {
    fn cmp(&self, o: &Self) -> std::cmp::Ordering {
        (self.seconds, self.nanos).cmp(&(o.seconds, o.nanos))
    }
}

impl Timestamp {
    /// Makes a timestamp in UTC. `None` outside the years 1 to 9999.
    pub fn new(seconds: i64, nanos: u32) -> Option<Timestamp> {
        (FIRST..=LAST).contains(&seconds).then_some(Timestamp { seconds, nanos, offset: 0 })
    }
    /// Adds a duration in nanoseconds. `None` if the result is out of range.
    pub(crate) fn plus(self, nanos: i64) -> Option<Timestamp> {
        let total = i128::from(self.seconds) * i128::from(SECOND) + i128::from(self.nanos) + i128::from(nanos);
        let seconds = i64::try_from(total.div_euclid(i128::from(SECOND))).ok()?;
        let nanos = total.rem_euclid(i128::from(SECOND)) as u32;
        Some(Timestamp { offset: self.offset, ..Timestamp::new(seconds, nanos)? })
    }
    /// The nanoseconds from the other timestamp to this one. `None` if they do not fit 64 bits.
    pub(crate) fn minus(self, o: Timestamp) -> Option<i64> {
        let seconds = i128::from(self.seconds) - i128::from(o.seconds);
        let nanos = i128::from(self.nanos) - i128::from(o.nanos);
        i64::try_from(seconds * i128::from(SECOND) + nanos).ok()
    }
    /// Whether this is the first instant of the year 1, which is the zero time in Go.
    pub(crate) fn is_first(self) -> bool {
        (self.seconds, self.nanos) == (FIRST, 0)
    }
    pub(crate) fn civil(self, offset: i32) -> Civil {
        let local = self.seconds + i64::from(offset);
        let (days, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        let (year, month, day) = date_of(days);
        let year_day = days - days_of(year, 1, 1);
        Civil { year, month, day, year_day, week_day: (days + 4).rem_euclid(7), second }
    }
}

/// A date, and the seconds since its midnight. The month and the day count from 1, the day of the year from 0, and the weekday from
/// Sunday.
pub(crate) struct Civil {
    pub year: i64,
    pub month: i64,
    pub day: i64,
    pub year_day: i64,
    pub week_day: i64,
    pub second: i64,
}

/// The days since 1970 of a date in the proleptic Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let in_era = y.rem_euclid(400);
    let from_march = (month + 9) % 12;
    let in_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + in_era * 365 + in_era / 4 - in_era / 100 + in_year - 719_468
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let in_era = days.rem_euclid(146_097);
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

impl fmt::Display for Timestamp {
    /// Formats as RFC 3339 with the digits that are needed, in the zone in which it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = self.civil(self.offset);
        let (h, m, s) = (c.second / 3600, c.second / 60 % 60, c.second % 60);
        write!(f, "{:04}-{:02}-{:02}T{h:02}:{m:02}:{s:02}", c.year, c.month, c.day)?;
        if self.nanos > 0 {
            write!(f, ".{}", format!("{:09}", self.nanos).trim_end_matches('0'))?;
        }
        if self.offset == 0 {
            return f.write_str("Z");
        }
        let minutes = self.offset.abs() / 60;
        write!(f, "{}{:02}:{:02}", if self.offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
    }
}

/// Reads a fixed number of digits at the front.
fn digits(s: &str, count: usize) -> Option<(i64, &str)> {
    let (number, rest) = (s.get(..count)?, &s[count..]);
    number.bytes().all(|b| b.is_ascii_digit()).then(|| (number.parse().unwrap_or(0), rest))
}

fn day(s: &str) -> Option<(i64, &str)> {
    let (year, s) = digits(s, 4)?;
    let (month, s) = digits(s.strip_prefix('-')?, 2)?;
    let (day, s) = digits(s.strip_prefix('-')?, 2)?;
    let days = days_of(year, month, day);
    ((1..=12).contains(&month) && date_of(days) == (year, month, day)).then_some((days, s))
}

/// Parses `2006-01-02` as midnight UTC.
pub(crate) fn date(s: &str) -> Option<Timestamp> {
    let (days, rest) = day(s)?;
    rest.is_empty().then(|| Timestamp { seconds: days * DAY, nanos: 0, offset: 0 })
}

/// Parses RFC 3339 as Go does.
pub(crate) fn timestamp(s: &str) -> Option<Timestamp> {
    let (local, nanos, zone) = clock(s)?;
    let offset = zone_offset(zone, true)?;
    Some(Timestamp { seconds: local - i64::from(offset), nanos, offset })
}

/// Parses `format: date-time` of a schema. The zone may be missing or have no colon.
pub(crate) fn lenient_timestamp(s: &str) -> Option<Timestamp> {
    if s.is_empty() {
        return Timestamp::new(0, 0);
    }
    let (local, nanos, zone) = clock(s)?;
    let offset = if zone.is_empty() { 0 } else { zone_offset(zone, false)? };
    Some(Timestamp { seconds: local - i64::from(offset), nanos, offset })
}

fn clock(s: &str) -> Option<(i64, u32, &str)> {
    let (days, s) = day(s)?;
    let (hour, s) = digits(s.strip_prefix('T')?, 2)?;
    let (minute, s) = digits(s.strip_prefix(':')?, 2)?;
    let (second, mut s) = digits(s.strip_prefix(':')?, 2)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut nanos = 0;
    if let Some(fraction) = s.strip_prefix(['.', ',']) {
        let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if length == 0 {
            return None;
        }
        let padded = format!("{:0<9}", &fraction[..length.min(9)]);
        nanos = padded.parse().ok()?;
        s = &fraction[length..];
    }
    Some((days * DAY + hour * 3600 + minute * 60 + second, nanos, s))
}

fn zone_offset(zone: &str, colon: bool) -> Option<i32> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, rest) = match zone.as_bytes().first()? {
        b'+' => (1, &zone[1..]),
        b'-' => (-1, &zone[1..]),
        _ => return None,
    };
    let (hours, rest) = digits(rest, 2)?;
    let rest = match rest.strip_prefix(':') {
        Some(rest) => rest,
        None if colon => return None,
        None => rest,
    };
    let (minutes, rest) = digits(rest, 2)?;
    (rest.is_empty() && hours <= 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60) as i32)
}

/// Parses a duration as Go's `ParseDuration` does; returns nanoseconds.
pub(crate) fn duration(s: &str) -> Option<i64> {
    kelson_meta::parse_nanos(s).ok()
}

/// Parses `format: duration` of a schema: Go's format, or numbers with units as words (`2 days`, `1w`).
pub(crate) fn lenient_duration(s: &str) -> Option<i64> {
    if let Some(d) = duration(s) {
        return Some(d);
    }
    let mut total: i64 = 0;
    let mut rest = s.trim();
    let mut found = false;
    while !rest.is_empty() {
        let number = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (count, after) = rest.split_at(number);
        let after = after.trim_start();
        let unit = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let seconds_or_nanos = match &after[..unit].to_lowercase()[..] {
            "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => 1,
            "us" | "µs" | "micro" | "micros" | "microsecond" | "microseconds" => 1_000,
            "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1_000_000,
            "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
            "m" | "min" | "mins" | "minute" | "minutes" => SECOND * 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => SECOND * 3600,
            "d" | "day" | "days" => SECOND * DAY,
            "w" | "wk" | "week" | "weeks" => SECOND * DAY * 7,
            _ => return None,
        };
        let count: i64 = count.parse().ok()?;
        total = total.checked_add(count.checked_mul(seconds_or_nanos)?)?;
        found = true;
        rest = after[unit..].trim_start();
    }
    found.then_some(total)
}

/// Formats like `string(duration)`: seconds with the digits that are needed.
pub(crate) fn duration_text(nanos: i64) -> String {
    format!("{}s", nanos as f64 / SECOND as f64)
}

/// The offset of a zone at a time, in seconds east of UTC. The zone is a name such as `Europe/Berlin`, or `+05:30`.
pub(crate) fn zone_at(zone: &str, at: Timestamp) -> Result<i32, String> {
    if let Some((hours, minutes)) = zone.split_once(':') {
        let number = |s: &str| s.parse::<i32>().map_err(|_| format!("strconv.Atoi: parsing \"{s}\": invalid syntax"));
        let (h, m) = (number(hours)?, number(minutes)?);
        if h.abs() > 1000 || m.abs() > 1000 {
            return Err(format!("unknown time zone {zone}"));
        }
        return Ok((if zone.starts_with('-') { h * 60 - m } else { h * 60 + m }) * 60);
    }
    if zone.is_empty() || zone == "UTC" {
        return Ok(0);
    }
    let found = jiff::tz::TimeZone::get(zone).map_err(|_| format!("unknown time zone {zone}"))?;
    // Zones do not change near the bounds of time, which the library does not support.
    let seconds = at.seconds.clamp(jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
    let instant = jiff::Timestamp::from_second(seconds).map_err(|e| e.to_string())?;
    Ok(found.to_offset(instant).seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, printed) in [
            ("2024-02-29T23:59:59Z", "2024-02-29T23:59:59Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
            ("2024-01-01T01:30:00.500+05:30", "2024-01-01T01:30:00.5+05:30"),
        ] {
            assert_eq!(timestamp(text).unwrap().to_string(), printed, "{text}");
        }
        for wrong in ["2023-02-29T00:00:00Z", "2024-01-01", "2024-01-01T24:00:00Z", "2024-01-01T00:00:00", ""] {
            assert!(timestamp(wrong).is_none(), "{wrong}");
        }
        assert_eq!(lenient_timestamp("2024-01-01T00:00:00").unwrap().seconds, 1_704_067_200);
        assert_eq!(date("1970-01-02").unwrap().seconds, 86_400);
        for (text, nanos) in
            [("1h30m", 5_400_000_000_000), ("-1.5s", -1_500_000_000), ("0", 0), ("1ns", 1), (".5s", 500_000_000)]
        {
            assert_eq!(duration(text), Some(nanos), "{text}");
        }
        for wrong in ["", "1", "s", "1x", "9999999h", "1d"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        assert_eq!(lenient_duration("2 days"), Some(2 * 86_400 * SECOND));
        assert_eq!(duration_text(1_500_000_000), "1.5s");
        let t = timestamp("2023-07-14T10:30:45.123Z").unwrap();
        let c = t.civil(0);
        assert_eq!((c.year, c.month, c.day, c.year_day, c.week_day), (2023, 7, 14, 194, 5));
        assert_eq!(zone_at("-08:30", t), Ok(-30_600));
    }
}
