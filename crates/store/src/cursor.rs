//! A watch is a position in the shared log. A cursor holds no events; it reads the events after its position on demand.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::StoreError;
use crate::event::Event;
use crate::key::Resource;
use crate::limits::{CURSOR_BATCH_BYTES_MAX, CURSOR_BATCH_MAX};
use crate::scope::{ScopeLog, WatchScope, changes_after};
use crate::shared::Shared;
use crate::state::State;

/// A position in the log of one resource, from which a watch reads. It returns the events after a revision in order,
/// and waits for further commits. Commits of other resources, and those outside its [`WatchScope`], neither wake it nor
/// cost it anything. A cursor that falls behind the kept history gets an error and must list again. Dropping the cursor
/// ends the watch.
pub struct Cursor {
    shared: Arc<Shared>,
    resource: Resource,
    /// The log of the watched part; `None` for a watch of the whole resource.
    scope: Option<Arc<ScopeLog>>,
    position: u64,
    /// The number of times that the records had been replaced without events when this watch began.
    restarts: u32,
    changed: watch::Receiver<()>,
}

impl Cursor {
    pub(crate) fn open(
        shared: &Arc<Shared>,
        resource: Resource,
        scope: WatchScope,
        from: u64,
    ) -> Result<Self, StoreError> {
        if let Some(cursor) = Self::of_existing(shared, resource, &scope, from)? {
            return Ok(cursor);
        }
        let earlier = {
            let state = shared.state.read();
            let changes = state.slot(resource).map(|slot| changes_after(&slot.log, &scope, from));
            (changes.unwrap_or_default(), state.revision)
        };
        let mut state = shared.state.write();
        if from < state.floor(resource) {
            return Err(StoreError::Compacted { requested: from, oldest: state.floor(resource) });
        }
        let slot = state.slot_mut(resource);
        slot.scopes.open(&scope, from, earlier, &slot.log);
        let (scope, changed) = match slot.scopes.get(&scope) {
            Some(log) => (Some(Arc::clone(log)), log.changed.subscribe()),
            None => (None, slot.changed.subscribe()),
        };
        let restarts = slot.restarts;
        Ok(Self { shared: Arc::clone(shared), resource, scope, position: from, restarts, changed })
    }

    /// A cursor on a log that exists and reaches back to `from`.
    fn of_existing(
        shared: &Arc<Shared>,
        resource: Resource,
        scope: &WatchScope,
        from: u64,
    ) -> Result<Option<Self>, StoreError> {
        let state = shared.state.read();
        let Some(slot) = state.slot(resource) else { return Ok(None) };
        let (log, changed) = match (scope, slot.scopes.get(scope)) {
            (WatchScope::All, _) => (None, slot.changed.subscribe()),
            (_, Some(log)) if log.floor() <= from => (Some(Arc::clone(log)), log.changed.subscribe()),
            _ => return Ok(None),
        };
        let oldest = state.floor(resource);
        if from < oldest {
            return Err(StoreError::Compacted { requested: from, oldest });
        }
        let shared = Arc::clone(shared);
        Ok(Some(Self { shared, resource, scope: log, position: from, restarts: slot.restarts, changed }))
    }

    /// Returns the next events in revision order, at most [`CURSOR_BATCH_MAX`] events and about [`CURSOR_BATCH_BYTES_MAX`] bytes. Waits
    /// if there is none. Cancel safe.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] if the log no longer reaches back to this cursor, so that the watcher must list again, and
    /// [`StoreError::Closed`] once the store is closed and all events were read.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, StoreError> {
        loop {
            self.changed.borrow_and_update();
            let batch = self.try_next()?;
            if !batch.is_empty() {
                return Ok(batch);
            }
            if self.shared.is_closed() {
                return Err(StoreError::Closed);
            }
            self.changed.changed().await.map_err(|_| StoreError::Closed)?;
        }
    }

    /// Returns the next events without waiting. The result is empty if there are none.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] as [`Cursor::next`] does.
    pub fn try_next(&mut self) -> Result<Vec<Arc<Event>>, StoreError> {
        let state = self.shared.state.read();
        self.check_floor(&state)?;
        let mut batch: Vec<Arc<Event>> = Vec::new();
        let mut bytes = 0;
        let mut take = |event: &Arc<Event>| {
            let full = batch.len() >= CURSOR_BATCH_MAX || bytes >= CURSOR_BATCH_BYTES_MAX;
            // Changes with the same revision, which a mirrored store can have, stay together, since the position is a revision.
            if full && batch.last().is_some_and(|last| last.revision != event.revision) {
                return false;
            }
            bytes += event.record.len();
            batch.push(Arc::clone(event));
            true
        };
        match (&self.scope, state.slot(self.resource)) {
            (Some(log), _) => log.after(self.position, take),
            (None, Some(slot)) => {
                for event in slot.log.after(self.position) {
                    if !take(event) {
                        break;
                    }
                }
            }
            (None, None) => {}
        }
        // When no events are pending, the position advances, so that the cursor of a quiet resource never falls behind.
        self.position = batch.last().map_or(self.position.max(state.revision), |event| event.revision);
        Ok(batch)
    }

    /// The store's revision if all events up to it were returned, for a bookmark. `None` while events are pending.
    #[must_use]
    pub fn progress(&self) -> Option<u64> {
        let state = self.shared.state.read();
        let pending = match &self.scope {
            Some(log) => log.has_after(self.position),
            None => state.slot(self.resource).is_some_and(|slot| slot.log.has_after(self.position)),
        };
        (!pending && self.check_floor(&state).is_ok()).then_some(state.revision.max(self.position))
    }

    /// The revision up to which events were returned.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The log of the watched part.
    #[cfg(test)]
    pub(crate) fn scope_log(&self) -> Option<&ScopeLog> {
        self.scope.as_deref()
    }

    fn check_floor(&self, state: &State) -> Result<(), StoreError> {
        // A quiet part loses nothing when the resource's log is shortened.
        let complete_from = self.scope.as_ref().map_or_else(|| state.floor(self.resource), |log| log.floor());
        if self.position < complete_from || state.restarts(self.resource) != self.restarts {
            return Err(StoreError::Compacted { requested: self.position, oldest: state.floor(self.resource) });
        }
        Ok(())
    }
}
