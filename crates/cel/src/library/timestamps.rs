//! The fields of timestamps, in UTC or a time zone, and of durations.
use super::row::{Row, not_for};
use crate::cost::Rule;
use crate::value::Value;
use crate::value::error::{EvalError, Result};
use crate::value::time::{Civil, SECOND, zone_at};

const ONE: Rule = Rule::One;

pub(super) const ROWS: &[Row] = &[
    Row("timestamp_to_year", "<timestamp>.getFullYear() -> int", year, ONE),
    Row("timestamp_to_year_with_tz", "<timestamp>.getFullYear(string) -> int", year, ONE),
    Row("timestamp_to_month", "<timestamp>.getMonth() -> int", month, ONE),
    Row("timestamp_to_month_with_tz", "<timestamp>.getMonth(string) -> int", month, ONE),
    Row("timestamp_to_day_of_year", "<timestamp>.getDayOfYear() -> int", day_of_year, ONE),
    Row("timestamp_to_day_of_year_with_tz", "<timestamp>.getDayOfYear(string) -> int", day_of_year, ONE),
    Row("timestamp_to_day_of_month", "<timestamp>.getDayOfMonth() -> int", day_of_month, ONE),
    Row("timestamp_to_day_of_month_with_tz", "<timestamp>.getDayOfMonth(string) -> int", day_of_month, ONE),
    Row("timestamp_to_day_of_month_1_based", "<timestamp>.getDate() -> int", date, ONE),
    Row("timestamp_to_day_of_month_1_based_with_tz", "<timestamp>.getDate(string) -> int", date, ONE),
    Row("timestamp_to_day_of_week", "<timestamp>.getDayOfWeek() -> int", day_of_week, ONE),
    Row("timestamp_to_day_of_week_with_tz", "<timestamp>.getDayOfWeek(string) -> int", day_of_week, ONE),
    Row("timestamp_to_hours", "<timestamp>.getHours() -> int", hours, ONE),
    Row("timestamp_to_hours_with_tz", "<timestamp>.getHours(string) -> int", hours, ONE),
    Row("duration_to_hours", "<duration>.getHours() -> int", hours, ONE),
    Row("timestamp_to_minutes", "<timestamp>.getMinutes() -> int", minutes, ONE),
    Row("timestamp_to_minutes_with_tz", "<timestamp>.getMinutes(string) -> int", minutes, ONE),
    Row("duration_to_minutes", "<duration>.getMinutes() -> int", minutes, ONE),
    Row("timestamp_to_seconds", "<timestamp>.getSeconds() -> int", seconds, ONE),
    Row("timestamp_to_seconds_tz", "<timestamp>.getSeconds(string) -> int", seconds, ONE),
    Row("duration_to_seconds", "<duration>.getSeconds() -> int", seconds, ONE),
    Row("timestamp_to_milliseconds", "<timestamp>.getMilliseconds() -> int", milliseconds, ONE),
    Row("timestamp_to_milliseconds_with_tz", "<timestamp>.getMilliseconds(string) -> int", milliseconds, ONE),
    Row("duration_to_milliseconds", "<duration>.getMilliseconds() -> int", milliseconds, ONE),
];

fn part<'a>(function: &str, args: &[Value<'a>], of: fn(&Civil) -> i64) -> Result<Value<'a>> {
    let (t, offset) = match args {
        [Value::Timestamp(t)] => (t, 0),
        [Value::Timestamp(t), Value::Text(zone)] => (t, zone_at(zone, *t).map_err(EvalError::new)?),
        _ => return Err(not_for(function, args)),
    };
    Ok(Value::Int(of(&t.civil(offset))))
}

fn year<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("getFullYear", args, |c| c.year)
}
fn month<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("getMonth", args, |c| c.month - 1)
}
fn day_of_year<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("getDayOfYear", args, |c| c.year_day)
}
fn day_of_month<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("getDayOfMonth", args, |c| c.day - 1)
}
fn date<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("getDate", args, |c| c.day)
}
fn day_of_week<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    part("getDayOfWeek", args, |c| c.week_day)
}
fn hours<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Duration(d)] => Ok(Value::Int(d / (3600 * SECOND))),
        _ => part("getHours", args, |c| c.second / 3600),
    }
}
fn minutes<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Duration(d)] => Ok(Value::Int(d / (60 * SECOND))),
        _ => part("getMinutes", args, |c| c.second / 60 % 60),
    }
}
fn seconds<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Duration(d)] => Ok(Value::Int(d / SECOND)),
        _ => part("getSeconds", args, |c| c.second % 60),
    }
}
fn milliseconds<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Duration(d)] => Ok(Value::Int(d / 1_000_000)),
        [Value::Timestamp(t)] | [Value::Timestamp(t), Value::Text(_)] => Ok(Value::Int(i64::from(t.nanos) / 1_000_000)),
        _ => Err(not_for("getMilliseconds", args)),
    }
}
