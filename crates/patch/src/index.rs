//! Where the elements of a list are, by value or by the value of their merge key. It is the one way in which a merge looks
//! anything up in a list, so that a merge stays linear in what it merges; each entry and each question is a step of the
//! budget.
use std::collections::HashMap;

use kelson_codec::{Budget, Exceeded};
use serde_json::Value;

/// Returns the key of an element: the value of its merge key, or the element itself where there is none.
pub(crate) fn key_of<'a>(item: &'a Value, merge_key: &str) -> Option<&'a Value> {
    if merge_key.is_empty() { Some(item) } else { item.as_object()?.get(merge_key) }
}

/// The places of a list's elements; of several with one key, the first.
pub(crate) struct Index<'a> {
    places: HashMap<&'a Value, usize>,
}

impl<'a> Index<'a> {
    /// The index of a list. Elements without the key are not in it.
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
