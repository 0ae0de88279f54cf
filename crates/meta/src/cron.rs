//! Cron schedules of five fields or a macro, in the dialect of the library that Kubernetes uses (`robfig/cron`):
//! names, ranges, steps, `?` for `*`, `@every 1h30m`, and an optional time zone prefix.
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::duration::parse_nanos;

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// The number of years that a search covers. A schedule without a match in them (the 31st of a short month) never
/// fires.
const YEARS_MAX: i16 = 5;
/// The maximum number of steps of a search: the days of those years, and the hours and minutes of the last day.
const STEPS_MAX: usize = 366 * 6 + 24 * 4 + 60 * 4;

/// The range and the names of one field.
struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[] },
    Bounds { min: 0, max: 23, names: &[] },
    Bounds { min: 1, max: 31, names: &[] },
    Bounds { min: 1, max: 12, names: MONTHS },
    Bounds { min: 0, max: 6, names: DAYS },
];

/// A schedule that fires repeatedly.
#[derive(Clone, Debug)]
pub struct CronSchedule {
    zone: Option<TimeZone>,
    times: Times,
}

#[derive(Clone, Debug)]
enum Times {
    Every(SignedDuration),
    At(Fields),
}

/// The allowed values of each field as bit sets.
#[derive(Clone, Copy, Debug)]
struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// Whether both day and weekday must match, because one of them is `*`. Otherwise one match is enough.
    both_days: bool,
}

impl CronSchedule {
    /// Parses a schedule.
    ///
    /// # Errors
    /// Returns upstream's message for an invalid schedule.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let (mut zone, mut spec) = (None, text);
        if let Some(rest) = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ=")) {
            let Some((name, rest)) = rest.split_once(' ') else {
                return Err(format!("expected a schedule after the time zone: {text}"));
            };
            let known =
                TimeZone::get(name).map_err(|_| format!("provided bad location {name}: unknown time zone {name}"));
            (zone, spec) = (Some(known?), rest.trim());
        }
        let times = match spec {
            "@yearly" | "@annually" => fields("0 0 1 1 *")?,
            "@monthly" => fields("0 0 1 * *")?,
            "@weekly" => fields("0 0 * * 0")?,
            "@daily" | "@midnight" => fields("0 0 * * *")?,
            "@hourly" => fields("0 * * * *")?,
            _ => match spec.strip_prefix("@every ") {
                Some(span) => {
                    let nanos = parse_nanos(span).map_err(|_| format!("failed to parse duration {spec}"))?;
                    Times::Every(SignedDuration::from_secs(SignedDuration::from_nanos(nanos).as_secs().max(1)))
                }
                None if spec.starts_with('@') => return Err(format!("unrecognized descriptor: {spec}")),
                None => fields(spec)?,
            },
        };
        Ok(Self { zone, times })
    }

    /// Returns the first time after `after`, in the schedule's time zone or otherwise in `zone`. Returns `None` if
    /// there is none within five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let second = Timestamp::from_second(after.as_second()).ok()?;
        match &self.times {
            Times::Every(span) => second.checked_add(*span).ok(),
            Times::At(fields) => fields.next(second, self.zone.as_ref().unwrap_or(zone)),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minutes = |t: Timestamp, n: i64| t.checked_add(SignedDuration::from_mins(n)).ok();
        let start = zone.to_datetime(after);
        let mut t = minutes(after.checked_sub(SignedDuration::from_secs(i64::from(start.second()))).ok()?, 1)?;
        for _ in 0..STEPS_MAX {
            let at = zone.to_datetime(t);
            if at.year() > start.year().saturating_add(YEARS_MAX) {
                return None;
            }
            let has = |set: u64, n: i8| set & (1 << n) != 0;
            t = if !has(self.month, at.month()) {
                midnight(at.date().last_of_month().tomorrow().ok()?, zone)?
            } else if !self.has_day(at.date()) {
                midnight(at.date().tomorrow().ok()?, zone)?
            } else if !has(self.hour, at.hour()) {
                // Adds elapsed time, not wall-clock time: an hour that the zone skips never matches, and an hour that
                // occurs twice matches twice.
                minutes(t, 60 - i64::from(at.minute()))?
            } else if !has(self.minute, at.minute()) {
                minutes(t, 1)?
            } else {
                return Some(t);
            };
        }
        None
    }

    fn has_day(&self, date: Date) -> bool {
        let day = self.day & (1 << date.day()) != 0;
        let weekday = self.weekday & (1 << date.weekday().to_sunday_zero_offset()) != 0;
        if self.both_days { day && weekday } else { day || weekday }
    }
}

/// Returns the first moment of a day that exists in the zone.
fn midnight(date: Date, zone: &TimeZone) -> Option<Timestamp> {
    Some(date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?.timestamp())
}

fn fields(spec: &str) -> Result<Times, String> {
    let all: Vec<&str> = spec.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = all.as_slice() else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", all.len(), all.join(" ")));
    };
    let mut sets = [(0u64, false); 5];
    for ((set, text), bounds) in sets.iter_mut().zip([minute, hour, day, month, weekday]).zip(&FIELDS) {
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (bits, any) = range(part, bounds)?;
            set.0 |= bits;
            set.1 |= any;
        }
    }
    let [(minute, _), (hour, _), (day, any_day), (month, _), (weekday, any_weekday)] = sets;
    Ok(Times::At(Fields { minute, hour, day, month, weekday, both_days: any_day || any_weekday }))
}

