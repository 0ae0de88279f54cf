//! The wall clock as an interface, and the two timestamp formats of the API. Timers belong to the runtime.
use jiff::Timestamp;

/// The source of wall-clock time for components. They never read the system clock directly, so that tests can control
/// time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current wall-clock time.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Formats a time as `metav1.Time`: RFC 3339 in UTC with whole seconds (`2026-01-02T03:04:05Z`).
pub fn format_seconds(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a time as `metav1.MicroTime`: RFC 3339 in UTC with six fractional digits.
pub fn format_micro(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let t: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        assert_eq!(format_seconds(t), "2026-01-02T03:04:05Z");
        assert_eq!(format_micro(t), "2026-01-02T03:04:05.678901Z");
    }
}
