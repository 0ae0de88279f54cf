//! The bounded event log of one resource. The state that owns the logs decides which log is shortened when all together are too large.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::Event;

/// Events of one resource in revision order. All events after `floor` are in the log; earlier ones may be dropped.
#[derive(Default)]
pub(crate) struct Log {
    events: VecDeque<Arc<Event>>,
    floor: u64,
    cost: usize,
}

impl Log {
    pub fn starting_at(floor: u64) -> Self {
        Self { floor, ..Self::default() }
    }

    /// The lowest revision from which watches and reads of earlier states are complete.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The approximate number of bytes that only this log keeps in memory.
    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn push(&mut self, event: Arc<Event>) {
        self.cost += event.cost();
        self.events.push_back(event);
    }

    pub fn oldest(&self) -> Option<&Arc<Event>> {
        self.events.front()
    }

    /// Drops the oldest event.
    pub fn pop(&mut self) -> Option<Arc<Event>> {
        let event = self.events.pop_front()?;
        self.cost -= event.cost();
        self.floor = event.revision;
        if self.events.is_empty() {
            self.events.shrink_to(64);
        }
        Some(event)
    }

    /// The events after `revision`, oldest first.
    pub fn after(&self, revision: u64) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        self.events.range(self.events.partition_point(|event| event.revision <= revision)..)
    }

    /// Whether there is an event after `revision`.
    pub fn has_after(&self, revision: u64) -> bool {
        self.events.back().is_some_and(|event| event.revision > revision)
    }
}
