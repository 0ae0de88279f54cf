//! Indexes of one resource's records by the value of a selectable field. An index is made when it is first used.

use std::collections::HashMap;
use std::sync::Arc;

use crate::key::RecordName;
use crate::record::Record;
use crate::scope::field;
use crate::table::Table;

/// The records of a resource by the value of one field. Records with an empty value are not in it.
#[derive(Default)]
pub(crate) struct FieldIndex {
    field: Box<str>,
    tables: HashMap<Box<str>, Table>,
}

impl FieldIndex {
    /// Makes the index of a table's records.
    pub fn new(field: &str, table: &Table) -> Self {
        let mut index = Self { field: field.into(), tables: HashMap::new() };
        for record in table.iter_from(0) {
            index.put(record);
        }
        index
    }

    pub fn field(&self) -> &str {
        &self.field
    }

    /// The records with a value, in storage order.
    pub fn get(&self, value: &str) -> Table {
        self.tables.get(value).cloned().unwrap_or_default()
    }

    /// Follows a change of a record from `old` to `new`.
    pub fn change(&mut self, old: Option<&Arc<Record>>, new: Option<&Arc<Record>>) {
        if let Some(old) = old
            && new.is_none_or(|new| field(new, &self.field) != field(old, &self.field))
        {
            let (value, key) = (field(old, &self.field), old.key());
            if let Some(table) = self.tables.get_mut(value) {
                table.remove(RecordName { namespace: &key.namespace, name: &key.name });
                if table.len() == 0 {
                    self.tables.remove(value);
                }
            }
        }
        if let Some(new) = new {
            self.put(new);
        }
    }

    fn put(&mut self, record: &Arc<Record>) {
        let value = field(record, &self.field);
        if value.is_empty() {
            return;
        }
        match self.tables.get_mut(value) {
            Some(table) => drop(table.put(Arc::clone(record))),
            None => drop(self.tables.entry(value.into()).or_default().put(Arc::clone(record))),
        }
    }
}
