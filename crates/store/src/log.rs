//! The bounded event log of one resource. Which log must give way when all together are too large is decided by the
//! state that owns them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::Event;

/// Events of one resource in revision order. All events after `floor` are there; those up to it may be gone.
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

    /// The lowest revision from which watching and reading back is still complete.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Bytes that this log alone keeps alive, about.
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

    /// Events after `revision`, oldest first.
    pub fn after(&self, revision: u64) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        self.events.range(self.events.partition_point(|event| event.revision <= revision)..)
    }

    /// Whether anything happened after `revision`.
    pub fn has_after(&self, revision: u64) -> bool {
        self.events.back().is_some_and(|event| event.revision > revision)
    }
}
