//! Shows the records of locked resources once they can be decrypted.

use std::collections::HashMap;
use std::sync::Arc;

use crate::at_rest::Writer;
use crate::engine::format::{Decoder, Stored};
use crate::engine::{EngineError, Entry};
use crate::event::EventKind;
use crate::record::Record;
use crate::shared::Shared;

impl Shared {
    /// Decrypts everything that is locked, and shows it. Blocks on the key service.
    ///
    /// # Errors
    /// The first record that cannot be decrypted yet; nothing is shown then.
    pub fn unlock(&self) -> Result<usize, EngineError> {
        let (rows, format) = self.locked.rows();
        let mut decoder = Decoder::of_format(self.writers.at_rest(), format);
        let mut opened: Vec<(Arc<Record>, Writer)> = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            match decoder.decode(Entry::Record { id: row.id, value: &row.value })? {
                Stored::Record(record, writer) => opened.push((record, writer)),
                Stored::Locked(key, _, why) => {
                    return Err(EngineError::Sealed { key: key.to_string(), reason: why.to_string() });
                }
                Stored::Mark(_) => {}
            }
        }
        let shown = opened.len();
        // Under one lock, so that no reader and no writer sees a part of them.
        let mut state = self.state.write();
        for (record, writer) in opened {
            self.expiry.note(EventKind::Added, &record, None);
            self.writers.note(EventKind::Added, &record, writer);
            let resource = record.key().resource;
            state.slot_mut(resource).add_silently(record);
        }
        for (resource, _) in self.locked.all() {
            state.restart(resource);
        }
        self.locked.set(HashMap::new());
        Ok(shown)
    }
}
