//! Wall-clock time as an effect, and the two timestamp forms of the API. Timers are the runtime's.
use jiff::Timestamp;

/// Where components take the wall clock from; never call the system clock directly.
pub trait Clock: Send + Sync + 'static {
    /// The current wall-clock time.
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

/// `metav1.Time` on the wire: RFC 3339, whole seconds, UTC (`2026-01-02T03:04:05Z`).
pub fn format_seconds(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime` on the wire: RFC 3339 with six fractional digits, UTC.
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
