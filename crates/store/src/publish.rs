//! Publishes stored changes: adds events to the logs, updates the state and wakes the watchers. Changes come in revision order.

use std::sync::Arc;

use crate::at_rest::Writer;
use crate::event::{Event, EventKind};
use crate::key::Resource;
use crate::limits::{LOG_AGE_MAX_S, LOG_SWEEP_EVERY_S};
use crate::record::Record;
use crate::shared::Shared;

/// One change that is stored and not yet visible.
pub(crate) struct Visible {
    pub kind: EventKind,
    pub record: Arc<Record>,
    pub previous: Option<Arc<Record>>,
    /// The writer of the record's bytes.
    pub writer: Writer,
}

/// Publishes changes to the readers and watchers of one store.
pub(crate) struct Publisher {
    shared: Arc<Shared>,
    swept_at_s: u64,
}

impl Publisher {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, swept_at_s: 0 }
    }

    /// Makes changes visible in their order. `revision` is the state's revision afterwards if it is later than that of the last change.
    pub fn publish(&mut self, changes: Vec<Visible>, revision: Option<u64>) {
        let now_s = self.shared.now_s();
        let aged = now_s >= self.swept_at_s + LOG_SWEEP_EVERY_S || now_s < self.swept_at_s;
        if aged {
            self.swept_at_s = now_s;
        }
        let mut touched: Vec<Resource> = Vec::new();
        let mut events = Vec::with_capacity(changes.len());
        for Visible { kind, record, previous, writer } in changes {
            let resource = record.key().resource;
            if !touched.contains(&resource) {
                touched.push(resource);
            }
            self.shared.writers.note(kind, &record, writer);
            self.shared.expiry.note(kind, &record, previous.as_deref());
            let frames = Arc::clone(&self.shared.frames);
            events.push(Arc::new(Event::new(kind, record, previous, now_s, frames)));
        }
        let mut concerned = Vec::new();
        let dropped = {
            let mut state = self.shared.state.write();
            for event in events {
                state.apply(event, &mut concerned);
            }
            if let Some(revision) = revision {
                state.advance(revision);
            }
            state.trim(&touched, aged.then(|| now_s.saturating_sub(LOG_AGE_MAX_S)))
        };
        drop(dropped);
        for scope in concerned {
            scope.announce();
        }
        let state = self.shared.state.read();
        for slot in touched.iter().filter_map(|resource| state.slot(*resource)) {
            slot.changed.send_replace(());
        }
        self.shared.waiters.reached(state.revision);
    }
}
