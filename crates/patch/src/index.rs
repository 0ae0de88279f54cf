//! An index of a list by the elements, or by the values of their merge key. All lookups of merges use it, so the work
//! of a merge is linear in the size of its lists. Each entry and each lookup is charged to the budget as one step.
use std::collections::HashMap;

use kelson_codec::{Budget, Exceeded};
use serde_json::Value;

/// Returns the key of an element: the value of its merge key, or the element itself if the list has no merge key.
pub(crate) fn key_of<'a>(item: &'a Value, merge_key: &str) -> Option<&'a Value> {
    if merge_key.is_empty() { Some(item) } else { item.as_object()?.get(merge_key) }
}

/// The positions of a list's elements by key. If several elements have the same key, the first one counts.
pub(crate) struct Index<'a> {
    places: HashMap<&'a Value, usize>,
}

impl<'a> Index<'a> {
    /// Builds the index of a list. Elements without the key are left out.
    pub(crate) fn new(items: &'a [Value], merge_key: &str, budget: &mut Budget) -> Result<Self, Exceeded> {
        budget.steps(items.len())?;
        let mut places = HashMap::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            if let Some(key) = key_of(item, merge_key) {
                places.entry(key).or_insert(place);
            }
        }
        Ok(Self { places })
    }

    /// Returns the index of the element with this key.
    pub(crate) fn place(&self, key: &Value, budget: &mut Budget) -> Result<Option<usize>, Exceeded> {
        budget.steps(1)?;
        Ok(self.places.get(key).copied())
    }

    /// Whether there is an element with this key.
    pub(crate) fn has(&self, key: &Value, budget: &mut Budget) -> Result<bool, Exceeded> {
        Ok(self.place(key, budget)?.is_some())
    }
}
