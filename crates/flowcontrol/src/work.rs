//! The seats of a request: one for most requests, more for large lists (seats represent memory), and more for a short
//! time after a write with many watchers. Upstream: `util/flowcontrol/request`.
use std::time::Duration;

/// The maximum number of seats of a write.
const WRITE_SEATS_MAX: u32 = 10;
/// The maximum number of seats of a list.
const LIST_SEATS_MAX: u32 = 100;
/// The number of bytes of a list that cost one seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// The maximum number of bytes that a streamed list has in memory at once.
const STREAMED_BYTES_MAX: u64 = 1_000_000;
/// The number of a write's watchers that cost one seat.
const WATCHES_PER_SEAT: u32 = 10;
/// The assumed time to send an event to one watcher.
const EVENT_TIME: Duration = Duration::from_millis(5);

/// The seats and the time that a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The seats while the request is served.
    pub seats: u32,
    /// The seats after the request was answered.
    pub seats_after: u32,
    /// The time for which it holds seats after its answer.
    pub after: Duration,
}

/// The amount of data that a list reads.
#[derive(Debug, Clone, Copy)]
pub struct ListWork {
    /// The number of objects of the resource.
    pub objects: u64,
    /// The average size of an object in bytes.
    pub object_bytes: u64,
    /// The `limit`; 0 means no limit.
    pub limit: u64,
    /// Whether the list is restricted to one object by name.
    pub single: bool,
    /// Whether the response is streamed.
    pub streamed: bool,
}

impl Work {
    /// The work of most requests.
    pub const ONE: Self = Self { seats: 1, seats_after: 0, after: Duration::ZERO };

    /// Returns the maximum number of seats at any time.
    pub fn seats_max(&self) -> u32 {
        self.seats.max(self.seats_after)
    }

    /// Returns the work of a list in a level that gives at most `level_max` seats to one request (`None`: any number).
    pub fn of_list(list: &ListWork, level_max: Option<u32>) -> Self {
        let objects = if list.limit > 0 { list.objects.min(list.limit) } else { list.objects };
        let objects = if list.single { 1 } else { objects };
        let mut bytes = objects.saturating_mul(list.object_bytes);
        if list.streamed {
            bytes = bytes.min(STREAMED_BYTES_MAX);
        }
        let seats = u32::try_from(bytes.div_ceil(BYTES_PER_SEAT)).unwrap_or(u32::MAX);
        let max = level_max.unwrap_or(LIST_SEATS_MAX).clamp(1, LIST_SEATS_MAX);
        Self { seats: seats.clamp(1, max), ..Self::ONE }
    }

    /// Returns the work of a write whose event `watchers` receive.
    pub fn of_write(watchers: u32, level_max: Option<u32>) -> Self {
        if watchers < WATCHES_PER_SEAT {
            return Self::ONE;
        }
        let wanted = watchers.div_ceil(WATCHES_PER_SEAT);
        let seats_after = wanted.min(level_max.unwrap_or(WRITE_SEATS_MAX).clamp(1, WRITE_SEATS_MAX));
        // Fewer seats for a longer time are the same amount of work.
        Self { seats: 1, seats_after, after: EVENT_TIME.saturating_mul(wanted) / seats_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let list = |objects, object_bytes| ListWork { objects, object_bytes, limit: 0, single: false, streamed: false };
        for (list, level_max, seats) in [
            (list(0, 0), None, 1),
            (list(100, 1_000), None, 1),
            (list(101, 1_000), None, 2),
            (list(1_000_000, 3_000), None, 100),
            (list(1_000_000, 3_000), Some(7), 7),
            (ListWork { limit: 500, ..list(10_000, 2_000) }, None, 10),
            (ListWork { single: true, ..list(10_000, 250_000) }, None, 3),
            (ListWork { streamed: true, ..list(10_000, 250_000) }, None, 10),
        ] {
            assert_eq!(Work::of_list(&list, level_max).seats, seats, "{list:?}");
        }
    }

    #[test]
    fn writes() {
        assert_eq!(Work::of_write(9, None), Work::ONE);
        let many = Work::of_write(95, None);
        assert_eq!((many.seats, many.seats_after, many.after), (1, 10, Duration::from_millis(5)));
        let narrow = Work::of_write(1_000, Some(2));
        assert_eq!((narrow.seats_after, narrow.after), (2, Duration::from_millis(250)));
    }
}
