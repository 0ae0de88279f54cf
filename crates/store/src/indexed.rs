//! Lists by the value of a selectable field.

use crate::key::Resource;
use crate::lookup::FieldIndex;
use crate::state::ListView;
use crate::store::Store;
use crate::table::Table;

impl Store {
    /// Lists the current records whose selectable field has a value, which must not be empty: of one namespace or of all, after the
    /// (namespace, name) `start_after`. Only records with this value are looked at. The first list by a field makes an index, for which
    /// all records are looked at once.
    #[must_use]
    pub fn list_by_field(
        &self,
        resource: Resource,
        (field, value): (&str, &str),
        namespace: Option<&str>,
        start_after: Option<(&str, &str)>,
    ) -> ListView {
        loop {
            let snapshot = {
                let state = self.shared().state.read();
                let Some(slot) = state.slot(resource) else {
                    return ListView::new(Table::default(), state.revision, None, None, None);
                };
                if let Some(index) = slot.indexes.iter().find(|index| index.field() == field) {
                    return ListView::new(index.get(value), state.revision, namespace, start_after, None);
                }
                slot.snapshot(state.revision)
            };
            // Requests do not wait while the records are looked at. What changed meanwhile is in the log.
            let index = FieldIndex::new(field, &snapshot.table);
            self.shared().state.write().add_index(resource, index, &snapshot);
        }
    }
}