/// Parses a part such as `1`, `1-5` or `*/2` to a bit set, and returns whether it is a wildcard.
fn range(text: &str, bounds: &Bounds) -> Result<(u64, bool), String> {
    let mut halves = text.split('/');
    let (base, step) = (halves.next().unwrap_or_default(), halves.next());
    if halves.next().is_some() {
        return Err(format!("too many slashes: {text}"));
    }
    let ends: Vec<&str> = base.split('-').collect();
    let any = matches!(ends[0], "*" | "?");
    let (low, high) = match ends.as_slice() {
        _ if any => (bounds.min, bounds.max),
        [one] => {
            let n = number(one, bounds)?;
            (n, if step.is_some() { bounds.max } else { n })
        }
        [a, b] => (number(a, bounds)?, number(b, bounds)?),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = step.map_or(Ok(1), |s| number(s, &Bounds { min: 0, max: u32::MAX, names: &[] }))?;
    if low < bounds.min {
        return Err(format!("beginning of range ({low}) below minimum ({}): {text}", bounds.min));
    }
    if high > bounds.max {
        return Err(format!("end of range ({high}) above maximum ({}): {text}", bounds.max));
    }
    if low > high {
        return Err(format!("beginning of range ({low}) beyond end of range ({high}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let bits = (low..=high).step_by(step as usize).fold(0, |bits, n| bits | (1 << n));
    Ok((bits, any && step == 1))
}

fn number(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(i) = bounds.names.iter().position(|n| *n == lower) {
        return Ok(bounds.min + i as u32);
    }
    match text.parse::<i64>() {
        Ok(n) if n < 0 => Err(format!("negative number ({n}) not allowed: {text}")),
        Ok(n) => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
        Err(_) => Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read() {
        for ok in [
            "* * * * *",
            "*/5 0-6 1,15 jan mon-fri",
            "@hourly",
            "@every 1h30m",
            "0 0 ? * SUN",
            "TZ=UTC 0 0 * * *",
            "0 0 *-3 * *",
            "1,,2 * * * *",
            "59 23 31 2 *",
        ] {
            assert!(CronSchedule::parse(ok).is_ok(), "{ok}");
        }
        for (bad, why) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("@never", "unrecognized descriptor: @never"),
            ("@every x", "failed to parse duration @every x"),
            ("TZ=Nowhere/None * * * * *", "provided bad location Nowhere/None: unknown time zone Nowhere/None"),
        ] {
            assert_eq!(CronSchedule::parse(bad).err().as_deref(), Some(why), "{bad}");
        }
        assert!(CronSchedule::parse("TZ=UTC").is_err());
        assert!(CronSchedule::parse("* * * * 7").is_err());
    }

    /// Checks the next two times of a schedule.
    fn check(spec: &str, zone: &str, after: &str, want: [&str; 2]) {
        let (s, zone) = (CronSchedule::parse(spec).unwrap(), TimeZone::get(zone).unwrap());
        let first = s.next(after.parse().unwrap(), &zone).unwrap();
        let second = s.next(first, &zone).unwrap();
        assert_eq!([first.to_string(), second.to_string()], want, "{spec} after {after}");
    }

    #[test]
    fn when_it_is_next() {
        let a = "2026-01-01T00:00:30Z";
        check("* * * * *", "UTC", a, ["2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"]);
        check("*/20 3 * * *", "UTC", a, ["2026-01-01T03:00:00Z", "2026-01-01T03:20:00Z"]);
        check("0 0 31 * *", "UTC", a, ["2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z"]);
        check("0 0 29 feb *", "UTC", a, ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]);
        check("5 4 * * mon", "UTC", a, ["2026-01-05T04:05:00Z", "2026-01-12T04:05:00Z"]);
        // Day or weekday is enough if neither is `*`; otherwise both must match.
        check("0 0 13 * fri", "UTC", a, ["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z"]);
        check("0 0 */12 * fri", "UTC", a, ["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z"]);
        check("@every 90m", "UTC", a, ["2026-01-01T01:30:30Z", "2026-01-01T03:00:30Z"]);
        check("@weekly", "UTC", a, ["2026-01-04T00:00:00Z", "2026-01-11T00:00:00Z"]);
        check("0 0 * * *", "Asia/Kolkata", a, ["2026-01-01T18:30:00Z", "2026-01-02T18:30:00Z"]);
        check("TZ=Asia/Tokyo 0 9 * * *", "America/New_York", a, ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]);
    }

    #[test]
    fn clocks_that_are_put_forward_and_back() {
        // New York skips 02:00 to 03:00 on 8 March 2026, and has 01:00 to 02:00 twice on 1 November.
        let before = "2026-03-08T05:00:00Z";
        check("30 2 * * *", "America/New_York", before, ["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"]);
        check("30 1,3 * * *", "America/New_York", before, ["2026-03-08T06:30:00Z", "2026-03-08T07:30:00Z"]);
        let twice = "2026-11-01T04:00:00Z";
        check("30 1 * * *", "America/New_York", twice, ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"]);
        // Beirut moved its clocks forward at midnight of 29 March 2026, so that day began at 01:00.
        check("0 1 * * *", "Asia/Beirut", "2026-03-28T12:00:00Z", ["2026-03-28T22:00:00Z", "2026-03-29T22:00:00Z"]);
    }

    #[test]
    fn what_never_is() {
        let s = CronSchedule::parse("59 23 31 2 *").unwrap();
        assert_eq!(s.next("2026-01-01T00:00:00Z".parse().unwrap(), &TimeZone::UTC), None);
        assert_eq!(CronSchedule::parse(", * * * *").unwrap().next(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
        assert_eq!(CronSchedule::parse("* * * * *").unwrap().next(Timestamp::MAX, &TimeZone::UTC), None);
    }
}
