//! Which run of a cron job is due, and when to look again: no I/O here (upstream `cronjob/utils.go`).
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kelson_meta::CronSchedule;

use crate::views::CronJobView;

/// Added to the delay of the next sync, so that a clock that is slightly late does not miss the scheduled time.
const LATE: Duration = Duration::from_millis(100);
/// The number of missed runs above which a warning is recorded.
const MANY_MISSED: i64 = 100;

/// The run that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Nothing,
    /// The most recent scheduled time.
    Run {
        /// The scheduled time.
        at: Timestamp,
        /// Whether more than [`MANY_MISSED`] runs before it were missed.
        many_missed: bool,
    },
}

/// A schedule and its time zone.
pub struct Runs {
    schedule: CronSchedule,
    zone: TimeZone,
}

/// The past runs of a schedule.
struct PastRuns {
    /// The start of the search.
    since: Timestamp,
    last: Option<Timestamp>,
    missed: i64,
}

impl Runs {
    /// Returns the runs of a schedule in its own time zone, or in `zone` if it has none.
    pub fn new(schedule: CronSchedule, zone: TimeZone) -> Self {
        Self { schedule, zone }
    }

    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.next(after, &self.zone)
    }

    /// Returns the run that is due, if any.
    ///
    /// # Errors
    /// Two consecutive times of the schedule are equal.
    pub fn due(&self, cron: &CronJobView, now: Timestamp) -> Result<Due, &'static str> {
        let past = self.past(cron, now, true)?;
        Ok(past.last.map_or(Due::Nothing, |at| Due::Run { at, many_missed: past.missed > MANY_MISSED }))
    }

    /// Returns the time until the next run.
    pub fn wait(&self, cron: &CronJobView, now: Timestamp) -> Duration {
        let from = match self.past(cron, now, false) {
            Ok(PastRuns { last: Some(last), .. }) => last,
            Ok(past) if past.missed == 0 => past.since,
            _ => now,
        };
        // A schedule without a next time has no delay; the queue limits it.
        let next = self.next(from).unwrap_or(Timestamp::MAX);
        Duration::try_from(next.duration_since(now)).unwrap_or_default() + LATE
    }

    fn past(&self, cron: &CronJobView, now: Timestamp, by_deadline: bool) -> Result<PastRuns, &'static str> {
        const NEVER: &str = "time difference between two schedules is less than 1 second";
        let created = || cron.metadata.creation_timestamp.parse().ok();
        let mut since = cron.status.last_schedule_time.or_else(created).unwrap_or(now);
        if by_deadline && let Some(seconds) = cron.spec.starting_deadline_seconds {
            // Runs past the deadline are skipped.
            since = since.max(now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN));
        }
        let first = self.next(since).ok_or(NEVER)?;
        if now < first {
            return Ok(PastRuns { since, last: None, missed: 0 });
        }
        let second = self.next(first).ok_or(NEVER)?;
        if now < second {
            return Ok(PastRuns { since, last: Some(first), missed: 0 });
        }
        let between = second.duration_since(first).as_secs();
        if between < 1 {
            return Err(NEVER);
        }
        // Roughly, as runs need not be equally far apart; then exactly from a little before the last one. Where none is
        // found, as after a weekend without any, the search begins earlier: the first run is always found.
        let missed = now.duration_since(first).as_secs() / between + 1;
        let mut skip = missed.saturating_sub(2).saturating_mul(between);
        let mut last = None;
        while last.is_none() {
            let mut at = first.checked_add(SignedDuration::from_secs(skip)).unwrap_or(now);
            last = (skip == 0).then_some(first);
            while let Some(next) = self.next(at).filter(|next| *next <= now) {
                (last, at) = (Some(next), next);
            }
            skip /= 2;
        }
        Ok(PastRuns { since, last, missed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(text: &str) -> Timestamp {
        format!("2026-01-{text}Z").parse().unwrap()
    }

    fn cron(last: Option<&str>, deadline: Option<i64>) -> CronJobView {
        let mut c = json!({"metadata": {"creationTimestamp": at("01T10:00:30").to_string()}, "spec": {}, "status": {}});
        if let Some(l) = last {
            c["status"]["lastScheduleTime"] = json!(at(l).to_string());
        }
        c["spec"]["startingDeadlineSeconds"] = deadline.map_or(Value::Null, Value::from);
        serde_json::from_value(c).unwrap()
    }

    fn plan(schedule: &str) -> Runs {
        Runs::new(CronSchedule::parse(schedule).unwrap(), TimeZone::UTC)
    }

    #[test]
    fn which_run_is_due() {
        let run = |t: &str, many_missed| Ok(Due::Run { at: at(t), many_missed });
        for (schedule, last, deadline, now, want) in [
            ("0 * * * *", None, None, "01T10:30:00", Ok(Due::Nothing)),
            ("0 * * * *", None, None, "01T11:00:00", run("01T11:00:00", false)),
            ("0 * * * *", None, None, "01T15:59:59", run("01T15:00:00", false)),
            ("0 * * * *", Some("01T15:00:00"), None, "01T15:59:59", Ok(Due::Nothing)),
            ("0 * * * *", Some("01T15:00:00"), None, "06T15:59:59", run("06T15:00:00", true)),
            ("0 * * * *", None, Some(60), "01T15:00:30", run("01T15:00:00", false)),
            ("0 * * * *", None, Some(60), "01T15:01:30", Ok(Due::Nothing)),
            ("30 6-16/4 * * 1-5", None, None, "04T23:00:00", run("02T14:30:00", false)),
            ("@every 90s", None, None, "01T10:05:00", run("01T10:05:00", false)),
        ] {
            assert_eq!(plan(schedule).due(&cron(last, deadline), at(now)), want, "{schedule} {last:?} {now}");
        }
        assert!(plan("59 23 31 2 *").due(&cron(None, None), at("02T00:00:00")).is_err());
    }

    #[test]
    fn when_to_look_again() {
        for (schedule, last, now, seconds) in [
            ("0 * * * *", None, "01T10:30:00", 1800),
            ("0 * * * *", None, "01T15:30:00", 1800),
            ("0 * * * *", Some("01T15:00:00"), "01T15:00:02", 3598),
            ("@every 90s", Some("01T15:00:00"), "01T15:00:30", 60),
        ] {
            let got = plan(schedule).wait(&cron(last, None), at(now));
            assert_eq!(got, Duration::from_secs(seconds) + LATE, "{schedule} {last:?} {now}");
        }
        assert!(plan("59 23 31 2 *").wait(&cron(None, None), at("02T00:00:00")) > Duration::from_secs(1 << 30));
    }
}
